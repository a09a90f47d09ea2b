//! A storm of one error is one line a second with a count, on the running service.

use crate::support::admin::{get, open};
use crate::support::redis::Server;
use crate::support::service::{Tidegate, block_on, check, client};
use crate::support::{eventually, redis};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

/// Long enough for a line that comes each second to come several times.
const STORM: Duration = Duration::from_millis(3500);

/// The lines of a log by their message, in the order in which they were written.
fn by_message(log: &str) -> BTreeMap<String, Vec<Value>> {
    let mut lines = BTreeMap::<String, Vec<Value>>::new();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let message = line["fields"]["message"].as_str().unwrap().to_owned();
        lines.entry(message).or_default().push(line["fields"].clone());
    }
    lines
}

/// What was logged after the service said that it serves.
fn storm(service: &Tidegate) -> BTreeMap<String, Vec<Value>> {
    let log = service.log();
    let serving = log.lines().position(|line| line.contains("\"serving\"")).unwrap();
    by_message(&log.lines().skip(serving + 1).collect::<Vec<_>>().join("\n"))
}

/// No message more often than at once and then once a second.
fn assert_few(lines: &BTreeMap<String, Vec<Value>>, elapsed: Duration) {
    // The service counts in whole milliseconds.
    let most = 1 + (elapsed + Duration::from_millis(10)).as_secs() as usize;
    for (message, lines) in lines {
        assert!(lines.len() <= most, "{} times within {elapsed:?}: {message}\n{lines:#?}", lines.len());
    }
}

/// How many events lines stand for.
fn counted(lines: &[Value]) -> u64 {
    lines.iter().map(|line| 1 + line["more"].as_u64().unwrap_or_else(|| panic!("no count: {line}"))).sum()
}

/// All that can be logged for a check is switched on. Nobody collects the spans.
fn config(url: &str, more: &str) -> String {
    format!(
        "drain: 0s\nredis: {{urls: ['{url}'], timeout: 50ms, breaker: {{failures: 5, probe_interval: 10ms}}}}\n\
         on_store_error: deny\nidentity: {{user: [{{header: x-user}}], key: [{{header: x-api-key}}]}}\n\
         tiers: {{free: {{per_user: {{max_tokens: 1000, refill_rate: 1}}, per_key: {{max_tokens: 1000, refill_rate: 1}}}}}}\n\
         audit: {{sinks: [redis_stream: {{}}], fold: 0s, queue: 16}}\n\
         traces: {{endpoint: 'http://127.0.0.1:1'}}\n{more}"
    )
}

/// Sends checks, each of another caller and key, until `enough`, and says how many that were.
fn ask_until(service: &Tidegate, name: &str, mut enough: impl FnMut(u64) -> bool) -> u64 {
    block_on(async {
        let mut client = client(service).await;
        let mut sent = 0;
        while !enough(sent) {
            let (user, key) = (format!("{name}{sent}"), format!("key-{name}-{sent}"));
            let cost = [("x-user", user.as_str()), ("x-api-key", key.as_str())];
            client.check(check(&cost)).await.unwrap();
            sent += 1;
        }
        sent
    })
}

const NO_METADATA: &str = "cannot read an API key's metadata, what was last known counts";

