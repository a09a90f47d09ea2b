//! Introduces the two wings to each other: plan, take, decide.
//!
//! Gives decisions; knows no protocol. The take is the only await.

mod fallback;
mod outage;

use crate::bucket::Taken;
use crate::clock::{Clock, SteadyClock};
use crate::complaint::Complaint;
use crate::policy::decision::{Decision, Unavailable, decide};
use crate::policy::request::Request;
use crate::policy::route::Oddity;
use crate::policy::{Plan, Policy, Step};
use crate::store::{Store, StoreError};
use fallback::Fallback;
use std::sync::Arc;

/// Buckets at most of an outage, where nothing else is said.
const FALLBACK_CAPACITY: usize = 1_000_000;

/// The rate limiter: a policy over a store.
#[derive(Debug)]
pub struct Limiter {
    policy: Policy,
    store: Arc<dyn Store>,
    fallback: Fallback,
    oddities: Complaint,
}

impl Limiter {
    pub fn new(policy: Policy, store: Arc<dyn Store>) -> Self {
        let fallback = Fallback::new(Arc::new(SteadyClock::default()), FALLBACK_CAPACITY);
        Self { policy, store, fallback, oddities: Complaint::default() }
    }

    /// With another clock for outages and their buckets, and another bound on how many buckets those may be.
    pub fn with_fallback(self, clock: Arc<dyn Clock>, capacity: usize) -> Self {
        Self { fallback: Fallback::new(clock, capacity), ..self }
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Charges one request and says what came of it. Never fails: what a failed store means is the policy's to say.
    ///
    /// The request is read before the first await and not kept: the future holds the plan alone.
    pub fn check<'l>(&'l self, request: &Request<'_>) -> impl Future<Output = (Plan<'l>, Decision)> + Send + use<'l> {
        let plan = self.policy.plan(request);
        async move {
            if let Some(oddity) = plan.oddity {
                self.complain_of(oddity, &plan);
            }
            let answer = self.ask(&plan).await;
            let decision = self.conclude(&plan, &answer);
            (plan, decision)
        }
    }

    async fn ask(&self, plan: &Plan<'_>) -> Result<Option<Taken>, StoreError> {
        match plan.step() {
            Step::Nothing | Step::NeverFits => Ok(None),
            Step::Peek => self.store.peek(&plan.charges).await.map(|found| Some(Taken { admitted: true, ..found })),
            Step::Take => self.store.take(&plan.charges).await.map(Some),
        }
    }

    fn complain_of(&self, oddity: Oddity, plan: &Plan<'_>) {
        self.oddities.say(|more| {
            tracing::warn!(?oddity, rule = plan.rule, more, "cannot follow Envoy's context_extensions");
        });
    }

    fn conclude(&self, plan: &Plan<'_>, answer: &Result<Option<Taken>, StoreError>) -> Decision {
        match answer {
            Ok(None) => decide(plan, Ok(None)),
            Ok(Some(taken)) => {
                self.fallback.answered();
                decide(plan, Ok(Some(taken)))
            }
            Err(error) => {
                let local = self.fallback.failed(plan, error);
                decide(plan, Err(Unavailable { error: error.kind(), local: local.as_ref() }))
            }
        }
    }
}
