//! Introduces the two wings to each other: plan, take, decide.
//!
//! Gives decisions; knows no protocol. The take is the only await.

mod metered;

use crate::bucket::Taken;
use crate::complaint::Complaint;
use crate::metrics::Metrics;
use crate::policy::decision::{Decision, Unavailable, decide};
use crate::policy::request::Request;
use crate::policy::route::Oddity;
use crate::policy::{Plan, Policy, Step};
use crate::store::{Store, StoreError};
use std::sync::Arc;

/// The rate limiter: a policy over a store.
#[derive(Debug)]
pub struct Limiter {
    policy: Policy,
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    failures: Complaint,
    oddities: Complaint,
}

impl Limiter {
    pub fn new(policy: Policy, store: Arc<dyn Store>) -> Self {
        let metrics = Arc::new(Metrics::new(policy.tiers.iter().map(|tier| tier.name.as_str())));
        Self { policy, store, metrics, failures: Complaint::default(), oddities: Complaint::default() }
    }

    /// What it counts in.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
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
            if let Err(error) = &answer {
                self.complain_of_store(error, &plan);
            }
            let decision = decide(&plan, answer.as_ref().map(Option::as_ref).map_err(|_| Unavailable));
            metered::count(&self.metrics, &plan, &decision, answer.as_ref().err());
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

    fn complain_of_store(&self, error: &StoreError, plan: &Plan<'_>) {
        self.failures.say(|more| {
            let (kind, policy) = (error.kind(), plan.on_store_error);
            tracing::error!(kind, %error, ?policy, more, "the store failed, the answer follows on_store_error");
        });
    }
}
