//! The running service: start, health, what it logs, drain; and the commands that look into its Redis.

use crate::support::redis::Server;
use crate::support::service::{Tidegate, check, program};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tidegate::ext_authz::SERVICE;
use tidegate::ext_authz::metadata;
use tidegate::ext_authz::proto::authorization_client::AuthorizationClient;
use tidegate::ext_authz::proto::{CheckResponse, TextEntry, value::Kind};
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(future)
}

async fn connect(service: &Tidegate) -> Channel {
    Endpoint::from_shared(format!("http://{}", service.address)).unwrap().connect().await.unwrap()
}

async fn health(channel: &Channel, service: &str) -> ServingStatus {
    let request = HealthCheckRequest { service: service.into() };
    HealthClient::new(channel.clone()).check(request).await.unwrap().into_inner().status()
}

/// Waits until a service's health is `wanted`: the stream tells every change, so this is no polling.
async fn until(channel: &Channel, service: &str, wanted: ServingStatus) {
    let request = HealthCheckRequest { service: service.into() };
    let mut changes = HealthClient::new(channel.clone()).watch(request).await.unwrap().into_inner();
    while changes.message().await.unwrap().unwrap().status() != wanted {}
}

fn code(answer: &CheckResponse) -> i32 {
    answer.status.as_ref().unwrap().code
}

/// What the access log would show under a name.
fn told(answer: &CheckResponse, name: &str) -> Option<Kind> {
    let fields = metadata::read(answer).unwrap().fields;
    fields.into_iter().find(|field| field.key == name)?.value?.kind
}

fn text(text: &'static str) -> Option<Kind> {
    Some(Kind::StringValue(text.into()))
}

/// The lines of a log with this message, as JSON.
fn lines(log: &str, message: &str) -> Vec<serde_json::Value> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    lines.filter(|line| line["fields"]["message"].as_str().is_some_and(|text| text.contains(message))).collect()
}

/// How many lines may be said of a storm that took so long: the first, then one a second.
fn once_a_second(elapsed: Duration) -> usize {
    // The service counts in whole milliseconds.
    1 + (elapsed + Duration::from_millis(10)).as_secs() as usize
}

#[test]
fn on_memory_it_is_alive_and_ready_and_drains_on_sigterm() {
    let mut service = Tidegate::start("drain: 200ms\n");
    block_on(async {
        let channel = connect(&service).await;
        for name in ["", "liveness"] {
            assert_eq!(health(&channel, name).await, ServingStatus::Serving, "{name}");
        }
        for name in [SERVICE, "readiness"] {
            until(&channel, name, ServingStatus::Serving).await;
        }
        let unknown = HealthCheckRequest { service: "unknown".into() };
        assert!(HealthClient::new(channel.clone()).check(unknown).await.is_err());

        service.signal("TERM");
        until(&channel, SERVICE, ServingStatus::NotServing).await;
        assert_eq!(health(&channel, "").await, ServingStatus::Serving, "it still runs while it drains");
        let answer = AuthorizationClient::new(channel).check(check(&[])).await.unwrap().into_inner();
        assert_eq!(answer.status.unwrap().code, 0, "a check during the drain is answered");
    });
    assert_eq!(service.wait(), Some(0));
}

#[test]
fn a_second_signal_stops_at_once() {
    let mut service = Tidegate::start("drain: 5m\n");
    service.signal("TERM");
    service.wait_for_log("draining");
    service.signal("INT");
    assert_eq!(service.wait(), Some(0));
    // The last words may be read after the end is known.
    service.wait_for_log("a second signal");
}

#[test]
fn without_redis_it_starts_follows_the_policy_and_is_ready_when_redis_comes() {
    let server = Server::start(&[]);
    let url = server.url();
    let place = server.kill();
    let service = Tidegate::start(&format!("redis: {{urls: ['{url}'], timeout: 1s}}\non_store_error: deny\n"));
    block_on(async {
        let channel = connect(&service).await;
        assert_eq!(health(&channel, "").await, ServingStatus::Serving);
        assert_eq!(health(&channel, SERVICE).await, ServingStatus::NotServing);
        let mut client = AuthorizationClient::new(channel.clone());
        let answer = client.check(check(&[])).await.unwrap().into_inner();
        assert_eq!(answer.status.unwrap().code, 14);
        service.wait_for_log("an outage begins");

        let _server = Server::back(&place);
        until(&channel, SERVICE, ServingStatus::Serving).await;
        let answer = client.check(check(&[])).await.unwrap().into_inner();
        assert_eq!(answer.status.unwrap().code, 0);
    });
    service.wait_for_log("ready: the store answers");
    let log = service.log();
    let told = lines(&log, "not ready: the store fails; checks follow on_store_error until it answers");
    assert_eq!((told.len(), lines(&log, "ready: the store answers").len()), (1, 1), "{log}");
    assert_eq!(
        (&told[0]["fields"]["kind"], &told[0]["fields"]["on_store_error"]),
        (&"connection".into(), &"deny".into())
    );
}

