//! The audit trail of the running service: what is told, where, and what happens to checks when nobody takes it.

mod commands;

use crate::support::admin::get;
use crate::support::cluster::{Cluster, Coverage};
use crate::support::eventually;
use crate::support::redis::Server;
use crate::support::service::{Tidegate, block_on, check, client};
use serde_json::json;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tidegate::audit::{Audit, Settings, SinkSettings};
use tidegate::bucket::{Dimension, Key};
use tidegate::ext_authz::metadata;
use tidegate::ext_authz::proto::{CheckRequest, CheckResponse, value::Kind};
use tidegate::metrics::Metrics;
use tidegate::policy::api_key::Digester;

type Json = serde_json::Value;

const KEY: &str = "sk-very-secret-1234567890";

/// One token for each user, and none that flows in.
const STINGY: &str = "drain: 0s\nidentity: {user: [{header: x-user}]}\n\
                      tiers: {free: {per_user: {max_tokens: 1, refill_rate: 0.0001}}}\n";

/// Asks one after the other.
fn ask(service: &Tidegate, requests: impl IntoIterator<Item = CheckRequest>) -> Vec<CheckResponse> {
    block_on(async {
        let mut client = client(service).await;
        let mut answers = Vec::new();
        for request in requests {
            answers.push(client.check(request).await.unwrap().into_inner());
        }
        answers
    })
}

fn denied(answers: &[CheckResponse]) -> u64 {
    answers.iter().filter(|answer| answer.status.as_ref().unwrap().code != 0).count() as u64
}

/// A POST to a path of api.example.com.
fn post(headers: &[(&str, &str)], path: &str) -> CheckRequest {
    let mut request = check(headers);
    let http = request.attributes.as_mut().unwrap().request.as_mut().unwrap().http.as_mut().unwrap();
    (http.method, http.host) = ("POST".into(), "api.example.com".into());
    http.path = path.as_bytes().to_vec().into();
    request
}

fn from(user: &str) -> CheckRequest {
    post(&[("x-user", user)], "/v1/chat/completions")
}

/// The service with its standard output read by nobody but the test.
fn start(config: &str) -> Tidegate {
    Tidegate::start_printing(Stdio::piped(), "127.0.0.1:0", config, &[("TIDEGATE_REPLICA", "pod-7")])
}

/// What a process has printed so far.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<String>>>);

impl Printed {
    fn by(service: &mut Tidegate) -> Self {
        let (printed, lines) = (Self::default(), BufReader::new(service.stdout()).lines());
        let sink = printed.clone();
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| sink.0.lock().unwrap().push(line)));
        printed
    }

    fn text(&self) -> String {
        self.0.lock().unwrap().iter().fold(String::new(), |text, line| text + line + "\n")
    }

    /// The events, when there are so many.
    fn events(&self, count: usize) -> Vec<Json> {
        eventually(&format!("{count} events are printed"), || {
            let events = events(&self.text());
            (events.len() >= count).then_some(events)
        })
    }
}

/// The lines of a trail, each of which fits the schema.
fn events(text: &str) -> Vec<Json> {
    static SCHEMA: OnceLock<jsonschema::Validator> = OnceLock::new();
    let schema = SCHEMA.get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/audit.schema.json");
        jsonschema::validator_for(&serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()).unwrap()
    });
    // The last line may be on its way.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let read = |line: &str| -> Json {
        let event = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        let faults: Vec<String> = schema.iter_errors(&event).map(|error| error.to_string()).collect();
        assert!(faults.is_empty(), "{faults:?}: {line}");
        event
    };
    whole.lines().map(read).collect()
}

/// How many requests events stand for.
fn times(events: &[Json]) -> u64 {
    events.iter().map(|event| event["count"].as_u64().unwrap_or(1)).sum()
}

/// What a sink has, will never have, and is yet to get.
#[derive(Debug, PartialEq, Eq)]
struct Account {
    written: u64,
    dropped: u64,
    waiting: u64,
}

