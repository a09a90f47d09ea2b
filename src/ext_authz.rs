//! Envoy's external authorization service: the edge where wire types stop.
//!
//! Takes CheckRequests, gives CheckResponses; decides nothing.

mod explain;
pub mod headers;
pub mod json;
pub mod proto;
pub mod request;
pub mod response;
mod scan;

pub use explain::explain;

use crate::audit::{Audit, Excerpt};
use crate::limiter::{Checked, Limiter};
use crate::policy::identity::Sources;
use proto::authorization_server::Authorization;
use proto::{CheckRequest, CheckResponse};
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// The service's name, which is also the name its health goes by.
pub const SERVICE: &str = proto::authorization_server::SERVICE_NAME;

/// Answers `Check`.
#[derive(Clone, Debug)]
pub struct Service {
    limiter: Arc<Limiter>,
    audit: Option<Arc<Audit>>,
}

impl Service {
    pub fn new(limiter: Arc<Limiter>) -> Self {
        Self { limiter, audit: None }
    }

    /// Has a trail kept of what is refused.
    #[must_use]
    pub fn audited(self, audit: Option<Arc<Audit>>) -> Self {
        Self { audit, ..self }
    }
}

#[tonic::async_trait]
impl Authorization for Service {
    async fn check(&self, check: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        let check = check.into_inner();
        // Kept to the end: a policy that replaces it meanwhile is for checks that begin after that.
        let snapshot = self.limiter.snapshot();
        let (grpc, excerpt, answer) = {
            let request = request::read(&check);
            let excerpt = self.audit.as_ref().map(|_| Excerpt::of(&request));
            (request.is_grpc(), excerpt, self.limiter.check(&snapshot, &request))
        };
        drop(check);
        let Checked { plan, decision, source, .. } = answer.await;
        if let Some(audit) = &self.audit {
            audit.checked(&plan, &decision, source, &snapshot.policy().sources.digester, excerpt);
        }
        let (answers, sources) = (&snapshot.policy().answers, &snapshot.policy().sources);
        let wording =
            response::Wording { answers, digester: &sources.digester, key_headers: key_headers(sources), grpc };
        response::write(&plan, &decision, wording).map(Response::new)
    }
}

/// The headers that carry API keys.
fn key_headers(sources: &Sources) -> impl Iterator<Item = &str> {
    sources.key.iter().map(|source| source.header())
}