#[test]
fn a_replica_that_does_not_need_the_store_is_ready_without_it_and_says_so_once() {
    let server = Server::start(&[]);
    let url = server.url();
    let place = server.kill();
    let config = format!("redis: {{urls: ['{url}'], timeout: 1s}}\nreadiness_requires_store: false\n");
    let service = Tidegate::start(&config);
    block_on(async {
        let channel = connect(&service).await;
        assert_eq!(health(&channel, SERVICE).await, ServingStatus::Serving, "from the start");
        service.wait_for_log("ready, but the store fails");
        assert_eq!(health(&channel, SERVICE).await, ServingStatus::Serving);
    });
    let _server = Server::back(&place);
    service.wait_for_log("ready: the store answers");
    assert_eq!(lines(&service.log(), "ready, but the store fails").len(), 1);
}

#[test]
fn it_is_ready_no_longer_when_redis_goes_and_still_alive() {
    let server = Server::start(&[]);
    let service = Tidegate::start(&format!("redis: {{urls: ['{}'], timeout: 10s}}\n", server.url()));
    block_on(async {
        let channel = connect(&service).await;
        until(&channel, SERVICE, ServingStatus::Serving).await;
        server.kill();
        for name in [SERVICE, "readiness"] {
            until(&channel, name, ServingStatus::NotServing).await;
        }
        for name in ["", "liveness"] {
            assert_eq!(health(&channel, name).await, ServingStatus::Serving, "{name}");
        }
    });
}

#[test]
fn in_shadow_mode_it_denies_nothing_and_tells_what_it_would_have() {
    let service = Tidegate::start("mode: shadow\ntiers: {free: {per_ip: {max_tokens: 1, refill_rate: 0.0001}}}\n");
    block_on(async {
        let mut client = AuthorizationClient::new(connect(&service).await);
        for decision in ["allowed", "denied", "denied"] {
            let answer = client.check(check(&[])).await.unwrap().into_inner();
            assert_eq!(code(&answer), 0, "{answer:?}");
            assert_eq!(told(&answer, "decision"), text(decision));
            assert_eq!(told(&answer, "shadow"), Some(Kind::BoolValue(true)));
        }
    });
}

#[test]
fn a_user_that_the_configuration_names_has_the_tier_it_says() {
    let quota = |tokens| format!("{{per_user: {{max_tokens: {tokens}, refill_rate: 0.0001}}}}");
    let service = Tidegate::start(&format!(
        "identity: {{user: [{{header: x-user}}]}}\ntiers: {{free: {}, gold: {}}}\nusers: [{{id: alice, tier: gold}}]\n",
        quota(1),
        quota(3)
    ));
    block_on(async {
        let mut client = AuthorizationClient::new(connect(&service).await);
        for (user, tier, passing) in [("alice", "gold", 3), ("bob", "free", 1)] {
            for request in 0..5 {
                let answer = client.check(check(&[("x-user", user)])).await.unwrap().into_inner();
                assert_eq!(code(&answer) == 0, request < passing, "{user}, request {request}");
                assert_eq!(told(&answer, "tier"), text(tier));
            }
        }
    });
}

#[test]
fn a_cost_of_envoys_that_is_no_number_is_said_once_and_not_for_each_request() {
    let mut service = Tidegate::start("drain: 0s\n");
    let mut request = check(&[]);
    let cost = TextEntry { key: "tidegate.cost".into(), value: "many".into() };
    request.attributes.as_mut().unwrap().context_extensions.push(cost);
    let begun = Instant::now();
    block_on(async {
        let mut client = AuthorizationClient::new(connect(&service).await);
        for place in 0..5 {
            let answer = client.check(request.clone()).await.unwrap().into_inner();
            assert_eq!(code(&answer), 0, "request {place} is charged as if nothing was said");
        }
    });
    let most = once_a_second(begun.elapsed());
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
    service.wait_for_log("\"stopped\"");
    let said = lines(&service.log(), "cannot follow Envoy's context_extensions");
    assert!((1..=most).contains(&said.len()), "{said:?}");
    assert_eq!(said[0]["fields"]["oddity"], "BadCost");
}

