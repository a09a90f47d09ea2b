//! What happens when tidegate, or its store, is away.

use crate::support::client::Caller;
use crate::support::envoy::{Config, Envoy};
use crate::support::service::{self, Tidegate};
use crate::support::{Gateway, Watched, eventually, redis};
use http::Method;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The header by which Envoy tells the upstream that it could not ask.
const ENVOY_LET_PASS: &str = "x-envoy-auth-failure-mode-allowed";
const DEGRADED: &str = "x-ratelimit-degraded";

/// A Redis that refuses connections.
fn dead_redis(config: &mut Value) {
    let (port, _) = redis::Server::start(&[]).kill();
    config["redis"] = json!({"urls": [format!("redis://127.0.0.1:{port}")], "timeout": "500ms"});
}

/// A gateway that is to deny while its Redis is dead.
fn denying(change_tidegate: impl FnOnce(&mut Value), failure_mode_allow: bool) -> Watched<Gateway> {
    Gateway::start_with(
        |config| {
            dead_redis(config);
            config["on_store_error"] = json!("deny");
            change_tidegate(config);
        },
        |envoy| envoy.ext_authz()["failure_mode_allow"] = json!(failure_mode_allow),
    )
}

#[test]
fn envoy_counts_what_was_allowed_and_denied() {
    let gateway = Gateway::start();
    assert_eq!(gateway.stranger().statuses("/v1/hello", 5), [200, 200, 200, 429, 429]);
    let counted = ["ok", "denied", "error", "invalid", "failure_mode_allowed"].map(|name| gateway.envoy.counted(name));
    assert_eq!(counted, [3, 2, 0, 0, 0]);
    assert_eq!(gateway.envoy.stat("cluster.upstream.upstream_rq_4xx"), 0, "the upstream has answered none of the 429s");
}

#[test]
fn a_dead_store_is_a_503_and_an_error_to_envoy_when_the_policy_is_to_deny() {
    let gateway = denying(|_| (), false);
    let answer = gateway.user("standard").get("/v1/hello");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json(), json!({"error": "rate_limiter_unavailable"}));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.number("retry-after"), 1);
    let counted = ["ok", "denied", "error"].map(|name| gateway.envoy.counted(name));
    assert_eq!(counted, [0, 0, 1]);
}

#[test]
fn a_failing_call_is_a_503_and_an_error_to_envoy_too() {
    let gateway = denying(|config| config["error_answer"] = json!("grpc_status"), false);
    assert_eq!(gateway.user("standard").get("/v1/hello").status, 503);
    let counted = ["ok", "denied", "error"].map(|name| gateway.envoy.counted(name));
    assert_eq!(counted, [0, 0, 1]);
}

/// An operator who wants `deny` has to want it in both files: the shipped envoy.yaml says so.
#[test]
fn failure_mode_allow_of_envoy_overrides_deny() {
    for error_answer in ["error_response", "grpc_status"] {
        let gateway = denying(|config| config["error_answer"] = json!(error_answer), true);
        let answer = gateway.user("standard").get("/v1/hello");
        assert_eq!(answer.status, 200, "{error_answer}");
        assert_eq!(answer.upstream_saw(ENVOY_LET_PASS).as_deref(), Some("true"));
        assert_eq!(gateway.envoy.counted("failure_mode_allowed"), 1);
    }
}

#[test]
fn a_dead_store_lets_requests_pass_and_tells_only_the_upstream() {
    let gateway = Gateway::start_with(dead_redis, |_| ());
    for claimed in [None, Some((DEGRADED, "false"))] {
        let headers: Vec<_> = claimed.into_iter().collect();
        let answer = gateway.user("standard").send(Method::GET, "/v1/hello", &headers);
        assert_eq!(answer.status, 200);
        assert_eq!(answer.upstream_saw(DEGRADED).as_deref(), Some("true"));
        assert!(!answer.has_limit_headers(), "{answer:?}");
    }
    assert_eq!(gateway.envoy.counted("error"), 0, "tidegate answered");
}

/// A dead Redis, for which buckets of so many replicas stand in.
fn local(replicas: u32) -> impl FnOnce(&mut Value) {
    move |config| {
        dead_redis(config);
        config["on_store_error"] = json!("local");
        config["replicas_hint"] = json!(replicas);
    }
}

