//! Traces: what a collector gets of the running service, and that checks care for no collector.

use crate::support::admin::get;
use crate::support::collector::{Collector, told};
use crate::support::eventually;
use crate::support::redis::{Server, free_port};
use crate::support::service::{Tidegate, check};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use std::net::TcpListener;
use std::time::{Duration, Instant};
use tidegate::ext_authz::proto::authorization_client::AuthorizationClient;
use tidegate::ext_authz::proto::{CheckRequest, CheckResponse, TextEntry};
use tonic::Request;
use tonic::transport::Endpoint;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// One request passes, and then none for hours.
const ONE: &str = "tiers: {free: {per_ip: {max_tokens: 1, refill_rate: 0.0001}}}\n";

fn has(span: &Span, pair: &str) -> bool {
    told(&span.attributes).iter().any(|told| told == pair)
}

fn failure(span: &Span) -> Option<String> {
    let status = span.status.clone().unwrap();
    (status.code() == StatusCode::Error).then_some(status.message)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Calls of a service, as Envoy makes them.
struct Caller {
    runtime: tokio::runtime::Runtime,
    client: AuthorizationClient<tonic::transport::Channel>,
}

impl Caller {
    fn of(service: &Tidegate) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{}", service.address)).unwrap();
        let client = AuthorizationClient::new(runtime.block_on(endpoint.connect()).unwrap());
        Self { runtime, client }
    }

    /// Its code.
    fn send(&self, request: Request<CheckRequest>) -> i32 {
        let answer: CheckResponse = self.runtime.block_on(self.client.clone().check(request)).unwrap().into_inner();
        answer.status.unwrap().code
    }

    fn check(&self) -> i32 {
        self.send(Request::new(check(&[])))
    }

    /// With Envoy's own span as the parent.
    fn check_within(&self, traceparent: &str) -> i32 {
        let mut request = Request::new(check(&[]));
        request.metadata_mut().insert("traceparent", traceparent.parse().unwrap());
        self.send(request)
    }
}

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{SPAN}-{flags}")
}

fn metric(service: &Tidegate, name: &str) -> u64 {
    get(service.admin, "/metrics").value(name)
}

fn threads(service: &Tidegate) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", service.pid())).unwrap();
    tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok()).collect()
}

#[test]
fn a_check_and_its_take_are_children_of_envoys_span_and_tell_what_was_decided() {
    let collector = Collector::start();
    let rules = "rules: [{name: chat, match: {methods: [GET]}}, {name: all}]\n";
    let service = Tidegate::start(&format!("{ONE}{rules}{}", collector.section()));
    let (caller, before) = (Caller::of(&service), std::time::SystemTime::now());
    assert_eq!([caller.check_within(&parent("01")), caller.check_within(&parent("01"))], [0, 8]);

    let checks = collector.checks(2);
    for check in &checks {
        assert_eq!((hex(&check.trace_id), hex(&check.parent_span_id)), (TRACE.into(), SPAN.into()));
        assert_eq!(check.kind(), SpanKind::Server);
        assert_eq!(failure(check), None, "a denial is no failure");
        let [take] = collector.children(check).try_into().unwrap();
        assert_eq!(
            (take.name.as_str(), hex(&take.trace_id), take.kind()),
            ("store.take", TRACE.into(), SpanKind::Client)
        );
        assert_eq!(told(&take.attributes), ["db.system.name=memory"]);
        assert!(check.start_time_unix_nano <= take.start_time_unix_nano);
        assert!(take.start_time_unix_nano <= take.end_time_unix_nano);
        assert!(take.end_time_unix_nano <= check.end_time_unix_nano);
        let since = before.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
        assert!(u128::from(check.start_time_unix_nano) >= since);
    }
    let common = ["tidegate.degraded=false", "tidegate.dimension=ip", "tidegate.mode=enforce", "tidegate.remaining=0"];
    let rest = ["tidegate.rule=all", "tidegate.source=store", "tidegate.tier=free"];
    let expected = |own: &[&'static str]| {
        let mut all = [own, &common, &rest].concat();
        all.sort_unstable();
        all
    };
    assert_eq!(told(&checks[0].attributes), expected(&["tidegate.decision=allowed"]));
    assert_eq!(told(&checks[1].attributes), expected(&["tidegate.decision=denied", "tidegate.retry_after=10000"]));
    let resource = collector.batches.lock().unwrap()[0].resource_spans[0].resource.clone().unwrap();
    assert!(told(&resource.attributes).contains(&"service.name=tidegate".to_owned()), "{resource:?}");
    eventually("they are counted", || (metric(&service, "tidegate_trace_spans_exported_total") == 4).then_some(()));
    assert_eq!(metric(&service, "tidegate_trace_spans_dropped_total"), 0);
}