#[test]
fn a_dead_redis_is_a_line_a_second_of_each_kind_and_all_checks_are_counted() {
    let server = Server::start(&[]);
    let url = server.url();
    let place = server.kill();
    let begun = Instant::now();
    let service = Tidegate::start(&config(&url, ""));
    let mut sent = ask_until(&service, "a", |sent| sent >= 500 && begun.elapsed() > STORM);
    // Those after the last line are told with the next.
    let told = |service: &Tidegate| storm(service).remove(NO_METADATA).unwrap_or_default();
    eventually("all that was left unsaid is counted", || {
        sent += ask_until(&service, &format!("b{sent}-"), |sent| sent == 1);
        (counted(&told(&service)) == sent).then_some(())
    });
    let (lines, elapsed) = (storm(&service), begun.elapsed());
    assert_few(&lines, elapsed);
    assert!(lines[NO_METADATA].len() > 2, "{lines:#?}");
    let outage = "the store failed: an outage begins, in which answers follow on_store_error";
    assert_eq!(lines[outage].len(), 1, "{lines:#?}");

    // An outage is told with its count when it is over, after some seconds of answers.
    let _server = Server::back(&place);
    let over = "the store answers again: the outage is over";
    ask_until(&service, "c", |_| storm(&service).contains_key(over));
    let degraded = get(service.admin, "/metrics").value("tidegate_degraded_total{policy=\"deny\"}");
    assert!(degraded >= sent, "{degraded} of {sent}");
    assert_eq!(storm(&service)[over][0]["degraded"], degraded);
    assert_few(&storm(&service), begun.elapsed());
}

const OPENED: &str = "the breaker opened: not asked until a probe succeeds";
const STILL_OPEN: &str = "the breaker is open again: not asked until a probe succeeds";
const CLOSED: &str = "the breaker closed: a probe succeeded";

fn breaker(service: &Tidegate) -> u64 {
    get(service.admin, "/metrics").value("tidegate_breaker_state")
}

/// Stops Redis until the breaker opens.
fn freeze(server: &Server, service: &Tidegate, name: &str) {
    server.signal("STOP");
    ask_until(service, name, |_| breaker(service) == 1);
}

fn thaw(server: &Server, service: &Tidegate) {
    server.signal("CONT");
    eventually("the breaker closes", || (breaker(service) == 0).then_some(()));
}

#[test]
fn a_redis_that_hangs_and_answers_by_turns_is_a_line_a_second_and_the_last_state_is_said() {
    let server = redis::Server::start(&[]);
    let service = Tidegate::start(&config(&server.url(), ""));
    let (begun, mut turns) = (Instant::now(), 0);
    while begun.elapsed() < STORM || turns < 8 {
        freeze(&server, &service, &format!("t{turns}-"));
        thaw(&server, &service);
        turns += 1;
    }
    let lines = storm(&service);
    assert_few(&lines, begun.elapsed());
    assert_eq!(lines[OPENED].len(), lines[CLOSED].len(), "each opening that is said has its end said: {lines:#?}");

    // Wherever in a second it ends, that it is open is said, and that it is closed again.
    let said = |lines: &BTreeMap<String, Vec<Value>>, message: &str| lines.get(message).map_or(0, Vec::len);
    let openings = |lines: &_| said(lines, OPENED) + said(lines, STILL_OPEN);
    let before = openings(&lines);
    for turn in 0..3 {
        freeze(&server, &service, &format!("u{turn}-"));
        turns += 1;
        if turn < 2 {
            thaw(&server, &service);
        }
    }
    eventually("that it is open is said", || (openings(&storm(&service)) > before).then_some(()));
    let open = openings(&storm(&service));
    eventually("and of all turns", || {
        let lines = storm(&service);
        let all = [OPENED, STILL_OPEN].map(|message| lines.get(message).map_or(0, |lines| counted(lines)));
        (all.iter().sum::<u64>() == turns).then_some(())
    });
    thaw(&server, &service);
    eventually("that it is closed is said", || {
        (said(&storm(&service), CLOSED) == openings(&storm(&service))).then_some(())
    });
    assert!(open > before);
    assert_few(&storm(&service), begun.elapsed());
}

#[test]
fn hundreds_of_connections_that_speak_something_else_are_no_line() {
    let service = Tidegate::start("drain: 0s\n");
    for _ in 0..300 {
        for address in [service.address, service.admin] {
            let mut socket = open(address);
            let _ = socket.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n");
            let _ = socket.read_to_end(&mut Vec::new());
        }
    }
    assert_eq!(get(service.admin, "/livez").status(), 200);
    let lines = storm(&service);
    assert_eq!(lines.keys().collect::<Vec<_>>(), ["ready: the store answers"], "{lines:#?}");
}