fn account(service: &Tidegate, sink: &str) -> Account {
    let told = get(service.admin, "/metrics");
    let of = |name: &str| told.value(&format!("tidegate_audit_{name}{{sink=\"{sink}\"}}"));
    Account { written: of("written_total"), dropped: of("dropped_total"), waiting: of("queue_length") }
}

/// Waits until nothing waits, and says what was written and what dropped.
fn settled(service: &Tidegate, sink: &str, total: u64) -> (u64, u64) {
    eventually(&format!("{total} events are written to {sink} or dropped"), || {
        let Account { written, dropped, waiting } = account(service, sink);
        (waiting == 0 && written + dropped == total).then_some((written, dropped))
    })
}

/// How many lines of the log say something.
fn said(service: &Tidegate, text: &str) -> usize {
    service.log().lines().filter(|line| line.contains(text)).count()
}

const FAILS: &str = "the audit trail cannot be written";
const WORKS: &str = "the audit trail is written again";

/// Some fields of an event; null where there is none.
fn fields(event: &Json, names: &[&str]) -> Json {
    names.iter().map(|name| event[*name].clone()).collect()
}

/// An event without what differs from run to run.
fn timeless(mut event: Json) -> Json {
    event.as_object_mut().unwrap().retain(|name, _| !["time", "first", "last"].contains(&name.as_str()));
    event
}

#[test]
fn a_denial_is_told_with_who_what_and_why() {
    let rules = "rules: [{name: chat, match: {path: {prefix: /v1/chat}}}]\n";
    let mut service = start(&format!("{STINGY}{rules}audit: {{sinks: [stdout]}}\n"));
    let printed = Printed::by(&mut service);
    let request = || post(&[("x-user", "alice"), ("x-request-id", "5b1f")], "/v1/chat/completions?key=hunter2#top");
    let answers = ask(&service, [request(), request()]);
    assert_eq!(denied(&answers), 1);
    let event = printed.events(1).remove(0);
    let retry_after = event["retry_after"].as_u64().unwrap();
    let expected = json!({
        "v": 1, "event": "denied", "replica": "pod-7", "reason": "exhausted", "tier": "free", "dimension": "user",
        "identity": "alice", "limit": 1, "remaining": 0, "retry_after": retry_after, "cost": 1, "rule": "chat",
        "source": "store", "method": "POST", "host": "api.example.com", "path": "/v1/chat/completions",
        "request_id": "5b1f",
    });
    assert_eq!(timeless(event), expected);
    assert!(format!("{:?}", answers[1]).contains(&format!("\"retry_after\\\":{retry_after}")), "{answers:?}");
    assert!(!printed.text().contains("hunter2"), "a query may hold a secret");
    assert!(service.log().contains("\"replica\":\"pod-7\""), "the log says that there is a trail");
}

#[test]
fn a_cost_that_never_fits_is_told_as_that() {
    let rules = "rules: [{name: dear, match: {path: {prefix: /dear}}, dimensions: [user]}]\n";
    let mut service = start(&format!("{STINGY}{rules}audit: {{sinks: [stdout]}}\n"));
    let printed = Printed::by(&mut service);
    let mut request = post(&[("x-user", "alice")], "/dear");
    let cost = tidegate::ext_authz::proto::TextEntry { key: "tidegate.cost".into(), value: "2.5".into() };
    request.attributes.as_mut().unwrap().context_extensions.push(cost);
    ask(&service, [request]);
    let event = printed.events(1).remove(0);
    let told = fields(&event, &["reason", "identity", "limit", "remaining", "cost"]);
    assert_eq!(told, json!(["never_fits", "alice", 1, 0, 2.5]));
}

