//! `tidegate probe`: what it says of services that are well, that are not, and that are none.

use crate::support::eventually;
use crate::support::redis::{Server, free_port};
use crate::support::service::{Tidegate, program};
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// More than a busy machine takes: only tests of the timeout itself give less.
const PATIENT: [&str; 2] = ["--timeout", "20s"];

/// The exit code, standard output and standard error.
fn probe(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = program(&[&["probe"], arguments].concat()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn patiently(address: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    probe(&[&[address], &PATIENT[..], arguments].concat())
}

/// A service that charges the address of a probe.
fn with_limit(max_tokens: u32, more: &str) -> String {
    format!(
        "default_tier: free\ntiers: {{free: {{per_ip: {{max_tokens: {max_tokens}, refill_rate: 0.0001}}}}}}\n{more}"
    )
}

#[test]
fn a_service_that_is_well_is_said_to_be_in_one_line() {
    let service = Tidegate::start(&with_limit(1, ""));
    let address = service.address.to_string();
    for (arguments, said) in [
        (&[][..], "readiness is serving"),
        (&["--service", "liveness"], "liveness is serving"),
        (&["--service", ""], "the process is serving"),
        (&["--service", "envoy.service.auth.v3.Authorization"], "envoy.service.auth.v3.Authorization is serving"),
    ] {
        let (code, out, err) = patiently(&address, arguments);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(out.starts_with(&format!("{address}: {said}, in ")) && out.lines().count() == 1, "{out}");
    }
    let (code, out, err) = patiently(&address, &["--service", "nothing"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert_eq!(err, format!("tidegate: {address}: nothing is unknown\n"));
}

#[test]
fn without_an_address_the_one_that_the_service_listens_on_is_asked() {
    let service = Tidegate::start(&with_limit(1, ""));
    let listen = format!("0.0.0.0:{}", service.address.port());
    let output = program(&["probe", "--timeout", "20s"]).env("TIDEGATE_LISTEN", listen).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().starts_with(&service.address.to_string()));
}

#[test]
fn a_check_charges_an_address_that_nobody_has_and_says_what_was_answered() {
    let redis = Server::start(&[]);
    let store = format!("redis: {{urls: ['{}'], timeout: 10s}}\n", redis.url());
    let service = Tidegate::start(&with_limit(2, &store));
    let address = service.address.to_string();
    eventually("it is ready", || (patiently(&address, &[]).0 == Some(0)).then_some(()));
    let (code, out, err) = patiently(&address, &["--check", "--expect", "allowed"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains(": readiness is serving, check: allowed (tier free, 1 of 2 left), in "), "{out}");
    let mut keys: Vec<String> = redis.run(&["KEYS", "*"]);
    // The store asks itself whether it works, under a name of its own.
    keys.retain(|key| key != "rl:user:~probe");
    assert_eq!(keys, ["rl:ip:100::/64"]);

    let (code, _, err) = patiently(&address, &["--check", "--expect", "denied"]);
    assert_eq!(code, Some(1));
    assert!(err.ends_with("check: allowed (tier free, 0 of 2 left), not denied\n"), "{err}");

    // Denied is an answer as good as any, but where another is expected.
    let (code, out, _) = patiently(&address, &["--check"]);
    assert!(code == Some(0) && out.contains("check: denied (tier free, 0 of 2 left, again in "), "{out}");
    assert_eq!(patiently(&address, &["--check", "--expect", "denied"]).0, Some(0));
    let (code, _, err) = patiently(&address, &["--check", "--expect", "allowed"]);
    assert!(code == Some(1) && err.contains("check: denied (") && err.ends_with("), not allowed\n"), "{err}");
}

#[test]
fn json_tells_all_of_it_in_one_object() {
    let service = Tidegate::start(&with_limit(5, ""));
    let address = service.address.to_string();
    let (code, out, _) = patiently(&address, &["--json", "--check", "--expect", "allowed"]);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, Some(0));
    for (key, value) in [
        ("address", json!(address)),
        ("healthy", json!(true)),
        ("error", Value::Null),
        ("service", json!("readiness")),
        ("health", json!("serving")),
        ("expected", json!("allowed")),
    ] {
        assert_eq!(told[key], value, "{key}");
    }
    assert!(told["duration_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(told["check"]["answer"], "allowed");
    assert_eq!(told["check"]["metadata"]["remaining"], 4);

    let (code, out, err) = patiently(&format!("127.0.0.1:{}", free_port()), &["--json"]);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &told["healthy"], &told["health"]), (Some(1), &json!(false), &Value::Null));
    assert!(err.contains(told["error"].as_str().unwrap()), "{err}");
}

#[test]
fn a_service_whose_redis_is_dead_lives_and_is_not_ready() {
    let store = format!("redis: {{urls: ['redis://127.0.0.1:{}']}}\non_store_error: deny\n", free_port());
    let service = Tidegate::start(&with_limit(1, &store));
    let address = service.address.to_string();
    let (code, out, err) = patiently(&address, &[]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert_eq!(err, format!("tidegate: {address}: readiness is not serving\n"));
    assert_eq!(patiently(&address, &["--service", "liveness"]).0, Some(0));
    let (code, out, err) = patiently(&address, &["--service", "liveness", "--check", "--json"]);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &told["health"], &told["check"]["answer"]), (Some(1), &json!("serving"), &json!("failed")));
    assert!(err.contains("check: failed (unavailable"), "{err}");
}

#[test]
fn where_nobody_listens_or_something_else_does_it_fails_with_the_reason() {
    let nobody = format!("127.0.0.1:{}", free_port());
    let (code, out, err) = patiently(&nobody, &[]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.contains("cannot connect: ") && err.contains("refused"), "{err}");

    let (code, _, err) = patiently("unix:/nonexistent/tidegate.sock", &[]);
    assert!(code == Some(1) && err.contains("No such file"), "{err}");

    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for socket in other.incoming() {
            let _ = socket.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let (code, out, _) = patiently(&address, &[]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
}

#[test]
fn a_service_that_hangs_is_given_up_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    for tls in [&[][..], &["--tls"]] {
        let begun = Instant::now();
        let (code, out, err) = probe(&[&[address.as_str(), "--timeout", "300ms"], tls].concat());
        assert_eq!((code, out.as_str()), (Some(1), ""));
        assert_eq!(err, format!("tidegate: {address}: no answer within 300ms\n"));
        assert!(begun.elapsed() >= Duration::from_millis(300));
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    }
}

#[test]
fn a_unix_socket_is_asked_too() {
    let folder = tempfile::tempdir().unwrap();
    let listen = format!("unix:{}", folder.path().join("t.sock").display());
    let _service = Tidegate::start_on(&listen, &with_limit(1, ""), &[]);
    let (code, out, _) = patiently(&listen, &["--check", "--expect", "allowed"]);
    assert_eq!(code, Some(0));
    assert!(out.starts_with(&format!("{listen}: readiness is serving, check: allowed")), "{out}");
}

#[test]
fn wrong_usage_of_a_probe_ends_with_2() {
    for arguments in [
        &["nowhere"][..],
        &["http://127.0.0.1:1"],
        &["--expect", "allowed"],
        &["--check", "--expect", "perhaps"],
        &["--ca", "f"],
        &["--tls", "--cert", "f"],
        &["--tls", "--key", "f"],
        &["--timeout", "soon"],
    ] {
        let (code, out, err) = probe(arguments);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}: {err}");
    }
}

#[test]
fn files_that_are_no_certificates_are_said_to_be_so() {
    let (code, _, err) = probe(&["127.0.0.1:1", "--tls", "--ca", "/nonexistent/ca.pem"]);
    assert!(code == Some(1) && err.contains("cannot read /nonexistent/ca.pem"), "{err}");
    let (code, _, err) = probe(&["unix:/nonexistent.sock", "--tls"]);
    assert!(code == Some(1) && err.contains("--server-name"), "{err}");
}
