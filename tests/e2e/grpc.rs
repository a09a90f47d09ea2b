//! What gRPC clients are told.

use crate::support::token::token;
use crate::support::{shared, unique_user};
use http::Method;
use std::net::SocketAddr;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// Calls a method of the upstream's until it fails, and gives the answers' metadata and the failure.
async fn call_until_denied(edge: SocketAddr, token: &str) -> (Vec<MetadataMap>, Status) {
    let channel = Endpoint::from_shared(format!("http://{edge}")).unwrap().connect().await.unwrap();
    let bearer: AsciiMetadataValue = format!("Bearer {token}").parse().unwrap();
    let mut client = HealthClient::with_interceptor(channel, move |mut request: Request<()>| {
        request.metadata_mut().insert("authorization", bearer.clone());
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
    let token = token(&unique_user(), "standard");
    let (answers, status) = runtime.block_on(call_until_denied(gateway.envoy.edge(), &token));
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
fn a_grpc_web_client_gets_a_plain_429() {
    for kind in ["application/grpc-web+proto", "application/grpc-web", "application/connect+proto"] {
        let caller = shared().stranger().with("content-type", kind);
        let denied = caller.until_denied(Method::POST, "/grpc.health.v1.Health/Check");
        assert_eq!((denied.header("grpc-status"), denied.header("grpc-retry-pushback-ms")), (None, None), "{kind}");
        assert!(denied.number("retry-after") >= 1);
    }
}