#[test]
fn a_dead_store_leaves_each_replica_its_share_of_the_limits_when_the_policy_is_local() {
    let gateway = Gateway::start_with(local(5), |_| ());
    let caller = gateway.user("standard");
    for (remaining, claimed) in [(1, None), (0, Some((DEGRADED, "false")))] {
        let headers: Vec<_> = claimed.into_iter().collect();
        let answer = caller.send(Method::GET, "/v1/hello", &headers);
        assert_eq!((answer.status, answer.limit_and_remaining()), (200, (2, remaining)));
        assert_eq!(answer.upstream_saw(DEGRADED).as_deref(), Some("true"));
        assert_eq!(answer.header(DEGRADED), None, "it is said to the upstream only");
    }
    let denied = caller.send(Method::GET, "/v1/hello", &[(DEGRADED, "true")]);
    assert_eq!((denied.status, denied.limit_and_remaining()), (429, (2, 0)));
    assert_eq!(denied.json()["error"], "rate_limit_exceeded");
    assert!(denied.number("retry-after") > 1000, "a share refills at its share of the rate: {denied:?}");
    let counted = ["ok", "denied", "error"].map(|name| gateway.envoy.counted(name));
    assert_eq!(counted, [2, 1, 0], "a denial of a local bucket is no error to Envoy");
}

#[test]
fn a_share_that_never_covers_a_request_is_a_503_and_not_a_denial() {
    let gateway = Gateway::start_with(local(20), |envoy| envoy.ext_authz()["failure_mode_allow"] = json!(false));
    let answer = gateway.user("standard").get("/v1/hello");
    assert_eq!((answer.status, answer.number("retry-after")), (503, 1));
    assert_eq!(answer.json(), json!({"error": "rate_limiter_unavailable"}));
    let counted = ["ok", "denied", "error"].map(|name| gateway.envoy.counted(name));
    assert_eq!(counted, [0, 0, 1]);
}

#[test]
fn one_outage_is_a_503_to_one_tier_and_nothing_to_another() {
    let gateway = denying(|config| config["tiers"]["enterprise"]["on_store_error"] = json!("allow"), false);
    assert_eq!(gateway.user("standard").get("/v1/hello").status, 503);
    let answer = gateway.user("enterprise").get("/v1/hello");
    assert_eq!((answer.status, answer.upstream_saw(DEGRADED).as_deref()), (200, Some("true")));
}

#[test]
fn the_access_log_tells_what_was_decided_without_the_store_and_why() {
    let gateway = denying(
        |config| {
            config["tiers"]["enterprise"]["on_store_error"] = json!("allow");
            config["tiers"]["free"]["on_store_error"] = json!("local");
            config["replicas_hint"] = json!(3);
        },
        false,
    );
    let free = gateway.user("free");
    let asked = [
        (&gateway.user("enterprise"), "/v1/passes", 200, "degraded"),
        (&free, "/v1/fits-the-share", 200, "allowed"),
        (&free, "/v1/is-above-the-share", 429, "denied"),
        (&gateway.user("standard"), "/v1/is-refused", 503, "unavailable"),
    ];
    for (caller, path, status, decision) in asked {
        assert_eq!(caller.get(path).status, status, "{path}");
        let entry = gateway.envoy.logged(path);
        assert_eq!(entry["ratelimit"]["decision"], decision, "{entry}");
        assert_eq!(entry["ratelimit"]["degraded"], true, "{entry}");
        assert_eq!(entry["ratelimit"]["store_error"], "connection", "{entry}");
    }
}

#[test]
fn a_client_cannot_claim_that_the_limiter_is_degraded() {
    let gateway = Gateway::start();
    let claim = [(DEGRADED, "true"), (ENVOY_LET_PASS, "true")];
    for path in ["/v1/hello", "/v1/models"] {
        let answer = gateway.user("standard").send(Method::GET, path, &claim);
        assert_eq!((answer.upstream_saw(DEGRADED), answer.upstream_saw(ENVOY_LET_PASS)), (None, None), "{path}");
    }
}

#[test]
fn a_killed_tidegate_lets_requests_pass_and_envoy_tells_the_upstream() {
    let mut gateway = Gateway::start();
    let caller = gateway.user("standard");
    assert_eq!(caller.get("/v1/hello").number("x-ratelimit-remaining"), 9);
    gateway.tidegate.child().signal("KILL");
    gateway.tidegate.child_mut().wait_until_ended();
    for _ in 0..20 {
        let answer = caller.send(Method::GET, "/v1/hello", &[(DEGRADED, "true")]);
        assert_eq!(answer.status, 200);
        assert!(!answer.has_limit_headers(), "{answer:?}");
        assert_eq!(answer.upstream_saw(ENVOY_LET_PASS).as_deref(), Some("true"));
        assert_eq!(answer.upstream_saw(DEGRADED), None, "nobody else says so either");
    }
    assert_eq!(gateway.envoy.counted("failure_mode_allowed"), 20);
}