#[test]
fn repeats_are_counted_exactly_and_make_few_lines() {
    const EACH: u64 = 300;
    let mut service = start(&format!("{STINGY}audit: {{sinks: [stdout], fold: 1s}}\n"));
    let printed = Printed::by(&mut service);
    let users = ["alice", "bob"];
    let answers = ask(&service, (0..EACH).flat_map(|_| users.map(from)));
    let total = denied(&answers);
    assert_eq!(total, 2 * (EACH - 1));
    let events = eventually("all are told", || {
        let events = events(&printed.text());
        (times(&events) >= total).then_some(events)
    });
    assert_eq!(times(&events), total);
    for user in users {
        let own: Vec<Json> = events.iter().filter(|event| event["identity"] == user).cloned().collect();
        assert_eq!(times(&own), EACH - 1);
        assert!(own.len() < 100, "{} lines", own.len());
        assert_eq!(own[0].get("count"), None, "the first is told at once");
        let fold = own.iter().find(|event| event["count"].is_u64()).unwrap();
        assert!(fold["first"].as_str() <= fold["last"].as_str() && fold["last"].as_str() <= fold["time"].as_str());
    }
    assert_eq!(get(service.admin, "/metrics").value("tidegate_audit_events_total{event=\"denied\"}"), total);
    assert_eq!(settled(&service, "stdout", total), (total, 0));
}

#[test]
fn what_is_still_counted_when_the_process_ends_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.jsonl");
    let mut service =
        start(&format!("{STINGY}audit: {{sinks: [stdout, {{file: {{path: {}}}}}], fold: 5m}}\n", file.display()));
    let printed = Printed::by(&mut service);
    let total = denied(&ask(&service, (0..50).map(|_| from("alice"))));
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
    let written = events(&fs::read_to_string(file).unwrap());
    assert_eq!((written.len(), times(&written), total), (2, 49, 49));
    assert_eq!(printed.events(2), written);
    assert!(!service.log().contains("not written to its end"), "{}", service.log());
}

#[test]
fn what_passes_is_not_told_and_in_shadow_mode_what_would_not_have_passed_is() {
    let mut service = start(&format!("{STINGY}mode: shadow\naudit: {{sinks: [stdout], fold: 0s}}\n"));
    let printed = Printed::by(&mut service);
    assert_eq!(denied(&ask(&service, ["alice", "alice", "bob", "bob"].map(from))), 0);
    assert_eq!(settled(&service, "stdout", 2), (2, 0));
    let told: Vec<Json> =
        printed.events(2).iter().map(|event| fields(event, &["event", "reason", "identity"])).collect();
    let of = |user| json!(["shadow_denied", "exhausted", user]);
    assert_eq!(told, [of("alice"), of("bob")]);
}

#[test]
fn a_suspended_key_is_told_by_its_digest_and_a_key_never_by_itself() {
    let (digester, key) = (Digester::new(Some(b"pepper")), KEY.as_bytes());
    let digest = digester.digest(key).to_string();
    let config = format!(
        "drain: 0s\nidentity: {{user: [], key_pepper: pepper}}\naudit: {{sinks: [stdout], fold: 0s}}\n\
         tiers: {{free: {{per_key: {{max_tokens: 1, refill_rate: 0.0001}}}}}}\n\
         api_keys: [{{digest: {digest}, suspended: true}}]\n"
    );
    let mut service = start(&config);
    let printed = Printed::by(&mut service);
    let another = format!("{KEY}-too");
    let with = |key: &str| post(&[("x-api-key", key), ("authorization", key)], "/");
    ask(&service, [with(KEY), with(&another), with(&another)]);
    let told: Vec<Json> =
        printed.events(2).iter().map(|event| fields(event, &["reason", "dimension", "identity"])).collect();
    let other = digester.digest(another.as_bytes()).to_string();
    let of = |reason, digest: String| json!([reason, "key", digest]);
    assert_eq!(told, [of("suspended", digest), of("exhausted", other)]);
    assert!(!printed.text().contains("very-secret") && !service.log().contains("very-secret"));
}

