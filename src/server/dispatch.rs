//! Which gRPC service answers a request: Authorization, health, or nobody.

use crate::ext_authz::Service;
use crate::ext_authz::proto::authorization_server::AuthorizationServer;
use crate::server::health::Health;
use hyper::Request;
use hyper::body::Incoming;
use std::convert::Infallible;
use std::fmt;
use tonic::Status;
use tonic::codegen::{BoxFuture, Service as _, http};
use tonic::server::NamedService;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;

/// How large a check may be, in bytes. Envoy sends bodies when its filter has `with_request_body`, and a check that is
/// refused for its size is one that Envoy may let pass: so it is more than any Envoy buffers.
const MAX_CHECK_BYTES: usize = 1 << 30;

/// The services of one endpoint, for hyper. Clones share them.
///
/// A router of tonic's would do the same with two more allocations for each request.
#[derive(Clone)]
pub(super) struct Dispatch {
    checks: AuthorizationServer<Service>,
    health: HealthServer<HealthService>,
}

impl fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatch").finish_non_exhaustive()
    }
}

impl Dispatch {
    pub(super) fn new(service: Service, health: &Health) -> Self {
        let checks = AuthorizationServer::new(service).max_decoding_message_size(MAX_CHECK_BYTES);
        Self { checks, health: health.service() }
    }
}

impl hyper::service::Service<Request<Incoming>> for Dispatch {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        if names::<AuthorizationServer<Service>>(&request) {
            self.checks.clone().call(request)
        } else if names::<HealthServer<HealthService>>(&request) {
            self.health.clone().call(request)
        } else {
            Box::pin(std::future::ready(Ok(Status::unimplemented("").into_http())))
        }
    }
}

/// Whether a request's path is `/service/method` with this service's name.
fn names<S: NamedService>(request: &Request<Incoming>) -> bool {
    let method = request.uri().path().strip_prefix('/').and_then(|path| path.strip_prefix(S::NAME));
    method.is_some_and(|method| method.starts_with('/'))
}