#[test]
fn an_outage_is_one_line_when_it_begins_and_one_when_it_ends_that_counts_its_answers() {
    const STORM: u64 = 200;
    let server = Server::start(&[]);
    let url = server.url();
    let place = server.kill();
    let service = Tidegate::start(&format!("redis: {{urls: ['{url}'], timeout: 1s}}\n"));
    let said = |text| lines(&service.log(), text);
    let degraded = block_on(async {
        let mut client = AuthorizationClient::new(connect(&service).await);
        let mut degraded = 0;
        for _ in 0..STORM {
            let answer = client.check(check(&[])).await.unwrap().into_inner();
            assert_eq!(code(&answer), 0, "on_store_error is allow");
            degraded += u64::from(told(&answer, "degraded").is_some());
        }
        assert_eq!(degraded, STORM);
        service.wait_for_log("an outage begins");
        let _server = Server::back(&place);
        let begun = Instant::now();
        while said("the outage is over").is_empty() {
            let answer = client.check(check(&[])).await.unwrap().into_inner();
            degraded += u64::from(told(&answer, "degraded").is_some());
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", service.log());
        }
        degraded
    });
    let (begins, ends) = (said("an outage begins"), said("the outage is over"));
    assert_eq!((begins.len(), ends.len()), (1, 1), "{}", service.log());
    assert_eq!((&begins[0]["level"], &begins[0]["fields"]["kind"]), (&"ERROR".into(), &"connection".into()));
    assert_eq!(begins[0]["fields"]["on_store_error"], "allow");
    assert_eq!(ends[0]["fields"]["degraded"].as_u64(), Some(degraded));
}

