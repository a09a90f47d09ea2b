//! Introduces the two wings to each other: plan, take, decide.
//!
//! Gives decisions; knows no protocol. The take is the only await.

mod dedupe;

use crate::bucket::Taken;
use crate::clock::Stopwatch;
use crate::complaint::Complaint;
use crate::policy::decision::{Decision, Unavailable, decide};
use crate::policy::request::Request;
use crate::policy::route::Oddity;
use crate::policy::{Plan, Policy, Step};
use crate::store::{Store, StoreError};
use dedupe::Dedupe;
use std::sync::Arc;

/// The rate limiter: a policy over a store.
#[derive(Debug)]
pub struct Limiter {
    policy: Policy,
    store: Arc<dyn Store>,
    dedupe: Option<Dedupe>,
    failures: Complaint,
    oddities: Complaint,
}

impl Limiter {
    pub fn new(policy: Policy, store: Arc<dyn Store>) -> Self {
        Self { policy, store, dedupe: None, failures: Complaint::default(), oddities: Complaint::default() }
    }

    /// Charges a request about which Envoy asks again once. Checks then run on a tokio runtime only.
    pub fn deduping(mut self, stopwatch: Arc<dyn Stopwatch>) -> Self {
        self.dedupe = Some(Dedupe::new(self.store.clone(), stopwatch));
        self
    }

    /// Checks that were not charged since Envoy had asked the same before.
    pub fn repeats(&self) -> u64 {
        self.dedupe.as_ref().map_or(0, Dedupe::repeats)
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Charges one request and says what came of it. Never fails: what a failed store means is the policy's to say.
    ///
    /// The request is read before the first await and not kept: the future holds the plan alone.
    pub fn check<'l>(&'l self, request: &Request<'_>) -> impl Future<Output = (Plan<'l>, Decision)> + Send + use<'l> {
        let plan = self.policy.plan(request);
        let id = self.dedupe.as_ref().and_then(|_| dedupe::id(request));
        async move {
            if let Some(oddity) = plan.oddity {
                self.complain_of(oddity, &plan);
            }
            let answer = self.ask(&plan, id.as_deref()).await;
            if let Err(error) = &answer {
                self.complain_of_store(error, &plan);
            }
            let decision = decide(&plan, answer.as_ref().map(Option::as_ref).map_err(|_| Unavailable));
            (plan, decision)
        }
    }

    async fn ask(&self, plan: &Plan<'_>, id: Option<&[u8]>) -> Result<Option<Taken>, StoreError> {
        match plan.step() {
            Step::Nothing | Step::NeverFits => Ok(None),
            Step::Peek => self.store.peek(&plan.charges).await.map(|found| Some(Taken { admitted: true, ..found })),
            Step::Take => match self.dedupe.as_ref().zip(id) {
                Some((dedupe, id)) => dedupe.take(id, &plan.charges).await.map(Some),
                None => self.store.take(&plan.charges).await.map(Some),
            },
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