#[test]
fn a_denial_out_of_the_deny_cache_has_no_take() {
    let (collector, server) = (Collector::start(), Server::start(&[]));
    let redis = format!("redis: {{urls: ['{}'], timeout: 10s}}\ndeny_cache: {{max_age: 5m}}\n", server.url());
    let service = Tidegate::start(&format!("{ONE}{redis}{}", collector.section()));
    let caller = Caller::of(&service);
    assert_eq!([caller.check(), caller.check(), caller.check()], [0, 8, 8]);
    let checks = collector.checks(3);
    for (check, source, takes) in [(&checks[0], "store", 1), (&checks[1], "store", 1), (&checks[2], "deny_cache", 0)] {
        assert!(has(check, &format!("tidegate.source={source}")), "{check:#?}");
        let children = collector.children(check);
        assert_eq!(children.len(), takes, "{children:#?}");
        assert!(children.iter().all(|take| has(take, "db.system.name=redis")));
    }
}

#[test]
fn what_asks_nothing_has_no_take_and_what_only_looks_has_a_peek() {
    let collector = Collector::start();
    let rules = "rules:\n  - {name: free, match: {headers: [{name: x-exempt, present: true}]}, exempt: true}\n  \
                 - {name: look, match: {headers: [{name: x-look, present: true}]}, cost: 0}\n  \
                 - {name: much, match: {context_extensions: {much: '1'}}}\n";
    let service = Tidegate::start(&format!("{ONE}mode: shadow\n{rules}{}", collector.section()));
    let caller = Caller::of(&service);
    let mut much = check(&[]);
    for (key, value) in [("much", "1"), ("tidegate.cost", "5")] {
        let entry = TextEntry { key: key.into(), value: value.into() };
        much.attributes.as_mut().unwrap().context_extensions.push(entry);
    }
    for request in [check(&[("x-exempt", "1")]), check(&[("x-look", "1")]), much] {
        assert_eq!(caller.send(Request::new(request)), 0);
    }
    let checks = collector.checks(3);
    for (check, decision, children) in [
        (&checks[0], "exempt", vec![]),
        (&checks[1], "allowed", vec!["store.peek"]),
        (&checks[2], "never_fits", vec![]),
    ] {
        assert!(has(check, &format!("tidegate.decision={decision}")), "{check:#?}");
        assert!(has(check, "tidegate.mode=shadow"));
        let names: Vec<String> = collector.children(check).into_iter().map(|span| span.name).collect();
        assert_eq!(names, children);
    }
    assert!(has(&checks[2], "tidegate.dimension=ip"));
}

#[test]
fn a_store_that_fails_is_told_by_the_kind_of_its_failure_and_a_breaker_that_is_open_was_not_asked() {
    let (collector, server) = (Collector::start(), Server::start(&[]));
    let url = server.url();
    server.kill();
    let redis = format!("redis: {{urls: ['{url}'], timeout: 10s, breaker: {{failures: 1, probe_interval: 60s}}}}\n");
    let service = Tidegate::start(&format!("{ONE}{redis}on_store_error: deny\n{}", collector.section()));
    service.wait_for_log("the breaker opened");
    let caller = Caller::of(&service);
    assert_eq!(caller.check(), 14);
    let [check] = collector.checks(1).try_into().unwrap();
    assert_eq!(failure(&check).as_deref(), Some("breaker_open"));
    for pair in ["decision=unavailable", "degraded=true", "store_error=breaker_open"] {
        assert!(has(&check, &format!("tidegate.{pair}")), "{check:#?}");
    }
    assert!(collector.children(&check).is_empty());
}

#[test]
fn nobody_who_asks_is_named_in_what_is_exported() {
    let (collector, server) = (Collector::start(), Server::start(&[]));
    // What Redis says of this names the bucket.
    let () = server.run(&["SET", "rl:user:alice-a", "no bucket"]);
    let quota = "{max_tokens: 1, refill_rate: 0.0001}";
    let service = Tidegate::start(&format!(
        "redis: {{urls: ['{}'], timeout: 10s}}\nidentity: {{user: [{{header: x-user}}], tier: []}}\n\
         tiers: {{free: {{per_user: {quota}, per_key: {quota}, per_ip: {quota}}}}}\n{}",
        server.url(),
        collector.section()
    ));
    let caller = Caller::of(&service);
    for (user, code) in [("alice-a", 0), ("alice-b", 0), ("alice-b", 8)] {
        let mut request = check(&[("x-user", user), ("x-api-key", "sk-very-secret"), ("host", "shop.example")]);
        let http = request.attributes.as_mut().unwrap().request.as_mut().unwrap().http.as_mut().unwrap();
        (http.path, http.host, http.id) = ("/private/letters?q=1".into(), "shop.example".into(), "request-id-7".into());
        assert_eq!(caller.send(Request::new(request)), code, "{user}");
    }
    let checks = collector.checks(3);
    let [take] = collector.children(&checks[0]).try_into().unwrap();
    assert_eq!((failure(&take).as_deref(), has(&take, "error.type=wrong_type")), (Some("wrong_type"), true));
    assert_eq!(failure(&checks[0]), None, "the policy lets it pass");
    assert!(has(&checks[0], "tidegate.decision=degraded") && has(&checks[0], "tidegate.store_error=wrong_type"));

    let bytes = collector.bytes();
    let holds = |word: &str| bytes.windows(word.len()).any(|part| part == word.as_bytes());
    assert!(holds("tidegate.tier"), "this is where it would be found");
    let digest = tidegate::policy::api_key::Digester::default().digest(b"sk-very-secret").to_string();
    let words = ["alice", "sk-very", "192.0.2.1", "/private", "letters", "shop.example", "request-id", "rl:", &digest];
    for word in words {
        assert!(!holds(word), "{word} was exported");
    }
}