#[test]
fn while_redis_is_away_each_replica_admits_its_share_and_redis_counts_when_it_is_back() {
    let server = Server::start(&[]);
    let quota = "{max_tokens: 4, refill_rate: 0.0001}";
    let config = format!(
        "redis: {{urls: ['{}'], timeout: 1s}}\non_store_error: local\nreplicas_hint: 2\n\
         identity: {{user: [{{header: x-user}}]}}\ntiers: {{free: {{per_user: {quota}}}}}\n",
        server.url()
    );
    let fleet = [(); 2].map(|()| Tidegate::start(&config));
    block_on(async {
        let mut clients = Vec::new();
        for service in &fleet {
            clients.push(AuthorizationClient::new(connect(service).await));
        }
        server.signal("STOP");
        for client in &mut clients {
            for decision in ["allowed", "allowed", "denied"] {
                let answer = client.check(check(&[("x-user", "alice")])).await.unwrap().into_inner();
                assert_eq!(told(&answer, "decision"), text(decision), "{answer:?}");
                assert_eq!(told(&answer, "degraded"), Some(Kind::BoolValue(true)));
                // Readiness asks too, so the breaker may open at any of these; and connecting may be given up as soon.
                let why = told(&answer, "store_error");
                assert!(["timeout", "connection", "breaker_open"].map(text).contains(&why), "{why:?}");
                assert_eq!(told(&answer, "limit"), Some(Kind::NumberValue(2.0)));
            }
        }
        let place = server.kill();
        for client in &mut clients {
            let answer = client.check(check(&[("x-user", "alice")])).await.unwrap().into_inner();
            assert_eq!(told(&answer, "decision"), text("denied"), "gone or frozen, it is one outage");
        }

        let _server = Server::back(&place);
        let mut decisions = Vec::new();
        let begun = Instant::now();
        while decisions.len() < 6 {
            let answer = clients[decisions.len() % 2].check(check(&[("x-user", "bob")])).await.unwrap().into_inner();
            if told(&answer, "degraded").is_none() {
                decisions.push(told(&answer, "decision"));
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{decisions:?}");
        }
        assert_eq!(decisions, ["allowed", "allowed", "allowed", "allowed", "denied", "denied"].map(text));
    });
}

#[test]
fn one_outage_is_a_503_to_one_tier_and_nothing_to_another() {
    let server = Server::start(&[]);
    let quota = "per_user: {max_tokens: 9, refill_rate: 1}";
    let service = Tidegate::start(&format!(
        "redis: {{urls: ['{}'], timeout: 1s}}\nidentity: {{user: [{{header: x-user}}], tier: [{{header: x-tier}}]}}\n\
         tiers:\n  free: {{{quota}, on_store_error: deny}}\n  enterprise: {{{quota}, on_store_error: allow}}\n",
        server.url()
    ));
    server.kill();
    block_on(async {
        let mut client = AuthorizationClient::new(connect(&service).await);
        for (tier, wanted, decision) in [("free", 14, "unavailable"), ("enterprise", 0, "degraded")].repeat(3) {
            let answer = client.check(check(&[("x-user", "alice"), ("x-tier", tier)])).await.unwrap().into_inner();
            assert_eq!(code(&answer), wanted, "{tier}: {answer:?}");
            assert_eq!(told(&answer, "decision"), text(decision));
        }
    });
}

#[test]
fn a_key_that_holds_something_else_is_said_at_most_once_a_second_and_is_no_outage() {
    const STORM: u64 = 200;
    let server = Server::start(&[]);
    let () = server.run(&["SET", "rl:ip:192.0.2.1", "not a bucket"]);
    let service = Tidegate::start(&format!("redis: {{urls: ['{}'], timeout: 10s}}\n", server.url()));
    let said = || lines(&service.log(), "holds a foreign value");
    // Each line stands for itself and for those that were left unsaid before it.
    let counted = || said().iter().map(|line| 1 + line["fields"]["more"].as_u64().unwrap()).sum::<u64>();
    let begun = Instant::now();
    let sent = block_on(async {
        let mut client = AuthorizationClient::new(connect(&service).await);
        let mut sent = 0;
        while sent < STORM || counted() < STORM {
            let answer = client.check(check(&[])).await.unwrap().into_inner();
            assert_eq!(told(&answer, "store_error"), text("wrong_type"));
            sent += 1;
            assert!(begun.elapsed() < Duration::from_secs(60), "of {sent} failures {} are counted", counted());
        }
        sent
    });
    let (most, said) = (once_a_second(begun.elapsed()), said());
    assert!(said.len() <= most, "{} lines in {:?}", said.len(), begun.elapsed());
    assert!(counted() <= sent, "{} of {sent}", counted());
    assert!(!service.log().contains("an outage"), "{}", service.log());
}

#[test]
fn a_password_in_the_url_that_redis_refuses_is_in_no_log() {
    const PASSWORD: &str = "s3cret-of-the-url";
    let server = Server::start(&["--requirepass", "another"]);
    for user in ["", "default"] {
        let url = format!("redis://{user}:{PASSWORD}@127.0.0.1:{}", server.port());
        let config = format!("redis: {{urls: ['{url}'], timeout: 10s}}\n");
        let service = Tidegate::start_with(&config, &[("TIDEGATE_LOG", "trace")]);
        block_on(async {
            let mut client = AuthorizationClient::new(connect(&service).await);
            let answer = client.check(check(&[])).await.unwrap().into_inner();
            assert!(!format!("{answer:?}").contains(PASSWORD));
        });
        for line in ["not ready: the store fails", "an outage begins", "redis refused the credentials"] {
            service.wait_for_log(line);
        }
        let log = service.log();
        assert!(log.contains("\"TRACE\""), "the log is as fine as asked");
        assert!(!log.contains(PASSWORD) && !log.contains("s3cret"), "{log}");
    }
}

#[test]
fn an_api_key_is_in_no_log_at_any_level_and_in_no_redis_key() {
    const KEY: &str = "sk-very-secret-1234567890";
    let server = Server::start(&[]);
    let config = format!("redis: {{urls: ['{}'], timeout: 10s}}\n", server.url());
    let environment = [("TIDEGATE_LOG", "trace"), ("TIDEGATE_KEY_PEPPER", "pepper-of-the-test")];
    let service = Tidegate::start_with(&config, &environment);
    block_on(async {
        let mut client = AuthorizationClient::new(connect(&service).await);
        for _ in 0..20 {
            let answer = client.check(check(&[("x-api-key", KEY)])).await.unwrap().into_inner();
            assert!(!format!("{answer:?}").contains(KEY));
        }
    });
    let keys: Vec<String> = server.run(&["KEYS", "*"]);
    assert!(keys.iter().any(|key| key.starts_with("rl:key:")), "{keys:?}");
    for key in &keys {
        let stored: Vec<String> = server.run(&["HGETALL", key]);
        assert!(!key.contains("secret") && !stored.concat().contains("secret"));
    }
    let log = service.log();
    assert!(log.contains("\"TRACE\""), "the log is as fine as asked");
    for secret in [KEY, "very-secret", "pepper-of-the-test"] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

#[test]
fn a_port_that_is_taken_is_said() {
    let service = Tidegate::start("drain: 0s\n");
    let address = service.address.to_string();
    let output = tidegate(&["serve", "--listen", &address], &[], "");
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains(&format!("cannot listen on {address}: ")), "{told}");
}

#[test]
fn a_unix_socket_that_nobody_listens_on_is_replaced_and_one_in_use_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listen = format!("unix:{}", path.display());
    let mut service = Tidegate::start_on(&listen, "drain: 0s\n", &[]);
    let output = tidegate(&["serve", "--listen", &listen], &[], "");
    assert_eq!(output.status.code(), Some(1));
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
    assert!(!path.exists(), "the socket is removed");

    std::fs::write(&path, "a file").unwrap();
    let output = tidegate(&["serve", "--listen", &listen], &[], "");
    assert!(String::from_utf8(output.stderr).unwrap().contains("is no socket"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
}

fn tidegate(arguments: &[&str], environment: &[(&str, &str)], stdin: &str) -> Output {
    let mut child = program(arguments)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn bucket_show_and_reset_name_buckets_as_the_service_does() {
    const PASSWORD: &str = "pass/word";
    let server = Server::start(&["--requirepass", PASSWORD]);
    let environment = [("TIDEGATE_REDIS_PASSWORD", PASSWORD), ("TIDEGATE_REDIS_URL", &server.url())];
    let service = Tidegate::start_with(
        "redis: {urls: ['redis://x'], timeout: 10s}\nidentity: {user: [{header: x-user}]}\n",
        &environment,
    );
    let headers = [("x-user", "a b"), ("x-api-key", "sk-1")];
    block_on(async {
        let mut client = AuthorizationClient::new(connect(&service).await);
        assert_eq!(client.check(check(&headers)).await.unwrap().into_inner().status.unwrap().code, 0);
    });
    let bucket = |verb, which: &[&str], stdin| {
        let arguments = [&["bucket", verb, "--json"][..], which].concat();
        let output = tidegate(&arguments, &environment, stdin);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    for (which, stdin) in [(&["--user", "a b"][..], ""), (&["--key-stdin"], "sk-1\n"), (&["--ip", "192.0.2.1"], "")] {
        let shown = bucket("show", which, stdin);
        assert_eq!(shown["stored"], true, "{shown}");
        assert_eq!(bucket("reset", which, stdin)["reset"], true);
        assert_eq!(bucket("reset", which, stdin)["reset"], false);
        assert_eq!(bucket("show", which, stdin)["stored"], false);
    }

    let wrong = [("TIDEGATE_REDIS_PASSWORD", "wr0ng-secret"), environment[1]];
    let output = tidegate(&["bucket", "show", "--user", "a"], &wrong, "");
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("redis refused the credentials") && !told.contains("wr0ng-secret"), "{told}");
}

#[test]
fn a_lost_reader_of_the_log_is_no_reason_to_end() {
    let mut child = program(&["serve", "--listen", "127.0.0.1:0"])
        .env("TIDEGATE_LOG_FORMAT", "json")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let serving = lines.by_ref().map(Result::unwrap).find(|line| line.contains("\"serving\"")).unwrap();
    drop(lines);
    let serving: serde_json::Value = serde_json::from_str(&serving).unwrap();
    let address = serving["fields"]["listen"].as_str().unwrap().to_owned();
    let signal = |name: &str| {
        let status = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
        assert!(status.success());
    };
    // It says something of this, to nobody.
    signal("HUP");
    block_on(async {
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let answer = AuthorizationClient::new(channel.clone()).check(check(&[])).await.unwrap().into_inner();
        assert_eq!(answer.status.unwrap().code, 0);
        signal("TERM");
        until(&channel, SERVICE, ServingStatus::NotServing).await;
        signal("TERM");
    });
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn an_ending_process_leaves_the_socket_of_its_successor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.sock");
    let listen = format!("unix:{}", path.display());
    let mut first = Tidegate::start_on(&listen, "drain: 0s\n", &[]);
    std::fs::remove_file(&path).unwrap();
    let _second = Tidegate::start_on(&listen, "drain: 0s\n", &[]);
    first.signal("TERM");
    assert_eq!(first.wait(), Some(0));
    assert!(path.exists() && std::os::unix::net::UnixStream::connect(&path).is_ok());
}

#[test]
fn a_redis_that_answers_pings_and_refuses_takes_is_not_ready() {
    let server = Server::start(&[]);
    let () = server.run(&["REPLICAOF", "127.0.0.1", "1"]);
    let service = Tidegate::start(&format!("redis: {{urls: ['{}'], timeout: 10s}}\n", server.url()));
    block_on(async {
        let channel = connect(&service).await;
        service.wait_for_log("not ready");
        assert_eq!(health(&channel, SERVICE).await, ServingStatus::NotServing);
        let () = server.run(&["REPLICAOF", "NO", "ONE"]);
        until(&channel, SERVICE, ServingStatus::Serving).await;
    });
}
