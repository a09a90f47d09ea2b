//! What gRPC clients are told.

use crate::support::token::token;
use crate::support::{Gateway, shared, unique_user};
use http::Method;
use serde_json::{Value, json};
use std::net::SocketAddr;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// Calls a method of the upstream's until it fails, and gives the answers' metadata and the failure.
async fn call_until_denied(edge: SocketAddr, header: &'static str, value: &str) -> (Vec<MetadataMap>, Status) {
    let channel = Endpoint::from_shared(format!("http://{edge}")).unwrap().connect().await.unwrap();
    let value: AsciiMetadataValue = value.parse().unwrap();
    let mut client = HealthClient::with_interceptor(channel, move |mut request: Request<()>| {
        request.metadata_mut().insert(header, value.clone());
        Ok(request)
    });
    let mut answers = Vec::new();
    loop {
        match client.check(HealthCheckRequest::default()).await {
            Ok(answer) => answers.push(answer.metadata().clone()),
            Err(status) => return (answers, status),
        }
        assert!(answers.len() <= 10, "never denied");
    }
}

#[test]
fn a_grpc_client_sees_resource_exhausted_and_when_to_come_again() {
    let gateway = shared();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bearer = format!("Bearer {}", token(&unique_user(), "standard"));
    let (answers, status) = runtime.block_on(call_until_denied(gateway.envoy.edge(), "authorization", &bearer));
    assert_eq!(answers.len(), 10, "{status:?}");
    assert_eq!(answers[0].get("x-ratelimit-remaining").unwrap(), "9");

    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("rate_limit_exceeded"), "{status:?}");
    let number = |name: &str| status.metadata().get(name).unwrap().to_str().unwrap().parse::<u64>().unwrap();
    assert!(number("retry-after") >= 1);
    assert_eq!(number("grpc-retry-pushback-ms"), 1000 * number("retry-after"));
    assert_eq!((number("x-ratelimit-limit"), number("x-ratelimit-remaining")), (10, 0));
    assert!(number("x-ratelimit-reset") >= 1);
}

#[test]
fn a_suspended_key_is_denied_over_http_and_grpc_and_told_of_no_time_to_come_again() {
    const KEY: &str = "demo-key-of-a-batch-job";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (answer, code, pushback) in [(403, Code::PermissionDenied, None), (429, Code::ResourceExhausted, Some("-1"))] {
        let suspend = |config: &mut Value| {
            config["api_keys"][0]["suspended"] = json!(true);
            config["suspended_answer"] = json!(answer);
        };
        let gateway = Gateway::start_with(suspend, |_| ());
        let denied = gateway.stranger().with("x-api-key", KEY).get("/v1/hello");
        assert_eq!((denied.status, denied.body.as_str()), (answer, r#"{"error":"api_key_suspended"}"#));
        assert!(!denied.has_limit_headers(), "{denied:?}");
        assert_eq!((denied.header("retry-after"), denied.header("grpc-status")), (None, None));

        let (answers, status) = runtime.block_on(call_until_denied(gateway.envoy.edge(), "x-api-key", KEY));
        assert_eq!((answers.len(), status.code()), (0, code), "{status:?}");
        let told = status.metadata().get("grpc-retry-pushback-ms").map(|value| value.to_str().unwrap());
        assert_eq!((told, status.metadata().get("retry-after")), (pushback, None));
        assert_eq!(gateway.stranger().get("/v1/hello").status, 200, "who has no key is none of its business");
    }
}

#[test]
fn a_grpc_web_client_gets_a_plain_429() {
    for kind in ["application/grpc-web+proto", "application/grpc-web", "application/connect+proto"] {
        let caller = shared().stranger().with("content-type", kind);
        let denied = caller.until_denied(Method::POST, "/grpc.health.v1.Health/Check");
        assert_eq!((denied.header("grpc-status"), denied.header("grpc-retry-pushback-ms")), (None, None), "{kind}");
        assert!(denied.number("retry-after") >= 1);
    }
}