#[test]
fn a_parent_that_is_not_sampled_gives_no_span() {
    let collector = Collector::start();
    let service = Tidegate::start(&collector.section());
    let caller = Caller::of(&service);
    for flags in ["00", "02", "01"] {
        assert_eq!(caller.check_within(&parent(flags)), 0);
    }
    assert_eq!(hex(&collector.checks(1)[0].parent_span_id), SPAN);
}

#[test]
fn a_ratio_of_zero_traces_only_what_a_parent_asks_for() {
    let collector = Collector::start();
    let service = Tidegate::start(&format!("traces: {{endpoint: 'http://{}', sample_ratio: 0}}\n", collector.address));
    let caller = Caller::of(&service);
    for _ in 0..5 {
        assert_eq!(caller.check(), 0);
    }
    assert_eq!(caller.check_within(&parent("01")), 0);
    assert_eq!(hex(&collector.checks(1)[0].parent_span_id), SPAN);
}

#[test]
fn envoys_own_span_comes_before_that_of_the_clients_request() {
    let collector = Collector::start();
    let service = Tidegate::start(&collector.section());
    let caller = Caller::of(&service);
    let of_client = format!("00-{}-{}-01", "a".repeat(32), "b".repeat(16));
    for own in [Some(parent("01")), Some(format!("{}-no", parent("01"))), None] {
        let mut request = Request::new(check(&[("traceparent", &of_client)]));
        if let Some(own) = own {
            request.metadata_mut().insert("traceparent", own.parse().unwrap());
        }
        assert_eq!(caller.send(request), 0);
    }
    let parents: Vec<String> = collector.checks(3).iter().map(|check| hex(&check.parent_span_id)).collect();
    assert_eq!(parents, [SPAN.to_owned(), "b".repeat(16), "b".repeat(16)]);
}

#[test]
fn a_malformed_or_hostile_traceparent_begins_a_trace_and_fails_no_check() {
    let hostile: Vec<Vec<u8>> = [
        String::new(),
        "00".into(),
        "-".repeat(55),
        "0".repeat(60_000),
        format!("ff-{TRACE}-{SPAN}-01"),
        format!("00-{TRACE}-{SPAN}-01-more"),
        format!("00-{TRACE}-{SPAN}-1"),
        format!("00-{}-{SPAN}-01", "0".repeat(32)),
        format!("00-{TRACE}-{}-01", "0".repeat(16)),
        format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
        format!("00-{TRACE}-{SPAN}-01\r\nx-injected: 1"),
        format!("00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01"),
        "\u{1f600}".repeat(14),
    ]
    .into_iter()
    .map(String::into_bytes)
    .chain([vec![0xff; 55], vec![0; 55]])
    .collect();
    let collector = Collector::start();
    let generous = "tiers: {free: {per_ip: {max_tokens: 1000, refill_rate: 1}}}\n";
    let service = Tidegate::start(&format!("{generous}{}", collector.section()));
    let caller = Caller::of(&service);
    let mut sent = 0;
    for value in &hostile {
        let mut request = Request::new(check(&[]));
        let http = request.get_mut().attributes.as_mut().unwrap().request.as_mut().unwrap().http.as_mut().unwrap();
        http.headers.push(TextEntry { key: "traceparent".into(), value: value.clone().into() });
        // What can be a header's value is tried as metadata too.
        let also = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        if let Some(value) = also.filter(|_| value.len() < 8000) {
            request.metadata_mut().insert("traceparent", value);
        }
        assert_eq!(caller.send(request), 0, "{value:?}");
        sent += 1;
    }
    for check in collector.checks(sent) {
        assert!(check.parent_span_id.is_empty() && hex(&check.trace_id) != TRACE, "{check:#?}");
        assert!(check.trace_id != [0; 16] && check.span_id != [0; 8]);
    }
}

