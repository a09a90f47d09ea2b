//! What Redis says of API keys: how checks follow it, and the commands that write and show it.

use crate::support::redis::Server;
use crate::support::service::{Tidegate, check, client, program, told};
use std::io::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidegate::bucket::{Charge, Key, State, Taken};
use tidegate::config;
use tidegate::ext_authz::proto::authorization_client::AuthorizationClient;
use tidegate::ext_authz::proto::{CheckResponse, check_response::HttpResponse};
use tidegate::limiter::Limiter;
use tidegate::limiter::keys::{KeyMemory, KeyMemorySettings};
use tidegate::policy::api_key::Digester;
use tidegate::policy::decision::{FailurePolicy, Outcome};
use tidegate::policy::request::Request;
use tidegate::store::{Fields, KeyMetadata, Pending, Store, StoreError};
use tonic::transport::Channel;

const TIERS: &str = "\
identity: {user: [], key: [{header: x-api-key}]}
tiers:
  free: {per_key: {max_tokens: 2, refill_rate: 0.0001}, per_ip: {max_tokens: 1000, refill_rate: 1}}
  gold: {per_key: {max_tokens: 50, refill_rate: 1}}
";

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(future)
}

/// A service on this Redis that remembers keys for so long.
fn service(server: &Server, max_age: &str, more: &str) -> Tidegate {
    let redis = format!("redis: {{urls: ['{}'], timeout: 10s}}\nkey_metadata: {{max_age: {max_age}}}\n", server.url());
    Tidegate::start(&format!("{redis}{TIERS}{more}"))
}

async fn ask(client: &mut AuthorizationClient<Channel>, key: &str) -> CheckResponse {
    client.check(check(&[("x-api-key", key)])).await.unwrap().into_inner()
}

fn code(answer: &CheckResponse) -> i32 {
    answer.status.as_ref().unwrap().code
}

fn digest(key: &str) -> String {
    Digester::default().digest(key.as_bytes()).to_string()
}

fn entry(key: &str) -> String {
    format!("rl:apikey:{}", digest(key))
}

fn hset(server: &Server, key: &str, fields: &[&str]) {
    let _: i64 = server.run(&[&["HSET", &entry(key)][..], fields].concat());
}

