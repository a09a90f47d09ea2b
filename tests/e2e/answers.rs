//! What an HTTP client is told.

use crate::support::client::Caller;
use crate::support::token::token;
use crate::support::{Gateway, shared, unique_user, upstream};
use http::Method;
use serde_json::json;
use std::time::Duration;

fn counts_down_to_a_429(caller: &Caller) {
    for remaining in (0..10).rev() {
        let answer = caller.get("/v1/hello");
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.limit_and_remaining(), (10, remaining));
        assert!(answer.number("x-ratelimit-reset") >= 1);
        assert_eq!(answer.header("retry-after"), None);
    }
    let answer = caller.get("/v1/hello");
    assert_eq!(answer.status, 429);
    assert_eq!(answer.limit_and_remaining(), (10, 0));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let retry_after = answer.number("retry-after");
    assert!(retry_after >= 1);
    let body = json!({"error": "rate_limit_exceeded", "retry_after": retry_after, "limits": ["user"]});
    assert_eq!(answer.json(), body);
    assert_eq!(answer.header("grpc-status"), None, "an HTTP client is told nothing of gRPC");
}

#[test]
fn a_burst_counts_down_to_a_429_over_http_1() {
    counts_down_to_a_429(&shared().user("standard"));
}

#[test]
fn a_burst_counts_down_to_a_429_over_http_2() {
    let gateway = shared();
    counts_down_to_a_429(&Caller::http2(gateway.envoy.edge()).bearer(&token(&unique_user(), "standard")));
}

#[test]
fn waiting_as_long_as_retry_after_says_is_enough() {
    let caller = shared().user("fast");
    let retry_after = caller.until_denied(Method::GET, "/v1/hello").number("retry-after");
    assert_eq!(retry_after, 1);
    // What is tested is this wait; it is not there to let something else happen.
    std::thread::sleep(Duration::from_secs(retry_after));
    assert_eq!(caller.get("/v1/hello").status, 200);
}

#[test]
fn the_upstreams_own_limit_headers_are_replaced() {
    let caller = shared().user("standard");
    for header in ["x-ratelimit-limit=999", "x-ratelimit-remaining=998", "x-ratelimit-reset=997"] {
        let said = [(upstream::SAY, header), (upstream::SAY, header), (upstream::SAY, "x-other=1")];
        let answer = caller.send(Method::GET, "/v1/hello", &said);
        assert_eq!(answer.header("x-other"), Some("1"));
        // Each read fails on a second copy.
        assert_eq!(answer.number("x-ratelimit-limit"), 10);
        assert!(answer.number("x-ratelimit-remaining") < 10);
        assert_ne!(answer.number("x-ratelimit-reset"), 997);
    }
}

#[test]
fn a_route_of_envoy_states_a_cost_that_no_client_can_change() {
    let caller = shared().user("standard").with("tidegate.cost", "0").with("x-tidegate-cost", "0");
    let remaining = |path| caller.get(path).number("x-ratelimit-remaining");
    assert_eq!(remaining("/v1/chat/completions"), 5);
    assert_eq!(remaining("/v1/hello"), 4);
    let denied = caller.get("/v1/chat/completions");
    assert_eq!(denied.status, 429);
    assert_eq!(remaining("/v1/hello"), 3, "the denied request took nothing");
}

#[test]
fn an_exempt_rule_charges_nothing_and_says_nothing() {
    let caller = shared().user("standard");
    for _ in 0..20 {
        let answer = caller.get("/v1/models");
        assert_eq!(answer.status, 200);
        assert!(!answer.has_limit_headers(), "{answer:?}");
    }
    assert_eq!(caller.get("/v1/hello").number("x-ratelimit-remaining"), 9);
    assert_eq!(caller.send(Method::POST, "/v1/models", &[]).number("x-ratelimit-remaining"), 8, "only GET is exempt");
}

#[test]
fn a_route_without_the_limiter_is_not_limited() {
    let gateway = shared();
    let caller = gateway.stranger();
    assert_eq!(caller.statuses("/healthz", 10), [200; 10]);
    assert_eq!(caller.get("/v1/hello").number("x-ratelimit-remaining"), 2);
}

