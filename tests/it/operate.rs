//! What operators ask of the admin endpoint and do there, on the running service.

use crate::support::admin::{Answer, ask_with, get, until};
use crate::support::redis::Server;
use crate::support::service::{Tidegate, block_on, check, client, program};
use serde_json::{Value, json};
use std::io::Write;
use std::process::Stdio;
use tidegate::ext_authz::proto::CheckResponse;

const TOKEN: &str = "0123456789abcdef";
const STINGY: &str = "tiers: {free: {per_ip: {max_tokens: 1, refill_rate: 0.001}}}\nidentity: {user: [], tier: []}\n";
const REQUEST: &str = r#"{"source": {"address": {"socketAddress": {"address": "192.0.2.1"}}}}"#;

fn json(answer: &Answer) -> Value {
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

/// A Check from 192.0.2.1.
fn checked(service: &Tidegate) -> CheckResponse {
    block_on(async { client(service).await.check(check(&[])).await.unwrap().into_inner() })
}

fn passes(service: &Tidegate) -> bool {
    checked(service).status.unwrap().code == 0
}

#[test]
fn explain_says_what_the_next_check_is_answered_and_takes_nothing() {
    let service = Tidegate::start(STINGY);
    for passes_next in [true, false] {
        for _ in 0..3 {
            let told = json(&ask_with(service.admin, "POST", "/explain", &[], REQUEST));
            assert_eq!(told["answer"]["passes"], passes_next, "{told:#}");
            assert_eq!(told["decision"], if passes_next { "allowed" } else { "denied" });
            assert_eq!((&told["caller"]["ip"], &told["tier"]), (&json!("192.0.2.1"), &json!("free")));
            assert_eq!((&told["tier_from"], &told["cost"]), (&json!("default_tier"), &json!(1.0)));
            assert_eq!(told["buckets"][0]["key"], "rl:ip:192.0.2.1");
            assert_eq!(told["buckets"][0]["covers"], passes_next);
            let status = if passes_next { Value::Null } else { json!(429) };
            assert_eq!(told["answer"]["http_status"], status);
            assert_eq!(told["answer"]["headers_to_client"]["x-ratelimit-remaining"], "0");
        }
        assert_eq!(passes(&service), passes_next);
    }
    let bad = ask_with(service.admin, "POST", "/explain", &[], r#"{"request": {"http": {"haeders": {}}}}"#);
    assert_eq!(bad.status(), 400);
    assert!(bad.body.contains("request.http.haeders: is no field of it"), "{bad:?}");
}

#[test]
fn a_hostile_user_id_is_explained_in_its_stored_form_on_lines_of_json() {
    let service = Tidegate::start("identity: {user: [{header: x-user}], tier: []}\n");
    let id = format!("a\n\"\u{1b}[31m\u{85}{}", "x".repeat(10_000));
    let request = json!({"request": {"http": {"headers": {"x-user": id}}}}).to_string();
    let answer = ask_with(service.admin, "POST", "/explain", &[], &request);
    let user = json(&answer)["caller"]["user"].as_str().unwrap().to_owned();
    assert!(user.starts_with('~') && user.len() == 33, "{user}");
    assert!(!answer.body.contains("xxx") && !answer.body.contains('\u{1b}'), "{answer:?}");
    let bucket = json(&get(service.admin, &format!("/buckets/user/{user}")));
    assert_eq!(bucket["key"], format!("rl:user:{user}"));
}

#[test]
fn a_bucket_is_shown_and_reset_and_the_reset_is_audited() {
    let service =
        Tidegate::start_printing(Stdio::piped(), "127.0.0.1:0", &format!("{STINGY}audit: {{sinks: [stdout]}}\n"), &[]);
    assert!(passes(&service) && !passes(&service));
    let shown = json(&get(service.admin, "/buckets/ip/192.0.2.1"));
    assert_eq!((&shown["stored"], &shown["tokens"]), (&json!(true), &json!(0.0)), "{shown:#}");
    let reset = json(&ask_with(service.admin, "DELETE", "/buckets/ip/192.0.2.1", &[], ""));
    assert_eq!(reset, json!({"key": "rl:ip:192.0.2.1", "reset": true}));
    assert!(passes(&service));
    until(service.admin, "/metrics", |metrics| {
        metrics.value(r#"tidegate_audit_events_total{event="bucket_reset"}"#) == 1
    });
    service.wait_for_log("a bucket was reset");
}

#[test]
fn a_bucket_is_the_same_to_the_admin_endpoint_and_to_the_command() {
    let server = Server::start(&[]);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{STINGY}redis: {{urls: ['{}'], timeout: 10s}}", server.url()).unwrap();
    let service = Tidegate::start_at(file.path(), &[]);
    let both = || {
        let shown = program(&["bucket", "show", "--ip", "192.0.2.1", "--json", "--config"]).arg(file.path()).output();
        let shown: Value = serde_json::from_slice(&shown.unwrap().stdout).unwrap();
        (json(&get(service.admin, "/buckets/ip/192.0.2.1")), shown)
    };
    let (asked, shown) = both();
    let limits = json!([{"tier": "free", "max_tokens": 1.0, "refill_rate": 0.001}]);
    assert_eq!(asked, json!({"key": "rl:ip:192.0.2.1", "stored": false, "limits": limits}));
    assert_eq!(asked, shown);
    assert!(passes(&service));
    let (asked, shown) = both();
    assert_eq!((&asked["stored"], &asked["tokens"], &asked["limits"]), (&json!(true), &json!(0.0), &limits));
    assert!(asked["last_refill"]["seconds"].is_f64() && asked["last_refill"]["time"].is_string(), "{asked:#}");
    assert_eq!(asked, shown);
}

#[test]
fn a_path_that_names_no_bucket_is_told_what_would() {
    let service = Tidegate::start("drain: 0s\n");
    for (path, told) in [
        ("/buckets/usr/alice", "/buckets/user/{id}"),
        ("/buckets/key/sk-secret", "never send the key itself"),
        ("/buckets/ip/nowhere", "write an IP address"),
        ("/buckets/user/alice?tier=gold", "there are free, "),
    ] {
        let answer = get(service.admin, path);
        assert_eq!(answer.status(), 400, "{path}");
        assert!(answer.body.contains(told) && !answer.body.contains("sk-secret"), "{answer:?}");
    }
    assert_eq!(json(&get(service.admin, "/buckets/user/a%0Ab%7B"))["stored"], false);
    assert_eq!(json(&get(service.admin, "/buckets/ip/2001:db8::1"))["key"], "rl:ip:2001:db8::/64");
}

#[test]
fn a_reset_on_one_replica_reaches_the_deny_cache_of_another() {
    let server = Server::start(&[]);
    let config = format!("redis: {{urls: ['{}'], timeout: 1s}}\n{STINGY}", server.url());
    let replicas = [Tidegate::start(&config), Tidegate::start(&config)];
    assert!(passes(&replicas[0]) && !passes(&replicas[1]) && !passes(&replicas[1]));
    assert!(get(replicas[1].admin, "/metrics").value("tidegate_deny_cache_hits_total") > 0);
    let reset = json(&ask_with(replicas[0].admin, "DELETE", "/buckets/ip/192.0.2.1", &[], ""));
    assert_eq!(reset["reset"], true);
    // Within max_age, 1 s; a busy machine is given more.
    crate::support::eventually("the other replica lets it pass", || passes(&replicas[1]).then_some(()));
}

#[test]
fn beyond_this_machine_without_a_token_only_probes_are_answered_and_it_is_said_once() {
    let open = [("TIDEGATE_ADMIN_LISTEN", "0.0.0.0:0")];
    let service = Tidegate::start_with("drain: 0s\n", &open);
    let admin = ([127, 0, 0, 1], service.admin.port()).into();
    for page in ["/livez", "/metrics", "/readyz?verbose"] {
        assert_eq!(get(admin, page).status(), 200, "{page}");
    }
    for (method, page) in [
        ("GET", "/config"),
        ("POST", "/reload"),
        ("GET", "/buckets/user/a"),
        ("DELETE", "/buckets/user/a"),
        ("POST", "/explain"),
        ("GET", "/log"),
        ("PUT", "/log"),
    ] {
        let answer = ask_with(admin, method, page, &[], "");
        assert_eq!(answer.status(), 403, "{method} {page}");
        assert!(answer.body.contains("set TIDEGATE_ADMIN_TOKEN or TIDEGATE_ADMIN_TOKEN_FILE"), "{answer:?}");
    }
    assert_eq!(service.log().matches("the admin endpoint answers only").count(), 1, "{}", service.log());
}

#[test]
fn with_a_token_whoever_sends_it_is_let_in_and_nobody_else() {
    let environment = [("TIDEGATE_ADMIN_LISTEN", "0.0.0.0:0"), ("TIDEGATE_ADMIN_TOKEN", TOKEN)];
    let service = Tidegate::start_with("drain: 0s\n", &environment);
    let admin = ([127, 0, 0, 1], service.admin.port()).into();
    let bearer = format!("Bearer {TOKEN}");
    let told = ask_with(admin, "GET", "/config", &[("authorization", &bearer)], "");
    assert_eq!(told.status(), 200, "{told:?}");
    assert!(!told.body.contains(TOKEN) && !service.log().contains(TOKEN));
    for wrong in [&[][..], &[("authorization", "Bearer 0123456789abcdee")], &[("authorization", TOKEN)]] {
        let told = ask_with(admin, "GET", "/config", wrong, "");
        assert_eq!(told.status(), 401, "{wrong:?}");
        assert!(told.head.to_lowercase().contains("www-authenticate: bearer"), "{told:?}");
    }
    assert!(!service.log().contains("the admin endpoint answers only"));
}

#[test]
fn the_configuration_is_shown_with_its_hash_and_without_its_secrets() {
    let config = "drain: 0s\nidentity: {key_pepper: hunter2hunter2}\nadmin: {token: hunter3hunter3hunter3}\n";
    let service = Tidegate::start(config);
    let token = [("authorization", "Bearer hunter3hunter3hunter3")];
    let answer = ask_with(service.admin, "GET", "/config", &token, "");
    let told = json(&answer);
    assert_eq!(told["hash"].as_str().unwrap().len(), 64);
    assert_eq!((&told["cause"], &told["config"]["drain"]), (&json!("start"), &json!("0s")));
    assert_eq!(told["config"]["identity"]["key_pepper"], "***");
    assert_eq!(told["config"]["tiers"]["free"]["per_ip"]["max_tokens"], 30);
    assert!(told["loaded_at"].as_str().unwrap().ends_with('Z') && !answer.body.contains("hunter"), "{answer:?}");
}

#[test]
fn a_reload_can_be_asked_for_and_says_all_faults() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.yaml");
    std::fs::write(&path, "drain: 0s\n").unwrap();
    let service = Tidegate::start_at(&path, &[]);
    let reloaded = ask_with(service.admin, "POST", "/reload", &[], "");
    assert_eq!((reloaded.status(), json(&reloaded)["hash"].as_str().unwrap().len()), (200, 64));
    std::fs::write(&path, "mode: shadwo\nclok: redis\n").unwrap();
    let refused = ask_with(service.admin, "POST", "/reload", &[], "");
    assert_eq!(refused.status(), 422);
    assert_eq!(json(&refused)["faults"].as_array().unwrap().len(), 2, "{refused:?}");
    let shown = json(&get(service.admin, "/config"));
    assert_eq!(
        (&shown["config"]["mode"], shown["last_refusal"]["faults"].as_array().unwrap().len()),
        (&json!("enforce"), 2)
    );
    assert!(get(service.admin, "/readyz?verbose").body.contains("[!] config warning: reload refused"));
}

#[test]
fn what_is_logged_is_changed_while_it_runs() {
    let service = Tidegate::start("drain: 0s\n");
    assert_eq!(json(&get(service.admin, "/log")), json!({"filter": "info"}));
    let bad = ask_with(service.admin, "PUT", "/log", &[], "info,tidegate::store=debgu");
    assert_eq!(bad.status(), 400, "{bad:?}");
    let told = ask_with(service.admin, "PUT", "/log", &[], "warn,tidegate::server=debug\n");
    assert_eq!(json(&told), json!({"filter": "warn,tidegate::server=debug"}));
    drop(std::net::TcpStream::connect(service.admin).map(|mut socket| socket.write_all(b"no HTTP\r\n\r\n")));
    service.wait_for_log("an admin connection broke");
}

#[test]
fn nothing_else_is_let_through() {
    let service = Tidegate::start("drain: 0s\n");
    for (method, path, allowed) in
        [("GET", "/reload", "POST"), ("POST", "/config", "GET, HEAD"), ("PUT", "/buckets/user/a", "GET, HEAD, DELETE")]
    {
        let answer = ask_with(service.admin, method, path, &[], "");
        assert_eq!(answer.status(), 405, "{method} {path}");
        assert!(answer.head.contains(&format!("allow: {allowed}")), "{answer:?}");
    }
    let page = ask_with(service.admin, "GET", "/config", &[("origin", "http://localhost")], "");
    assert_eq!(page.status(), 403, "{page:?}");
    let large = ask_with(service.admin, "POST", "/explain", &[], &"x".repeat((1 << 20) + 1));
    assert_eq!(large.status(), 413);
}

#[test]
fn explain_works_offline_on_a_file() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(REQUEST.as_bytes()).unwrap();
    let output = program(&["explain"]).arg(file.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["decision"], &told["buckets"][0]["tokens"]), (&json!("allowed"), &json!(30.0)), "{told:#}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("no Redis is configured"));
    file.as_file().set_len(3).unwrap();
    let output = program(&["explain"]).arg(file.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("is no JSON"));
}

#[test]
fn start_up_says_what_it_runs_with() {
    let service = Tidegate::start("mode: shadow\non_store_error: deny\n");
    service.wait_for_log("ready: the store answers");
    let log = service.log();
    let said = |message: &str, fields: &[(&str, &str)]| {
        let line = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut line = line.map(|line| line["fields"].clone()).filter(|fields| fields["message"] == message);
        let told = |told: &Value| fields.iter().all(|(name, value)| told[name].to_string().contains(value));
        assert!(line.any(|line| told(&line)), "no {message} with {fields:?} in\n{log}");
    };
    said("starting", &[("version", env!("CARGO_PKG_VERSION")), ("config", "/"), ("hash", "\"")]);
    said("tier", &[("tier", "free"), ("default", "true"), ("limits", "user=10@0.17/s"), ("on_store_error", "deny")]);
    said("serving", &[("listen", "127.0.0.1:"), ("store", "memory"), ("mode", "shadow"), ("on_store_error", "deny")]);
    assert!(log.lines().count() < 10, "in a few lines:\n{log}");
}