#[test]
fn an_outage_makes_few_lines_however_many_ask() {
    const USERS: usize = 400;
    let server = Server::start(&[]);
    let url = server.url();
    server.kill();
    let tier = |policy| format!("{{per_user: {{max_tokens: 9, refill_rate: 1}}, on_store_error: {policy}}}");
    let mut service = start(&format!(
        "drain: 0s\nredis: {{urls: ['{url}'], timeout: 1s}}\n\
         identity: {{user: [{{header: x-user}}], tier: [{{header: x-tier}}]}}\n\
         tiers: {{free: {}, gold: {}}}\naudit: {{sinks: [stdout], fold: 30s}}\n",
        tier("deny"),
        tier("allow")
    ));
    let printed = Printed::by(&mut service);
    let users: Vec<String> = (0..USERS).map(|user| format!("user-{user}")).collect();
    let requests = users
        .iter()
        .enumerate()
        .map(|(place, user)| post(&[("x-user", user), ("x-tier", ["free", "gold"][place % 2])], "/"));
    assert_eq!(denied(&ask(&service, requests)), USERS as u64 / 2);
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
    let told = eventually("all are told", || {
        let told = events(&printed.text());
        (times(&told) == USERS as u64).then_some(told)
    });
    // Twice for each tier and each way to fail: refused, not connected to, the breaker.
    assert!(told.len() <= 2 * 2 * 3, "{told:#?}");
    let (free, gold): (Vec<Json>, Vec<Json>) = told.into_iter().partition(|event| event["tier"] == "free");
    assert_eq!((times(&free), times(&gold)), (USERS as u64 / 2, USERS as u64 / 2));
    let all = |events: &[Json], name: &str, value: &str| events.iter().all(|event| event[name] == value);
    assert!(all(&free, "event", "denied") && all(&free, "reason", "unavailable") && all(&free, "policy", "deny"));
    assert!(all(&gold, "event", "degraded") && all(&gold, "policy", "allow"), "{gold:#?}");
    assert!(!printed.text().contains("user-"), "nobody in particular is concerned");
}

#[test]
fn what_local_buckets_deny_is_told_with_the_caller_and_the_outage() {
    let server = Server::start(&[]);
    let url = server.url();
    server.kill();
    let mut service = start(&format!(
        "{STINGY}redis: {{urls: ['{url}'], timeout: 1s}}\non_store_error: local\nreplicas_hint: 1\n\
         audit: {{sinks: [stdout], fold: 0s}}\n"
    ));
    let printed = Printed::by(&mut service);
    assert_eq!(denied(&ask(&service, ["alice", "alice"].map(from))), 1);
    let events = printed.events(2);
    let told = |event| fields(event, &["event", "policy", "source", "identity"]);
    assert_eq!(told(&events[0]), json!(["degraded", "local", null, null]));
    assert_eq!(told(&events[1]), json!(["denied", "local", "local", "alice"]));
}

#[test]
fn whatever_a_client_writes_an_event_is_one_line_of_what_can_be_read() {
    let mut service = start(&format!("{STINGY}audit: {{sinks: [stdout], fold: 0s}}\n"));
    let printed = Printed::by(&mut service);
    let forged =
        "x\n{\"v\":1,\"event\":\"denied\"}\r\n\"'\\\u{1b}[2J\u{1b}]0;owned\u{7}\u{85}\u{2028}\u{202e}\u{9b}31m";
    let long = "x".repeat(10_000);
    let hostile = [forged, "\u{1b}[31mred", "\"quoted\"", &long];
    for user in hostile {
        let request = || {
            let mut request = post(&[("x-user", user), ("x-request-id", user)], user);
            let http = request.attributes.as_mut().unwrap().request.as_mut().unwrap().http.as_mut().unwrap();
            http.host = [user.as_bytes(), b"\xff\xfe"].concat().into();
            http.method = user.as_bytes().to_vec().into();
            request
        };
        assert_eq!(denied(&ask(&service, [request(), request()])), 1);
    }
    let events = printed.events(hostile.len());
    assert_eq!(settled(&service, "stdout", hostile.len() as u64), (hostile.len() as u64, 0));
    let text = printed.text();
    assert_eq!(text.lines().count(), hostile.len());
    let readable =
        |letter: char| letter == '\n' || !letter.is_control() && !"\u{2028}\u{2029}\u{202e}".contains(letter);
    assert!(text.chars().all(readable), "{text:?}");
    for (event, user) in events.iter().zip(hostile) {
        let identity = event["identity"].as_str().unwrap();
        let plain = user == "\"quoted\"";
        assert_eq!(identity == user, plain, "{identity}");
        assert_eq!(identity.starts_with('~') && identity.len() == 33, !plain, "{identity}");
        assert!(user.starts_with(event["request_id"].as_str().unwrap()) && event["request_id"].as_str() != Some(""));
        assert!(event.to_string().len() < 2500, "{} bytes", event.to_string().len());
    }
}