#[test]
fn a_shadow_rule_denies_nothing_and_tells_the_access_log_what_it_would_have_done() {
    let gateway = shared();
    let caller = gateway.user("standard");
    let statuses = caller.statuses("/v1/embeddings", 5);
    assert_eq!(statuses, [200; 5]);
    let over = caller.get("/v1/embeddings/over-the-limit");
    assert_eq!((over.status, over.limit_and_remaining()), (200, (10, 0)));
    let entry = &gateway.envoy.logged("/v1/embeddings/over-the-limit");
    let told = &entry["ratelimit"];
    assert_eq!((&told["decision"], &told["shadow"]), (&json!("denied"), &json!(true)), "{entry}");
    assert_eq!((&told["rule"], &told["dimension"]), (&json!("embeddings"), &json!("user")));
    assert_eq!(caller.get("/v1/hello").status, 429, "what is on trial is counted like everything else");
}

#[test]
fn the_access_log_tells_a_denial_without_naming_anybody() {
    let gateway = shared();
    let user = unique_user();
    let caller = gateway.stranger().bearer(&token(&user, "standard"));
    assert_eq!(caller.statuses("/v1/hello", 10), [200; 10]);
    assert_eq!(caller.get("/v1/denied?api_key=in-the-query").status, 429);
    let entry = gateway.envoy.logged("/v1/denied");
    assert_eq!((&entry["status"], &entry["flags"]), (&json!(429), &json!("UAEX")));
    assert_eq!(entry["details"], "ext_authz_denied");
    let told = &entry["ratelimit"];
    assert_eq!((&told["decision"], &told["tier"]), (&json!("denied"), &json!("standard")));
    assert!(told["retry_after"].as_f64().unwrap() >= 1.0);
    let text = entry.to_string();
    assert!(!text.contains(&user) && !text.contains("in-the-query"), "{text}");
}

#[test]
fn a_preflight_costs_nothing_and_a_429_can_be_read_by_the_page() {
    const ORIGIN: (&str, &str) = ("origin", "http://localhost:3000");
    let gateway = shared();
    let caller = gateway.stranger();
    for _ in 0..10 {
        let preflight = [ORIGIN, ("access-control-request-method", "POST")];
        let answer = caller.send(Method::OPTIONS, "/v1/hello", &preflight);
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some(ORIGIN.1)));
        assert!(!answer.has_limit_headers(), "{answer:?}");
    }
    let statuses: Vec<u16> = (0..4).map(|_| caller.send(Method::GET, "/v1/hello", &[ORIGIN]).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    let denied = caller.send(Method::GET, "/v1/hello", &[ORIGIN]);
    assert_eq!((denied.status, denied.header("access-control-allow-origin")), (429, Some(ORIGIN.1)));
    let exposed = denied.header("access-control-expose-headers").unwrap();
    assert!(exposed.contains("retry-after") && exposed.contains("x-ratelimit-remaining"), "{exposed}");
}

#[test]
fn ietf_headers_are_sent_when_configured() {
    let gateway = Gateway::start_with(|config| config["headers"] = json!(["ietf"]), |_| ());
    let caller = gateway.user("standard");
    let said = [(upstream::SAY, "RateLimit=\"upstream\";r=1"), (upstream::SAY, "RateLimit-Policy=\"upstream\";q=1")];
    let answer = caller.send(Method::GET, "/v1/hello", &said);
    let (policy, limit) = (answer.header("ratelimit-policy").unwrap(), answer.header("ratelimit").unwrap());
    assert!(policy.starts_with(r#""user";q=10;w="#), "{policy}");
    assert!(limit.starts_with(r#""user";r=9;t="#), "{limit}");
    assert_eq!(answer.header("x-ratelimit-limit"), None);
}

#[test]
fn a_head_request_is_denied_with_the_same_headers_and_no_body() {
    let caller = shared().user("fast");
    let denied = caller.until_denied(Method::HEAD, "/v1/hello");
    assert!(denied.number("retry-after") >= 1);
    assert_eq!(denied.body, "");
}
