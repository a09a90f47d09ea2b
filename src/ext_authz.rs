//! Envoy's external authorization service: the edge where wire types stop.
//!
//! Takes CheckRequests, gives CheckResponses; decides nothing.

mod explain;
pub mod headers;
pub mod json;
pub mod metadata;
pub mod proto;
pub mod request;
pub mod response;
mod scan;

pub use explain::explain;

use crate::audit::{Audit, Excerpt};
use crate::jwt::Verified;
use crate::limiter::{Checked, Limiter};
use crate::policy;
use crate::policy::identity::Sources;
use crate::trace::{Parent, Tracer};
use proto::authorization_server::Authorization;
use proto::{CheckRequest, CheckResponse};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

/// The service's name, which is also the name its health goes by.
pub const SERVICE: &str = proto::authorization_server::SERVICE_NAME;

/// Answers `Check`.
#[derive(Clone, Debug)]
pub struct Service {
    limiter: Arc<Limiter>,
    audit: Option<Arc<Audit>>,
    tracer: Option<Arc<Tracer>>,
}

impl Service {
    pub fn new(limiter: Arc<Limiter>) -> Self {
        Self { limiter, audit: None, tracer: None }
    }

    /// Has a trail kept of what is refused.
    #[must_use]
    pub fn audited(self, audit: Option<Arc<Audit>>) -> Self {
        Self { audit, ..self }
    }

    /// With a span of each check that is to be traced.
    #[must_use]
    pub fn traced(self, tracer: Option<Arc<Tracer>>) -> Self {
        Self { tracer, ..self }
    }
}

impl Service {
    /// Waits for an answer, and not with the whole request in hand, which may be large: where the answer is not there at
    /// once, only what the audit trail may tell of it is kept.
    async fn answered<'s>(
        &self,
        answer: impl Future<Output = Checked<'s>>,
        check: CheckRequest,
    ) -> (Checked<'s>, ToldOf) {
        let mut answer = pin!(answer);
        if let Poll::Ready(checked) = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await {
            return (checked, ToldOf::Whole(check));
        }
        let excerpt = self.audit.as_ref().map(|_| Excerpt::of(&request::read(&check)));
        drop(check);
        (answer.await, ToldOf::Excerpt(excerpt.unwrap_or_default()))
    }
}

/// What the audit trail is told a request by.
#[allow(clippy::large_enum_variant, reason = "it is there for a moment, and a box would cost each check an allocation")]
enum ToldOf {
    Whole(CheckRequest),
    Excerpt(Excerpt),
}

impl ToldOf {
    fn excerpt(self) -> Excerpt {
        match self {
            Self::Whole(check) => Excerpt::of(&request::read(&check)),
            Self::Excerpt(excerpt) => excerpt,
        }
    }
}

#[tonic::async_trait]
impl Authorization for Service {
    async fn check(&self, check: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        let (metadata, _, check) = check.into_parts();
        // Kept to the end: a policy that replaces it meanwhile is for checks that begin after that.
        let snapshot = self.limiter.snapshot();
        let (grpc, span, answer) = {
            let read = request::read(&check);
            let verified = snapshot.verify(&read);
            if let Some(verified) = &verified {
                self.limiter.metrics().jwt.verified(verified.verdict);
            }
            let request = policy::request::Request { claims: verified.as_ref().and_then(Verified::claims), ..read };
            let span = self.tracer.as_ref().and_then(|tracer| tracer.begin(parent(&metadata, &request)));
            (request.is_grpc(), span, self.limiter.check(&snapshot, &request))
        };
        let (checked, told_of) = self.answered(answer, check).await;
        if let Some(span) = span {
            span.end(&checked);
        }
        let Checked { plan, decision, source, .. } = checked;
        if let Some(audit) = &self.audit {
            audit.checked(&plan, &decision, source, &snapshot.policy().sources.digester, || told_of.excerpt());
        }
        let (answers, sources) = (&snapshot.policy().answers, &snapshot.policy().sources);
        let wording =
            response::Wording { answers, digester: &sources.digester, key_headers: key_headers(sources), grpc };
        response::write(&plan, &decision, wording).map(Response::new)
    }
}

/// The span that a check belongs to: Envoy's own, of the call, else the one that the client's request names.
fn parent(metadata: &MetadataMap, request: &policy::request::Request<'_>) -> Option<Parent> {
    let of_call = metadata.get(headers::TRACEPARENT).and_then(|value| Parent::parse(value.as_bytes()));
    of_call.or_else(|| Parent::parse(&request.header(headers::TRACEPARENT)?))
}

/// The headers that carry API keys.
fn key_headers(sources: &Sources) -> impl Iterator<Item = &str> {
    sources.key.iter().map(|source| source.header())
}
