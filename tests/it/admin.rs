//! The admin endpoint: what probes and Prometheus see, and what its clients cannot do.

use crate::support::admin::{ask, get, open, until};
use crate::support::redis::Server;
use crate::support::service::{Tidegate, block_on, check, client, program};
use std::io::{Read, Write};
use std::net::TcpStream;
use tidegate::ext_authz::metadata;
use tidegate::ext_authz::proto::{CheckResponse, value::Kind};
use tidegate::metrics::Decision;

fn text(answer: &CheckResponse, name: &str) -> String {
    let fields = metadata::read(answer).unwrap().fields;
    match fields.into_iter().find(|field| field.key == name).and_then(|field| field.value?.kind) {
        Some(Kind::StringValue(text)) => String::from_utf8(text.to_vec()).unwrap(),
        other => panic!("{name} is {other:?}"),
    }
}

#[test]
fn a_replica_is_alive_and_ready_until_it_drains_and_alive_until_it_ends() {
    let mut service = Tidegate::start("drain: 5m\n");
    until(service.admin, "/readyz", |answer| answer.status() == 200);
    let answer = get(service.admin, "/readyz");
    assert_eq!((answer.body.as_str(), get(service.admin, "/livez").body.as_str()), ("ready\n", "alive\n"));
    assert_eq!(get(service.admin, "/readyz?verbose").body, "[+] store ok\n[+] config ok\n[+] drain ok\nready\n");
    service.signal("TERM");
    let answer = until(service.admin, "/readyz", |answer| answer.status() == 503);
    assert_eq!(answer.body, "[-] drain failed: draining\nnot ready\n");
    assert_eq!(get(service.admin, "/livez").status(), 200);
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
}

#[test]
fn readyz_says_why_a_replica_without_its_store_is_not_ready() {
    let server = Server::start(&[]);
    let url = server.url();
    let place = server.kill();
    let required = Tidegate::start(&format!("redis: {{urls: ['{url}'], timeout: 1s}}\n"));
    let answer = until(required.admin, "/readyz", |answer| answer.body.contains("connection"));
    assert_eq!((answer.status(), answer.body.as_str()), (503, "[-] store failed: connection\nnot ready\n"));

    let optional = Tidegate::start(&format!("redis: {{urls: ['{url}']}}\nreadiness_requires_store: false\n"));
    let answer = until(optional.admin, "/readyz?verbose", |answer| answer.body.contains("connection"));
    assert_eq!(
        (answer.status(), answer.body.as_str()),
        (200, "[!] store warning: connection\n[+] config ok\n[+] drain ok\nready\n")
    );
    assert_eq!(get(optional.admin, "/readyz").body, "ready\n");

    let _server = Server::back(&place);
    for service in [&required, &optional] {
        until(service.admin, "/readyz?verbose=1", |answer| answer.body.contains("[+] store ok"));
    }
}