/// How often a command was run, by INFO commandstats.
fn runs(server: &Server, command: &str) -> u64 {
    let stats: String = server.run(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn a_key_has_the_tier_the_name_and_the_limits_that_redis_states() {
    let server = Server::start(&[]);
    hset(&server, "sk-acme", &["tier", "Gold", "name", "acme"]);
    hset(&server, "sk-own", &["per_key.max_tokens", "7", "per_key.refill_rate", "1", "comment", "of the operator's"]);
    let service = service(&server, "1h", "");
    block_on(async {
        let mut client = client(&service).await;
        for (key, tier, name, limit) in [
            ("sk-acme", "gold", Some("acme".to_owned()), "50"),
            ("sk-own", "free", Some(digest("sk-own")), "7"),
            ("sk-unknown", "free", None, "2"),
        ] {
            for _ in 0..2 {
                let answer = ask(&mut client, key).await;
                assert_eq!(code(&answer), 0, "{key}");
                assert_eq!(told(&answer, "tier").as_deref(), Some(tier), "{key}");
                assert_eq!(told(&answer, "key_name"), name, "{key}");
                assert_eq!(told(&answer, "limit").as_deref(), Some(limit), "{key}");
            }
        }
    });
    assert_eq!(runs(&server, "hgetall"), 3, "each key was read once");
    let ttl: i64 = server.run(&["TTL", &entry("sk-acme")]);
    assert_eq!(ttl, -1, "it is the operator's, and stays");
}

#[test]
fn the_configuration_goes_before_redis_which_is_then_not_read() {
    let server = Server::start(&[]);
    hset(&server, "sk-acme", &["suspended", "1"]);
    let service = service(&server, "1h", &format!("api_keys: [{{digest: {}, tier: gold}}]\n", digest("sk-acme")));
    block_on(async {
        let answer = ask(&mut client(&service).await, "sk-acme").await;
        assert_eq!((code(&answer), told(&answer, "tier").as_deref()), (0, Some("gold")));
    });
    assert_eq!(runs(&server, "hgetall"), 0);
}

#[test]
fn with_a_size_of_0_redis_is_not_asked_for_keys() {
    let server = Server::start(&[]);
    hset(&server, "sk-acme", &["suspended", "1"]);
    let config = format!("redis: {{urls: ['{}'], timeout: 10s}}\nkey_metadata: {{size: 0}}\n{TIERS}", server.url());
    let service = Tidegate::start(&config);
    block_on(async { assert_eq!(code(&ask(&mut client(&service).await, "sk-acme").await), 0) });
    assert_eq!(runs(&server, "hgetall"), 0);
}

#[test]
fn a_suspended_key_is_denied_takes_nothing_and_is_let_in_again() {
    let server = Server::start(&[]);
    let service = service(&server, "100ms", "suspended_answer: 403\n");
    block_on(async {
        let mut client = client(&service).await;
        assert_eq!(code(&ask(&mut client, "sk-bad").await), 0);
        hset(&server, "sk-bad", &["suspended", "true", "name", "bad"]);
        let answer = loop {
            let answer = ask(&mut client, "sk-bad").await;
            if told(&answer, "decision").as_deref() == Some("suspended") {
                break answer;
            }
        };
        assert_eq!((code(&answer), told(&answer, "key_name").as_deref()), (7, Some("bad")));
        let Some(HttpResponse::DeniedResponse(denied)) = &answer.http_response else { panic!("{answer:?}") };
        assert_eq!(denied.status.as_ref().unwrap().code, 403);
        assert_eq!(denied.body, r#"{"error":"api_key_suspended"}"#);
        assert_eq!(denied.headers.len(), 1, "no retry-after and no limits: {:?}", denied.headers);

        let _: i64 = server.run(&["DEL", &format!("rl:key:{}", digest("sk-bad")), "rl:ip:192.0.2.1"]);
        for _ in 0..10 {
            assert_eq!(code(&ask(&mut client, "sk-bad").await), 7);
        }
        let buckets: Vec<String> = server.run(&["KEYS", "rl:key:*"]);
        assert_eq!(buckets, [] as [&str; 0]);

        let _: i64 = server.run(&["DEL", &entry("sk-bad")]);
        while code(&ask(&mut client, "sk-bad").await) == 7 {}
    });
}

#[test]
fn a_suspended_key_stays_denied_while_redis_is_away_and_others_follow_the_failure_policy() {
    let server = Server::start(&[]);
    hset(&server, "sk-bad", &["suspended", "1"]);
    let service = service(&server, "100ms", "on_store_error: allow\nreadiness_requires_store: false\n");
    block_on(async {
        let mut client = client(&service).await;
        assert_eq!(code(&ask(&mut client, "sk-bad").await), 7);
        server.kill();
        service.wait_for_log("serving");
        // Past its age, so that it is read again, in vain.
        while !service.log().contains("cannot read an API key's metadata") {
            assert_eq!(code(&ask(&mut client, "sk-bad").await), 7);
        }
        assert_eq!(code(&ask(&mut client, "sk-bad").await), 7);
        let answer = ask(&mut client, "sk-other").await;
        assert_eq!((code(&answer), told(&answer, "decision").as_deref()), (0, Some("degraded")));
        assert_eq!(told(&answer, "tier").as_deref(), Some("free"));
    });
}

#[test]
fn what_redis_states_and_cannot_be_followed_gives_nothing_and_is_said_with_digest_and_field() {
    let server = Server::start(&[]);
    hset(&server, "sk-odd", &["tier", "platinum", "per_key.max_tokens", "1e6", "per_key.refill_rate", "fast"]);
    let _: () = server.run(&["SET", &entry("sk-text"), "a foreign value"]);
    let service = service(&server, "1h", "");
    block_on(async {
        let mut client = client(&service).await;
        for key in ["sk-odd", "sk-text"] {
            let answer = ask(&mut client, key).await;
            assert_eq!((code(&answer), told(&answer, "tier").as_deref()), (0, Some("free")), "{key}");
            assert_eq!(told(&answer, "limit").as_deref(), Some("2"), "{key}");
        }
    });
    service.wait_for_log("cannot be followed in all");
    service.wait_for_log("cannot read an API key's metadata");
    let log = service.log();
    for part in [&*digest("sk-odd"), "tier names no tier", "per_key.refill_rate is missing or no number", "wrong_type"]
    {
        assert!(log.contains(part), "{part} is not in\n{log}");
    }
    let text: String = server.run(&["GET", &entry("sk-text")]);
    assert_eq!(text, "a foreign value");
}

/// A store that never answers, and counts how often it is asked.
#[derive(Debug, Default)]
struct Hung {
    takes: AtomicUsize,
}

impl Store for Hung {
    fn take<'a>(&'a self, _: &'a [Charge]) -> Pending<'a, Taken> {
        self.takes.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::pending())
    }

    fn peek<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken> {
        self.take(charges)
    }

    fn inspect<'a>(&'a self, _: &'a Key) -> Pending<'a, Option<State>> {
        Box::pin(std::future::pending())
    }

    fn reset<'a>(&'a self, _: &'a Key) -> Pending<'a, bool> {
        Box::pin(std::future::pending())
    }

    fn probe(&self) -> Pending<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// Answers reads with an error, or never.
#[derive(Debug)]
struct Source(Option<StoreError>);

impl KeyMetadata for Source {
    fn read<'a>(&'a self, _: &'a str) -> Pending<'a, Fields> {
        match &self.0 {
            Some(error) => Box::pin(std::future::ready(Err(error.clone()))),
            None => Box::pin(std::future::pending()),
        }
    }

    fn write<'a>(&'a self, _: &'a str, _: &'a [(&'a str, String)], _: &'a [&'a str]) -> Pending<'a, ()> {
        Box::pin(std::future::pending())
    }

    fn delete<'a>(&'a self, _: &'a str) -> Pending<'a, bool> {
        Box::pin(std::future::pending())
    }
}

/// What becomes of a check of a key that is to be read first, and how many takes it made.
fn with_a_hung_store(source: Source) -> (Outcome, usize) {
    let policy = config::parse(TIERS.as_bytes()).unwrap().policy;
    let (max_age, timeout) = (Duration::from_secs(30), Duration::from_millis(20));
    let settings = KeyMemorySettings { size: 100, max_age, timeout };
    let keys = KeyMemory::new(Arc::new(source), &policy.key_prefix, &policy.tiers, settings);
    let store = Arc::new(Hung::default());
    let limiter = Limiter::new(policy, store.clone()).with_keys(keys);
    let mut request = Request::default();
    request.headers.push((b"x-api-key", b"sk-1"));
    let snapshot = limiter.snapshot();
    let decision = block_on(limiter.check(&snapshot, &request)).decision;
    (decision.outcome, store.takes.load(Ordering::Relaxed))
}

#[test]
fn a_take_that_follows_a_read_has_what_is_left_of_the_time() {
    let failed = Outcome::Failed(FailurePolicy::Allow);
    assert_eq!(with_a_hung_store(Source(Some(StoreError::Connection("refused".into())))), (failed, 1));
}

#[test]
fn when_the_read_took_all_the_time_nothing_is_charged_any_more() {
    assert_eq!(with_a_hung_store(Source(None)), (Outcome::Failed(FailurePolicy::Allow), 0));
}

/// What a command printed, and how it ended.
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, Some(0), "{}", self.err);
        serde_json::from_str(&self.out).unwrap()
    }
}

/// Runs a command against this Redis with a configuration.
fn command(server: &Server, config: &str, arguments: &[&str], stdin: &str) -> Ran {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config).unwrap();
    let mut child = program(arguments)
        .env("TIDEGATE_CONFIG", file.path())
        .env("TIDEGATE_REDIS_URL", server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The child may end without reading.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn key_set_sets_what_is_given_leaves_the_rest_and_removes_what_is_empty() {
    let server = Server::start(&[]);
    let set =
        |more: &[&str]| command(&server, TIERS, &[&["key", "set", "--key-stdin", "--json"], more].concat(), "sk-1\n");
    let said = set(&["--tier", "GOLD", "--name", "acme", "--per-key", "500@0.5"]).json();
    assert_eq!((&said["key"], &said["digest"]), (&entry("sk-1").into(), &digest("sk-1").into()));
    let fields = serde_json::json!({
        "tier": "gold", "name": "acme", "per_key.max_tokens": "500", "per_key.refill_rate": "0.5",
    });
    assert_eq!((&said["fields"], &said["notes"]), (&fields, &serde_json::json!([])));
    let said = set(&["--suspended", "true", "--name", "", "--per-key", ""]).json();
    assert_eq!(said["fields"], serde_json::json!({"tier": "gold", "suspended": "true"}));

    let service = service(&server, "1h", "");
    block_on(async { assert_eq!(code(&ask(&mut client(&service).await, "sk-1").await), 7) });

    let by_digest = ["--digest", &digest("sk-1")];
    let run = |verb, json: &[&str]| command(&server, TIERS, &[&["key", verb][..], &by_digest, json].concat(), "");
    let shown = run("show", &[]);
    assert_eq!(shown.out, format!("{}\n  suspended             true\n  tier                  gold\n", entry("sk-1")));
    assert_eq!(run("delete", &["--json"]).json()["deleted"], true);
    assert_eq!(run("delete", &["--json"]).json()["deleted"], false);
    assert_eq!(run("show", &["--json"]).json()["stored"], false);
    let left: Vec<String> = server.run(&["KEYS", "rl:apikey:*"]);
    assert_eq!(left, [] as [&str; 0]);
}

#[test]
fn key_set_refuses_what_would_not_count_and_writes_nothing() {
    let server = Server::start(&[]);
    let digest = digest("sk-1");
    for (arguments, exit, part) in [
        (&["--tier", "platinum"][..], 1, "write one of: free, gold"),
        (&["--per-user", "10"], 2, "max_tokens@refill_rate"),
        (&["--per-user", "0@1"], 2, "max_tokens must be"),
        (&["--suspended", "yes"], 2, "true or false"),
        (&["--name", "a\nb"], 2, "control characters"),
        (&[], 2, "required"),
    ] {
        let ran = command(&server, TIERS, &[&["key", "set", "--digest", &digest], arguments].concat(), "");
        assert_eq!(ran.code, Some(exit), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(part), "{arguments:?}: {}", ran.err);
    }
    let keys: Vec<String> = server.run(&["KEYS", "*"]);
    assert_eq!(keys, [] as [&str; 0]);
}

#[test]
fn a_key_that_is_given_as_a_digest_by_mistake_is_not_repeated() {
    let server = Server::start(&[]);
    for verb in ["show", "delete", "set"] {
        let more: &[&str] = if verb == "set" { &["--tier", "gold"] } else { &[] };
        let ran = command(&server, TIERS, &[&["key", verb, "--digest", "sk-very-secret"], more].concat(), "");
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{}", ran.err);
        assert!(ran.err.contains("hash-key") && !ran.err.contains("secret"), "{}", ran.err);
    }
}

#[test]
fn key_show_says_what_does_not_count_and_what_the_configuration_says_instead() {
    let server = Server::start(&[]);
    hset(&server, "sk-1", &["teir", "gold", "tier", "platinum", "per_ip.max_tokens", "\u{1b}[31m5"]);
    let show = |config: &str, more: &[&str]| {
        command(&server, config, &[&["key", "show", "--key-stdin"], more].concat(), "sk-1")
    };
    let shown = show(TIERS, &[]).out;
    for part in [
        "note: teir means nothing here",
        "note: tier names no tier of this configuration",
        "note: per_ip.max_tokens is missing or no number",
        "note: per_ip.refill_rate is missing or no number",
    ] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    assert!(!shown.contains('\u{1b}'));
    let entry =
        format!("{{digest: {}, name: acme, tier: gold, per_key: {{max_tokens: 5, refill_rate: 1}}}}", digest("sk-1"));
    let config = format!("{TIERS}api_keys: [{entry}]\n");
    let shown = show(&config, &[]).out;
    assert!(shown.contains("api_keys of the config: name acme, tier gold, per_key 5@1\n"), "{shown}");
    assert!(shown.contains("nothing of what Redis says counts"), "{shown}");
    let json = show(&config, &["--json"]).json();
    assert_eq!(json["config"]["limits"]["per_key"]["max_tokens"], 5.0);
    let shown = show(&format!("{TIERS}key_metadata: {{size: 0}}\n"), &[]).out;
    assert!(shown.contains("key_metadata.size is 0"), "{shown}");
}

#[test]
fn a_foreign_value_is_neither_read_nor_changed_by_the_commands() {
    let server = Server::start(&[]);
    let _: () = server.run(&["SET", &entry("sk-1"), "a foreign value"]);
    for arguments in [&["show"][..], &["set", "--tier", "gold"]] {
        let ran = command(&server, TIERS, &[&["key"], arguments, &["--key-stdin"]].concat(), "sk-1");
        assert_eq!(ran.code, Some(1));
        assert!(ran.err.contains(&entry("sk-1")) && ran.err.contains("WRONGTYPE"), "{}", ran.err);
    }
    let text: String = server.run(&["GET", &entry("sk-1")]);
    assert_eq!(text, "a foreign value");
}

#[test]
fn bucket_list_shows_buckets_and_neither_metadata_nor_other_keys() {
    let server = Server::start(&[]);
    let service = service(&server, "1h", "");
    block_on(async {
        let mut client = client(&service).await;
        assert_eq!(code(&ask(&mut client, "sk-1").await), 0);
    });
    hset(&server, "sk-1", &["tier", "gold"]);
    let _: () = server.run(&["SET", "rl:text", "x"]);
    let _: i64 = server.run(&["HSET", "other:user:a", "tokens", "1"]);
    let _: i64 = server.run(&["HSET", "rl:a\u{1b}[31mb", "colour", "red"]);
    let list = |more: &[&str]| command(&server, TIERS, &[&["bucket", "list"], more].concat(), "");
    let ran = list(&["--json"]);
    let lines: Vec<serde_json::Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // What readiness asks of the store may leave a bucket, too.
    let keys: Vec<&str> =
        lines.iter().map(|line| line["key"].as_str().unwrap()).filter(|key| !key.starts_with("rl:user:~")).collect();
    assert_eq!(keys, [r"rl:a\x1b[31mb", "rl:ip:192.0.2.1", &format!("rl:key:{}", digest("sk-1"))]);
    assert_eq!(lines[0]["tokens"], serde_json::Value::Null);
    assert_eq!(lines[1]["tokens"], 999.0);
    assert!(lines[1]["ttl"].as_f64().unwrap() > 0.0 && lines[1]["last_refill"]["seconds"].is_f64(), "{}", lines[1]);
    let table = list(&[]).out;
    assert!(table.starts_with("KEY ") && table.contains("rl:ip:192.0.2.1 ") && !table.contains('\u{1b}'), "{table}");
    assert!(list(&["--prefix", "rl:*"]).err.contains("there are none"), "a prefix is no pattern");
    let other = list(&["--prefix", "other:"]).out;
    assert!(other.contains("other:user:a"), "{other}");
}

#[test]
fn bucket_list_is_bounded_and_says_when_there_is_more() {
    let server = Server::start(&[]);
    let fill = "for i = 1, 3000 do redis.call('HSET', 'rl:user:' .. i, 'tokens', i, 'last_refill', 1) end";
    let _: () = server.run(&["EVAL", fill, "0"]);
    let list = |more: &[&str]| command(&server, TIERS, &[&["bucket", "list", "--json"], more].concat(), "");
    let ran = list(&[]);
    assert_eq!((ran.code, ran.out.lines().count()), (Some(0), 100));
    assert!(ran.err.contains("more than these 100; raise --limit"), "{}", ran.err);
    let ran = list(&["--limit", "3000"]);
    assert_eq!((ran.out.lines().count(), ran.err.as_str()), (3000, ""));
    let ran = list(&["--prefix", "rl:user:299"]);
    assert_eq!((ran.out.lines().count(), ran.err.as_str()), (11, ""));
    assert_eq!(list(&["--limit", "0"]).code, Some(2));
    assert_eq!(runs(&server, "keys"), 0);
}