#[test]
fn with_hash_users_a_user_is_told_by_the_digest_that_the_metadata_has() {
    let mut service = start(
        "drain: 0s\nidentity: {user: [{header: x-user}], key_pepper: pepper}\n\
         tiers: {free: {per_user: {max_tokens: 1, refill_rate: 0.0001}}}\n\
         audit: {sinks: [stdout], hash_users: true, fold: 5m}\n",
    );
    let printed = Printed::by(&mut service);
    let answers = ask(&service, (0..10).map(|_| from("alice@example.com")));
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
    let digest = Digester::new(Some(b"pepper")).digest(b"alice@example.com").to_string();
    let events = printed.events(2);
    assert!(events.iter().all(|event| event["identity"] == digest.as_str()), "{events:#?}");
    let fields = metadata::read(&answers[9]).unwrap().fields;
    let told = fields.iter().find(|field| field.key == "identity").unwrap().value.as_ref().unwrap();
    assert_eq!(told.kind, Some(Kind::StringValue(digest.into())));
    assert!(!printed.text().contains("alice"));
}

#[test]
fn a_file_that_is_moved_away_is_begun_anew_on_sighup() {
    let folder = tempfile::tempdir().unwrap();
    let [file, moved] = ["audit.jsonl", "audit.jsonl.1"].map(|name| folder.path().join(name));
    let sink = format!("{{file: {{path: {}}}}}", file.display());
    let service = Tidegate::start(&format!("{STINGY}audit: {{sinks: [{sink}], fold: 0s}}\n"));
    let deny = |total: u64| {
        ask(&service, [from("alice"), from("alice")]);
        settled(&service, "file", total)
    };
    assert_eq!(deny(1), (1, 0));
    fs::rename(&file, &moved).unwrap();
    assert_eq!(deny(3), (3, 0));
    assert!(!file.exists(), "until it is told, it goes on with the file it has");
    service.signal("HUP");
    eventually("the file is there again", || file.exists().then_some(()));
    // The reload that the signal asks for as well is an event of its own.
    assert_eq!(deny(6), (6, 0));
    let lines = |path: &Path| events(&fs::read_to_string(path).unwrap()).len();
    assert_eq!((lines(&moved), lines(&file)), (3, 3));
}

#[test]
fn on_a_full_disk_checks_go_on_and_it_is_said_once() {
    let service =
        Tidegate::start(&format!("{STINGY}audit: {{sinks: [{{file: {{path: /dev/full}}}}], queue: 16, fold: 0s}}\n"));
    let total = denied(&ask(&service, (0..500).map(|_| from("alice"))));
    assert_eq!(total, 499);
    service.wait_for_log(FAILS);
    assert!(service.log().contains("No space left on device"), "{}", service.log());
    // It is tried again each second: twice, at least.
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_millis(2200) {
        assert_eq!(denied(&ask(&service, [from("alice")])), 1);
    }
    let Account { written, dropped, waiting } = account(&service, "file");
    let told = get(service.admin, "/metrics").value("tidegate_audit_events_total{event=\"denied\"}");
    assert_eq!((written, dropped + waiting, waiting), (0, told, 16));
    assert_eq!(said(&service, FAILS), 1, "{}", service.log());
}