#[test]
fn a_frozen_tidegate_costs_a_request_no_more_than_the_timeout() {
    let gateway = Gateway::start_with(|_| (), |envoy| envoy.ext_authz()["grpc_service"]["timeout"] = json!("0.3s"));
    let caller = gateway.user("standard");
    caller.get("/v1/hello");
    gateway.tidegate.child().signal("STOP");
    let start = Instant::now();
    let answer = caller.get("/v1/hello");
    assert_eq!((answer.status, answer.has_limit_headers()), (200, false));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    gateway.tidegate.child().signal("CONT");
}

#[test]
fn a_replica_that_is_told_to_stop_drains_without_one_failed_request() {
    let mut config = service::config();
    config["tiers"]["enterprise"]["per_user"] = json!({"max_tokens": 1e6, "refill_rate": 1e6});
    let (mut leaving, staying) = (Tidegate::start(&config), Tidegate::start(&config));
    let mut envoy_config = Config::new(&[leaving.listen(), staying.listen()]);
    envoy_config.ext_authz()["failure_mode_allow"] = json!(false);
    let envoy = Envoy::start(&envoy_config);
    let stop = AtomicBool::new(false);
    let load = || {
        let caller = Caller::new(envoy.edge()).bearer(&crate::support::token::token("load", "enterprise"));
        let mut passed = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            let answer = caller.get("/v1/hello");
            assert_eq!(answer.status, 200, "after {passed}: {answer:?}");
            passed += 1;
        }
        passed
    };
    let (passed, code) = std::thread::scope(|scope| {
        let load = scope.spawn(load);
        let before = envoy.counted("ok");
        eventually("there is load", || (envoy.counted("ok") > before + 20).then_some(()));
        leaving.child().signal("TERM");
        let code = leaving.child_mut().wait_until_ended();
        let at_the_end = envoy.counted("ok");
        eventually("the load goes on without it", || (envoy.counted("ok") > at_the_end + 20).then_some(()));
        stop.store(true, Ordering::Relaxed);
        (load.join().unwrap(), code)
    });
    assert_eq!(code, 0);
    assert_eq!((envoy.counted("ok"), envoy.counted("error")), (passed, 0));
}

#[test]
fn connections_that_grow_old_are_replaced_without_one_failed_request() {
    const CALLERS: usize = 8;
    let gateway = Gateway::start_with(
        |config| {
            config["max_connection_age"] = json!("1s");
            config["tiers"]["enterprise"]["per_user"] = json!({"max_tokens": 1e6, "refill_rate": 1e6});
        },
        |envoy| envoy.ext_authz()["failure_mode_allow"] = json!(false),
    );
    let stop = AtomicBool::new(false);
    let load = || {
        let caller = gateway.user("enterprise");
        let mut passed = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            let answer = caller.get("/v1/hello");
            assert_eq!(answer.status, 200, "after {passed}: {answer:?}");
            passed += 1;
        }
        passed
    };
    let opened = || gateway.envoy.stat("cluster.limiter.upstream_cx_total");
    let passed: u64 = std::thread::scope(|scope| {
        let loads: Vec<_> = (0..CALLERS).map(|_| scope.spawn(load)).collect();
        let before = opened();
        eventually("connections are renewed", || (opened() >= before + 4).then_some(()));
        stop.store(true, Ordering::Relaxed);
        loads.into_iter().map(|load| load.join().unwrap()).sum()
    });
    assert_eq!((gateway.envoy.counted("ok"), gateway.envoy.counted("error")), (passed, 0));
}

#[test]
fn the_limiter_can_be_switched_off_while_envoy_runs() {
    let gateway = Gateway::start();
    let caller = gateway.stranger();
    assert_eq!(caller.statuses("/v1/hello", 4), [200, 200, 200, 429]);
    assert_eq!(gateway.envoy.order("/runtime_modify?ratelimit.enabled=0").status, 200);
    eventually("the limiter is off", || (caller.get("/v1/hello").status == 200).then_some(()));
    assert!(gateway.envoy.counted("disabled") >= 1);
    assert_eq!(gateway.envoy.order("/runtime_modify?ratelimit.enabled=100").status, 200);
    eventually("the limiter is on again", || (caller.get("/v1/hello").status == 429).then_some(()));
}

#[test]
fn a_tidegate_that_is_not_ready_is_not_asked_though_it_is_the_only_one() {
    let mut gateway = Gateway::start_with(|config| config["drain"] = json!("300s"), |_| ());
    let caller = gateway.user("standard");
    assert_eq!(caller.get("/v1/models").upstream_saw(ENVOY_LET_PASS), None);
    gateway.tidegate.child().signal("TERM");
    eventually("Envoy stops asking", || caller.get("/v1/models").upstream_saw(ENVOY_LET_PASS));
    assert_eq!(gateway.tidegate.child_mut().exit_code(), None, "it would still answer");
    assert_eq!(gateway.envoy.stat("cluster.limiter.membership_healthy"), 0);
}
