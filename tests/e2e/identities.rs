//! Whom the gateway takes a caller for, and what a caller can say to that.

use crate::support::token::{expired, forged, nested, token, without_subject};
use crate::support::{Gateway, shared, unique_user};
use http::Method;
use serde_json::json;

#[test]
fn a_signed_token_picks_user_and_tier() {
    let gateway = shared();
    let user = unique_user();
    for (tier, limit) in [("standard", 10), ("EnterPrise", 50)] {
        let caller = gateway.stranger().bearer(&token(&unique_user(), tier));
        assert_eq!(caller.get("/v1/hello").limit_and_remaining(), (limit, limit - 1));
    }
    let at_home = gateway.stranger().bearer(&token(&user, "standard"));
    let at_work = gateway.stranger().bearer(&token(&user, "standard"));
    at_home.statuses("/v1/hello", 5);
    assert_eq!(at_work.get("/v1/hello").limit_and_remaining(), (10, 4), "one bucket, wherever the user is");
}

#[test]
fn an_unknown_tier_is_the_default_tier() {
    let caller = shared().user("platinum");
    assert_eq!(caller.get("/v1/hello").limit_and_remaining(), (3, 2));
}

#[test]
fn a_forged_or_expired_token_is_no_token() {
    let gateway = shared();
    for bad in [forged, expired] {
        let victim = unique_user();
        let caller = gateway.stranger().bearer(&bad(&victim, "enterprise"));
        assert_eq!(caller.statuses("/v1/hello", 3), [200; 3]);
        let denied = caller.get("/v1/hello");
        assert_eq!((denied.status, &denied.json()["limits"]), (429, &json!(["ip"])));
        let victim = gateway.stranger().bearer(&token(&victim, "standard"));
        assert_eq!(victim.get("/v1/hello").limit_and_remaining(), (10, 9), "the victim paid nothing");
    }
}

/// A check that tidegate cannot decode is an error to Envoy, which lets it pass with `failure_mode_allow`.
#[test]
fn claims_nested_deep_lift_no_limit() {
    for depth in [10, 31, 60, 90] {
        let caller = shared().stranger().bearer(&nested(&unique_user(), "standard", depth));
        assert_eq!(caller.get("/v1/hello").limit_and_remaining(), (10, 9), "{depth}");
    }
}

#[test]
fn a_token_without_a_subject_is_limited_by_address() {
    let caller = shared().stranger().bearer(&without_subject("standard"));
    assert_eq!(caller.statuses("/v1/hello", 3), [200; 3]);
    let denied = caller.get("/v1/hello");
    assert_eq!((denied.status, &denied.json()["limits"]), (429, &json!(["ip"])));
}

#[test]
fn no_header_of_the_clients_changes_its_address() {
    let gateway = shared();
    let caller = gateway.stranger();
    let statuses: Vec<u16> = (0..5)
        .map(|turn| {
            let address = format!("203.0.113.{turn}");
            let headers = [
                ("x-forwarded-for", &*address),
                ("x-envoy-external-address", &*address),
                ("x-client-ip", &*address),
                ("x-real-ip", &*address),
                ("forwarded", &*format!("for={address}")),
            ];
            let answer = caller.send(Method::GET, "/v1/hello", &headers);
            if answer.status == 200 {
                assert_eq!(answer.upstream_saw("x-client-ip"), Some(caller.address().to_string()));
            }
            answer.status
        })
        .collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(gateway.stranger().get("/v1/hello").status, 200, "another address has another bucket");
}

#[test]
fn a_known_api_key_picks_its_tier_and_is_gone_before_the_upstream() {
    let gateway = shared();
    let caller = gateway.stranger().with("x-api-key", "demo-key-of-a-batch-job").with("x-other", "stays");
    let answer = caller.get("/v1/hello");
    assert_eq!(answer.number("x-ratelimit-limit"), 50);
    assert_eq!(answer.upstream_saw("x-api-key"), None);
    assert_eq!(answer.upstream_saw("x-other").as_deref(), Some("stays"));
    caller.get("/v1/known-key");
    assert_eq!(gateway.envoy.logged("/v1/known-key")["ratelimit"]["key_name"], "batch-job");
}

#[test]
fn an_unknown_api_key_has_a_bucket_at_the_default_tier() {
    let gateway = shared();
    let keyed = || gateway.stranger().with("x-api-key", "a-key-that-only-this-test-sends");
    assert_eq!(keyed().statuses("/v1/hello", 3), [200; 3]);
    let denied = keyed().get("/v1/hello");
    assert_eq!((denied.status, &denied.json()["limits"]), (429, &json!(["key"])), "from wherever it is sent");
}

#[test]
fn raw_headers_work_the_same() {
    let gateway = Gateway::start_with(|_| (), |envoy| envoy.ext_authz()["encode_raw_headers"] = json!(true));
    let keyed = gateway.stranger().with("x-api-key", "demo-key-of-a-batch-job");
    assert_eq!(keyed.get("/v1/hello").number("x-ratelimit-limit"), 50, "the key is found");
    assert_eq!(gateway.user("standard").get("/v1/hello").limit_and_remaining(), (10, 9));
    assert!(!gateway.user("standard").get("/v1/models").has_limit_headers(), "method and path are found");
    for _ in 0..2 {
        let stranger = gateway.stranger();
        assert_eq!(stranger.statuses("/v1/hello", 4), [200, 200, 200, 429], "each address is found");
    }
    let grpc = gateway.stranger().with("content-type", "application/grpc-web");
    let denied = grpc.until_denied(Method::GET, "/v1/hello");
    assert_eq!(denied.header("grpc-status"), None);
}