#[test]
fn a_disk_that_has_room_again_is_said_with_what_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("later/audit.jsonl");
    let sink = format!("{{file: {{path: {}}}}}", file.display());
    let service = Tidegate::start(&format!("{STINGY}audit: {{sinks: [{sink}], queue: 16, fold: 0s}}\n"));
    let total = denied(&ask(&service, (0..100).map(|_| from("alice"))));
    service.wait_for_log(FAILS);
    fs::create_dir(file.parent().unwrap()).unwrap();
    service.wait_for_log(WORKS);
    let (written, dropped) = settled(&service, "file", total);
    assert_eq!((written, dropped), (16, total - 16), "what waited is not lost");
    assert!(service.log().contains(&format!("\"lost\":{dropped}")), "{}", service.log());
    assert_eq!(events(&fs::read_to_string(&file).unwrap()).len(), 16);
    assert_eq!((said(&service, FAILS), said(&service, WORKS)), (1, 1));
}

/// The events of a stream.
fn stream(server: &Server, key: &str) -> Vec<Json> {
    let entries: Vec<(String, Vec<(String, String)>)> = server.run(&["XRANGE", key, "-", "+"]);
    let text = entries.into_iter().fold(String::new(), |mut text, (_, fields)| {
        assert_eq!((fields.len(), fields[0].0.as_str()), (1, "event"));
        writeln!(text, "{}", fields[0].1).unwrap();
        text
    });
    events(&text)
}