#[test]
fn a_check_that_its_caller_gave_up_is_told_as_such() {
    let (collector, server) = (Collector::start(), Server::start(&[]));
    let redis = format!("redis: {{urls: ['{}'], timeout: 10s}}\n", server.url());
    let service = Tidegate::start(&format!("{redis}{}", collector.section()));
    service.wait_for_log("ready");
    let caller = Caller::of(&service);
    server.signal("STOP");
    let call = caller.runtime.block_on(async {
        let mut client = caller.client.clone();
        tokio::time::timeout(Duration::from_millis(100), client.check(check(&[]))).await
    });
    assert!(call.is_err(), "a stopped Redis answers nothing");
    // Not before: a Redis that goes on may answer before the service has heard that nobody waits.
    let [check] = collector.checks(1).try_into().unwrap();
    server.signal("CONT");
    assert_eq!(failure(&check).as_deref(), Some("given_up"));
}

#[test]
fn without_a_collector_checks_go_on_it_is_said_once_and_what_is_lost_is_counted() {
    let port = free_port();
    let service = Tidegate::start(&format!("traces: {{endpoint: 'http://127.0.0.1:{port}'}}\n"));
    let (caller, mut sent) = (Caller::of(&service), 0);
    let dropped = || metric(&service, "tidegate_trace_spans_dropped_total");
    // Each time what was sent before is lost first, so these are batches of their own.
    for _ in 0..3 {
        assert_eq!(caller.check(), 0);
        sent += 2;
        eventually("the spans are lost and counted", || (dropped() == sent).then_some(()));
    }
    let log = service.log();
    assert_eq!(log.matches("traces cannot be exported").count(), 1, "{log}");
    let strangers = log.lines().filter(|line| line.contains("opentelemetry") || line.contains("\"target\":\"tonic"));
    assert_eq!(strangers.count(), 0, "{log}");

    let collector = Collector::start_on(port);
    let back = eventually("traces are exported again", || {
        assert!([0, 8].contains(&caller.check()));
        let log = service.log();
        log.lines().find(|line| line.contains("traces are exported again")).map(str::to_owned)
    });
    let back: serde_json::Value = serde_json::from_str(&back).unwrap();
    let lost = back["fields"]["dropped"].as_u64().unwrap();
    assert!(lost >= sent && lost == dropped(), "{lost} of {} were told", dropped());
    assert!(!collector.spans().is_empty());
    assert_eq!(service.log().matches("traces cannot be exported").count(), 1);
}

#[test]
fn a_collector_that_never_answers_holds_up_neither_checks_nor_the_end() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let held = std::thread::spawn(move || silent.incoming().take(1).collect::<Vec<_>>());
    let config = format!("drain: 0s\ntraces: {{endpoint: 'http://{address}', timeout: 60s}}\n");
    let mut service = Tidegate::start(&config);
    let caller = Caller::of(&service);
    assert_eq!(caller.check(), 0);
    // It is connected to when there is something to export.
    let _connections = held.join().unwrap();
    let begun = Instant::now();
    for _ in 0..5000 {
        caller.check();
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "checks wait for the collector");
    assert!(metric(&service, "tidegate_trace_spans_dropped_total") > 0, "the queue has no bound");
    drop(caller);
    let begun = Instant::now();
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
    let took = begun.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(8)).contains(&took), "it took {took:?}");
    service.wait_for_log("the collector did not take the last spans in time");
}

#[test]
fn the_last_spans_are_sent_when_the_process_ends() {
    let collector = Collector::start();
    let mut service = Tidegate::start(&format!("drain: 0s\n{}", collector.section()));
    let caller = Caller::of(&service);
    assert_eq!(caller.check(), 0);
    drop(caller);
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
    let names: Vec<String> = collector.spans().into_iter().map(|span| span.name).collect();
    assert_eq!(names, ["check", "store.take"], "they were sent before the end");
}

#[test]
fn no_thread_exports_where_traces_are_off() {
    let of = |config: &str| {
        let service = Tidegate::start(config);
        let log = service.log();
        (threads(&service).iter().any(|name| name.trim() == "tidegate-traces"), log)
    };
    for config in ["{}", "traces: {endpoint: 'off'}\n", "traces: {sample_ratio: 0.5}\n"] {
        let (exports, log) = of(config);
        assert!(!exports && log.contains("\"traces\":\"off\""), "{log}");
    }
    let (exports, log) = of("traces: {endpoint: 'http://127.0.0.1:1'}\n");
    assert!(exports && log.contains("\"traces\":\"http://127.0.0.1:1\""), "{log}");
}