#[test]
fn checks_are_counted_by_the_decision_that_the_metadata_tells() {
    let quota = |tokens| format!("{{max_tokens: {tokens}, refill_rate: 0.0001}}");
    let service = Tidegate::start(&format!(
        "identity: {{user: [{{header: x-user}}]}}
default_tier: free
tiers: {{free: {{per_user: {}, per_ip: {}}}, gold: {{per_user: {}}}}}
users: [{{id: alice, tier: gold}}]
rules:
- {{name: free, match: {{path: {{exact: /free}}}}, exempt: true}}
",
        quota(2),
        quota(5),
        quota(3)
    ));
    let callers: [(&[(&str, &str)], usize); 3] =
        [(&[("x-user", "alice")], 5), (&[("x-user", "bob")], 3), (&[("x-api-key", "sk-secret-key")], 3)];
    let mut expected = std::collections::BTreeMap::<(String, String), u64>::new();
    block_on(async {
        let mut client = client(&service).await;
        for (headers, times) in callers {
            for _ in 0..times {
                let answer = client.check(check(headers)).await.unwrap().into_inner();
                let told = (text(&answer, "decision").to_owned(), text(&answer, "tier").to_owned());
                *expected.entry(told).or_default() += 1;
            }
        }
        let mut exempt = check(&[]);
        let request = exempt.attributes.as_mut().unwrap().request.as_mut().unwrap();
        request.http.as_mut().unwrap().path = "/free".into();
        let answer = client.check(exempt).await.unwrap().into_inner();
        assert_eq!(text(&answer, "decision"), "exempt");
        *expected.entry(("exempt".into(), "free".into())).or_default() += 1;
    });
    let metrics = get(service.admin, "/metrics");
    assert!(metrics.head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{}", metrics.head);
    for tier in ["free", "gold"] {
        for decision in Decision::ALL {
            let counted =
                metrics.value(&format!(r#"tidegate_checks_total{{decision="{}",tier="{tier}"}}"#, decision.word()));
            let told = (decision.word().to_owned(), tier.to_owned());
            assert_eq!(counted, expected.remove(&told).unwrap_or(0), "{decision:?} {tier}");
        }
    }
    assert!(expected.is_empty(), "not counted: {expected:?}");
    let denials = |tier: &str, dimension: &str| {
        metrics.value(&format!(r#"tidegate_denials_total{{tier="{tier}",dimension="{dimension}",source="store"}}"#))
    };
    // The address has just enough for all that was admitted.
    assert_eq!((denials("gold", "user"), denials("free", "user"), denials("free", "ip")), (2, 1, 0));
    for identity in ["alice", "bob", "secret", "192.0.2.1"] {
        assert!(!metrics.body.contains(identity), "{identity} is in\n{}", metrics.body);
    }
}

#[test]
fn failures_of_the_store_are_counted_by_kind_and_policy() {
    let (port, _) = Server::start(&[]).kill();
    let config = format!(
        "redis: {{urls: ['redis://127.0.0.1:{port}']}}
rules: [{{name: strict, match: {{headers: [{{name: x-strict, present: true}}]}}, on_store_error: deny}}]\n"
    );
    let service = Tidegate::start(&config);
    block_on(async {
        let mut client = client(&service).await;
        for headers in [&[][..], &[], &[("x-strict", "1")]] {
            client.check(check(headers)).await.unwrap();
        }
    });
    let metrics = get(service.admin, "/metrics");
    for (series, value) in [
        (r#"tidegate_store_errors_total{kind="connection"}"#, 3),
        (r#"tidegate_degraded_total{policy="allow"}"#, 2),
        (r#"tidegate_degraded_total{policy="deny"}"#, 1),
        (r#"tidegate_checks_total{decision="degraded",tier="free"}"#, 2),
        (r#"tidegate_checks_total{decision="unavailable",tier="free"}"#, 1),
    ] {
        assert_eq!(metrics.value(series), value, "{series}");
    }
}

#[test]
fn there_is_nothing_else_to_see_or_to_do() {
    let service = Tidegate::start("drain: 0s\n");
    for target in
        ["/", "/metrics/", "/metric", "/configs", "//livez", "/livez%00", "/buckets/user/", "*", "http://x/quit"]
    {
        assert_eq!(get(service.admin, target).status(), 404, "{target}");
    }
    for method in ["POST", "DELETE", "OPTIONS", "BREW"] {
        let answer = ask(service.admin, method, "/metrics");
        assert_eq!(answer.status(), 405, "{method}");
        assert!(answer.head.contains("allow: GET, HEAD"));
    }
    let answer = ask(service.admin, "HEAD", "/livez");
    assert_eq!((answer.status(), answer.body.as_str()), (200, ""));
}

#[test]
fn clients_that_dawdle_or_send_too_much_are_in_nobodys_way() {
    let service = Tidegate::start("drain: 0s\n");
    let dawdlers: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut socket = open(service.admin);
            socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: ").unwrap();
            socket
        })
        .collect();
    assert_eq!(get(service.admin, "/livez").status(), 200);
    // Those that are left when nobody needs the room are closed in time.
    for mut socket in dawdlers {
        // What is told of a head that does not come, then the end; a reset where it had to make room.
        let _ = socket.read_to_end(&mut Vec::new());
    }
    let mut huge = open(service.admin);
    let _ = huge.write_all(format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20)).as_bytes());
    let mut told = Vec::new();
    let _ = huge.read_to_end(&mut told);
    assert!(!told.starts_with(b"HTTP/1.1 200"));
    assert_eq!(get(service.admin, "/livez").status(), 200);
}

#[test]
fn an_admin_port_that_is_taken_is_said_by_the_name_of_its_key() {
    let service = Tidegate::start("drain: 0s\n");
    let taken = service.admin.to_string();
    let output = program(&["serve", "--listen", "127.0.0.1:0"]).env("TIDEGATE_ADMIN_LISTEN", &taken).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    let expected = format!("admin.listen: cannot listen on {taken}: ");
    assert!(told.contains(&expected) && told.contains("give another address there, or off"), "{told}");
}

#[test]
fn the_admin_endpoint_can_be_switched_off() {
    let service = Tidegate::start_with("drain: 0s\n", &[("TIDEGATE_ADMIN_LISTEN", "off")]);
    assert!(service.log().contains(r#""admin":"off""#), "{}", service.log());
}