#[test]
fn a_stream_has_the_events_in_order_and_is_kept_short() {
    const DENIALS: u64 = 1000;
    let server = Server::start(&[]);
    let service = Tidegate::start(&format!(
        "{STINGY}redis: {{urls: ['{}'], timeout: 10s}}\n\
         audit: {{sinks: [{{redis_stream: {{key: \"t:trail\", max_length: 200}}}}], fold: 0s}}\n",
        server.url()
    ));
    let requests = (0..=DENIALS).map(|place| post(&[("x-user", "alice"), ("x-request-id", &place.to_string())], "/"));
    assert_eq!(denied(&ask(&service, requests)), DENIALS);
    assert_eq!(settled(&service, "redis_stream", DENIALS), (DENIALS, 0));
    let told = stream(&server, "t:trail");
    // Redis trims by nodes of a hundred entries.
    assert!((200..400).contains(&told.len()), "{} entries", told.len());
    let first = DENIALS + 1 - told.len() as u64;
    let ids: Vec<String> = told.iter().map(|event| event["request_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids, (first..=DENIALS).map(|place| place.to_string()).collect::<Vec<_>>());
    let names: Vec<String> = server.run(&["KEYS", "t:*"]);
    assert_eq!(names, ["t:trail"]);
}

#[test]
fn a_stream_on_a_redis_that_is_down_is_said_once_and_goes_on_when_it_is_back() {
    let mut server = Server::start(&[]);
    let service = Tidegate::start(&format!(
        "{STINGY}redis: {{urls: ['{}'], timeout: 1s}}\ndeny_cache: {{size: 0}}\n\
         audit: {{sinks: [{{redis_stream: {{}}}}], queue: 16, fold: 0s}}\n",
        server.url()
    ));
    assert_eq!(denied(&ask(&service, [from("alice"), from("alice")])), 1);
    assert_eq!(settled(&service, "redis_stream", 1), (1, 0));
    assert_eq!(stream(&server, "rl:audit").len(), 1, "the key follows key_prefix");
    server.crash();
    let answers = ask(&service, (0..200).map(|_| from("alice")));
    assert_eq!((answers.len(), denied(&answers)), (200, 0), "on_store_error is allow");
    service.wait_for_log(FAILS);
    let Account { written, dropped, waiting } = account(&service, "redis_stream");
    let told = get(service.admin, "/metrics");
    let happened =
        ["denied", "degraded"].map(|event| told.value(&format!("tidegate_audit_events_total{{event=\"{event}\"}}")));
    assert_eq!((written, waiting, dropped), (1, 16, happened.iter().sum::<u64>() - 17));
    server.restart();
    service.wait_for_log(WORKS);
    settled(&service, "redis_stream", 201);
    assert_eq!((said(&service, FAILS), said(&service, WORKS)), (1, 1), "{}", service.log());
    assert!(stream(&server, "rl:audit").len() >= 16, "what waited is there");
}

#[test]
fn a_stream_in_a_cluster_is_on_the_server_of_its_slot() {
    let cluster = Cluster::start(Coverage::Full);
    let service = Tidegate::start(&format!(
        "{STINGY}redis: {{topology: cluster, urls: [{}], timeout: 5s}}\naudit: {{sinks: [{{redis_stream: {{}}}}], fold: 0s}}\n",
        cluster.urls()
    ));
    let total = denied(&ask(&service, (0..100).map(|_| from("alice"))));
    assert_eq!(settled(&service, "redis_stream", total), (total, 0));
    let holder = &cluster.nodes[crate::support::cluster::shard("rl:audit")];
    assert_eq!(stream(holder, "rl:audit").len() as u64, total);
}

/// Denies until nothing of it is written to standard output any more, and says how much was denied.
fn deny_until_blocked(service: &Tidegate) -> u64 {
    const MORE: u64 = 300;
    let mut total = 0;
    eventually("the pipe is full, and the queue", || {
        let before = account(service, "stdout").dropped;
        total += denied(&ask(service, (0..=MORE).map(|_| from("alice"))));
        (account(service, "stdout").dropped - before > MORE).then_some(total)
    })
}

#[test]
fn a_reader_that_does_not_read_holds_up_neither_checks_nor_the_file_and_all_is_accounted_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.jsonl");
    let mut service = start(&format!(
        "{STINGY}audit: {{sinks: [stdout, {{file: {{path: {}}}}}], queue: 64, fold: 0s}}\n",
        file.display()
    ));
    let total = deny_until_blocked(&service);
    let blocked = account(&service, "stdout");
    assert_eq!((blocked.written + blocked.dropped + blocked.waiting, blocked.waiting), (total, 64), "{blocked:?}");
    service.wait_for_log("events are dropped");
    let printed = Printed::by(&mut service);
    let (written, dropped) = settled(&service, "stdout", total);
    assert_eq!((printed.events(written as usize).len() as u64, dropped), (written, blocked.dropped));
    // The file's queue is short too, and may have run over for a moment.
    let (written, _) = settled(&service, "file", total);
    let told = events(&fs::read_to_string(&file).unwrap());
    assert_eq!(told.len() as u64, written);
    assert!(written > blocked.written + blocked.waiting, "{written} of {total}");
}

#[test]
fn the_end_of_the_process_waits_for_no_reader_for_long_and_says_what_is_lost() {
    let mut service = start(&format!("{STINGY}audit: {{sinks: [stdout], queue: 64, fold: 0s}}\n"));
    deny_until_blocked(&service);
    let begun = std::time::Instant::now();
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    service.wait_for_log("not written to its end");
    assert!(service.log().contains("\"lost\":64"), "{}", service.log());
}

#[test]
fn a_reader_that_is_gone_is_said_once_and_checks_go_on() {
    let mut service = start(&format!("{STINGY}audit: {{sinks: [stdout], queue: 16, fold: 0s}}\n"));
    drop(service.stdout());
    assert_eq!(denied(&ask(&service, (0..500).map(|_| from("alice")))), 499);
    service.wait_for_log("Broken pipe");
    assert_eq!(said(&service, FAILS), 1);
    let Account { written, dropped, waiting } = account(&service, "stdout");
    assert_eq!((written, dropped + waiting), (0, 499));
}

#[test]
fn several_sinks_have_the_same_events() {
    let server = Server::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.jsonl");
    let mut service = start(&format!(
        "{STINGY}redis: {{urls: ['{}'], timeout: 10s}}\n\
         audit: {{sinks: [stdout, {{file: {{path: {}}}}}, {{redis_stream: {{}}}}], fold: 0s}}\n",
        server.url(),
        file.display()
    ));
    let printed = Printed::by(&mut service);
    let total = denied(&ask(&service, (0..100).flat_map(|_| ["alice", "bob"].map(from))));
    for sink in ["stdout", "file", "redis_stream"] {
        assert_eq!(settled(&service, sink, total), (total, 0));
    }
    let told = printed.events(usize::try_from(total).unwrap());
    assert_eq!(told, events(&fs::read_to_string(file).unwrap()));
    assert_eq!(told, stream(&server, "rl:audit"));
}

#[test]
fn without_a_trail_nothing_is_printed_and_nothing_counted() {
    let mut service = start(STINGY);
    let printed = Printed::by(&mut service);
    assert_eq!(denied(&ask(&service, ["alice", "alice"].map(from))), 1);
    let told = get(service.admin, "/metrics");
    assert_eq!(told.value("tidegate_audit_events_total{event=\"denied\"}"), 0);
    assert!(!told.body.contains("audit_queue"));
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
    assert_eq!(printed.text(), "");
}

/// What is told by a trail of this process, to which something is done.
fn acts(hash_users: bool, act: impl FnOnce(&Audit)) -> Vec<Json> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let settings = Settings {
        sinks: vec![SinkSettings::File(path.clone())],
        hash_users,
        queue: 64,
        fold: Duration::ZERO,
        replica: "pod-7".into(),
    };
    let (audit, ending) = Audit::start(&settings, None, Arc::new(Metrics::new())).unwrap();
    act(&audit);
    drop(ending);
    events(&fs::read_to_string(path).unwrap())
}

