//! Introduces the two wings to each other: plan, take, decide.
//!
//! Gives decisions; knows no protocol. The take is the only await.

use crate::bucket::Taken;
use crate::policy::decision::{Decision, Unavailable, decide};
use crate::policy::request::Request;
use crate::policy::route::Oddity;
use crate::policy::{Plan, Policy, Step};
use crate::store::{Store, StoreError};
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The rate limiter: a policy, which can be swapped, over a store, which cannot.
#[derive(Debug)]
pub struct Limiter {
    policy: ArcSwap<Policy>,
    store: Arc<dyn Store>,
    failures: Complaint,
    oddities: Complaint,
}

impl Limiter {
    pub fn new(policy: Policy, store: Arc<dyn Store>) -> Self {
        Self {
            policy: ArcSwap::from_pointee(policy),
            store,
            failures: Complaint::default(),
            oddities: Complaint::default(),
        }
    }

    /// The policy in force. A check keeps the one it began with.
    pub fn policy(&self) -> Guard<Arc<Policy>> {
        self.policy.load()
    }

    /// Charges one request and says what came of it. Never fails: what a failed store means is the policy's to say.
    ///
    /// The request is read before the first await and not kept: the future holds the plan alone.
    pub fn check<'l, 'p>(
        &'l self,
        policy: &'p Policy,
        request: &Request<'_>,
    ) -> impl Future<Output = (Plan<'p>, Decision)> + Send + use<'l, 'p> {
        let plan = policy.plan(request);
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
}

impl Limiter {
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

/// Says the first of a storm at once, then one a second with the number of those left unsaid.
#[derive(Debug)]
struct Complaint {
    epoch: Instant,
    /// Milliseconds after `epoch` before which nothing is said.
    silent_until: AtomicU64,
    unsaid: AtomicU64,
}

impl Default for Complaint {
    fn default() -> Self {
        Self { epoch: Instant::now(), silent_until: AtomicU64::new(0), unsaid: AtomicU64::new(0) }
    }
}

impl Complaint {
    fn say(&self, line: impl FnOnce(u64)) {
        let now = self.epoch.elapsed().as_millis() as u64;
        let until = self.silent_until.load(Ordering::Relaxed);
        let order = Ordering::Relaxed;
        if now < until || self.silent_until.compare_exchange(until, now + 1000, order, order).is_err() {
            self.unsaid.fetch_add(1, order);
            return;
        }
        line(self.unsaid.swap(0, order));
    }
}
