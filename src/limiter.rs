//! Introduces the two wings to each other: plan, take, decide.
//!
//! Gives decisions; knows no protocol. The take is the only await.

use crate::bucket::Taken;
use crate::complaint::Complaint;
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
    failures: Complaint,
    oddities: Complaint,
}

impl Limiter {
    pub fn new(policy: Policy, store: Arc<dyn Store>) -> Self {
        Self { policy, store, failures: Complaint::default(), oddities: Complaint::default() }
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Charges one request and says what came of it. Never fails: what a failed store means is the policy's to say.
    ///
    /// The request is read before the first await and not kept: the future holds the plan alone.
    pub fn check<'l>(&'l self, request: &Request<'_>) -> impl Future<Output = (Plan<'l>, Decision)> + Send + use<'l> {
        let plan = self.policy.plan(self.policy.draft(request), None);
        async move {
            if let Some(oddity) = plan.oddity {
                self.complain_of(oddity, &plan);
            }
            let answer = self.ask(&plan).await;
            if let Err(error) = &answer {
                self.complain_of_store(error, &plan);
            }
            let decision = decide(&plan, answer.as_ref().map(Option::as_ref).map_err(|_| Unavailable));
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