#[test]
fn what_operators_do_is_told() {
    let (digester, alice) = (Digester::new(Some(b"pepper")), Key::new("rl:", Dimension::User, "alice"));
    let digest = digester.digest(KEY.as_bytes());
    let told = acts(false, |audit| {
        audit.config_reloaded(&"0a".repeat(32), "SIGHUP");
        audit.config_refused("tiers.free: x\nmode: y", "file");
        audit.bucket_reset(&alice, &digester, "admin 127.0.0.1");
        audit.key_set(&digest, "suspended=true", "admin");
        audit.key_deleted(&digest, "admin");
        audit.log_filter_set("debug", "admin");
    });
    let digest = digest.to_string();
    let of = |event: &str, named: &[(&str, &str)]| {
        let head = [("event", event), ("replica", "pod-7")].into_iter().chain(named.iter().copied());
        let mut told: serde_json::Map<_, _> = head.map(|(name, text)| (name.to_owned(), Json::from(text))).collect();
        told.insert("v".into(), 1.into());
        Json::Object(told)
    };
    let key = [("dimension", "key"), ("identity", digest.as_str()), ("by", "admin")];
    let expected = [
        of("config_reloaded", &[("config_hash", &"0a".repeat(32)), ("cause", "SIGHUP")]),
        of("config_refused", &[("faults", "tiers.free: x\nmode: y"), ("cause", "file")]),
        of("bucket_reset", &[("dimension", "user"), ("identity", "alice"), ("by", "admin 127.0.0.1")]),
        of("key_set", &[&key[..], &[("change", "suspended=true")]].concat()),
        of("key_deleted", &key),
        of("log_filter_set", &[("filter", "debug"), ("by", "admin")]),
    ];
    assert_eq!(told.into_iter().map(timeless).collect::<Vec<_>>(), expected);
}

#[test]
fn with_hash_users_a_bucket_that_is_reset_names_nobody() {
    let (digester, alice) = (Digester::new(Some(b"pepper")), Key::new("rl:", Dimension::User, "alice"));
    let told = acts(true, |audit| audit.bucket_reset(&alice, &digester, "admin"));
    assert_eq!(told[0]["identity"], digester.digest(b"alice").to_string());
}
