//! Introduces the two wings to each other: plan, take, decide.
//!
//! Gives decisions; knows no protocol. The take is the only await, but for a key that is not known yet.

pub mod keys;

mod dedupe;
mod fallback;
mod metered;
mod outage;

use crate::bucket::{Source, Taken};
use crate::clock::{Clock, SteadyClock, Stopwatch};
use crate::complaint::Complaint;
use crate::metrics::{self, Metrics, TierSeries};
use crate::policy::decision::{Decision, Unavailable, decide};
use crate::policy::request::Request;
use crate::policy::route::Oddity;
use crate::policy::{Draft, Plan, Policy, Step};
use crate::store::{Store, StoreError};
use arc_swap::ArcSwap;
use dedupe::Dedupe;
use fallback::Fallback;
use keys::{Found, KeyMemory, Known};
use std::sync::Arc;
use std::time::{Duration, Instant as Moment};
use tokio::time::Instant;

/// Buckets at most of an outage, where nothing else is said.
const FALLBACK_CAPACITY: usize = 1_000_000;

/// The rate limiter: a policy, which may be replaced at any time, over a store.
#[derive(Debug)]
pub struct Limiter {
    snapshot: ArcSwap<Snapshot>,
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    dedupe: Option<Dedupe>,
    fallback: Fallback,
    keys: Option<KeyMemory>,
    oddities: Complaint,
}

/// A policy in force, and the series that its tiers are counted in. A check keeps to the one it began with.
#[derive(Debug)]
pub struct Snapshot {
    policy: Policy,
    tiers: TierSeries,
}

impl Snapshot {
    fn new(policy: Policy, metrics: &Metrics) -> Self {
        let tiers = metrics.tiers(policy.tiers.iter().map(|tier| tier.name.as_str()));
        Self { policy, tiers }
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }
}

/// What came of a check.
#[derive(Debug)]
pub struct Checked<'s> {
    pub plan: Plan<'s>,
    pub decision: Decision,
    /// Who said how the buckets stand, where any were looked at.
    pub source: metrics::Source,
    /// When the store was asked, and how long it took to answer or to fail; `None` where it was not: nothing was to be
    /// asked, the deny cache answered, or a call was not made since the store is known to fail or to have too much to do.
    /// With [`Limiter::deduping`], a repetition asks nothing itself; told is how long it waited for the first.
    pub asked: Option<Asked>,
}

impl Checked<'_> {
    /// What it counts as.
    pub fn decided(&self) -> metrics::Decision {
        metered::label(&self.decision.outcome)
    }
}

/// A call to the store.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub at: Moment,
    pub took: Duration,
}

impl Limiter {
    pub fn new(policy: Policy, store: Arc<dyn Store>) -> Self {
        let fallback = Fallback::new(Arc::new(SteadyClock::default()), FALLBACK_CAPACITY);
        let metrics = Arc::new(Metrics::new());
        let snapshot = ArcSwap::from_pointee(Snapshot::new(policy, &metrics));
        Self { snapshot, store, metrics, dedupe: None, fallback, keys: None, oddities: Complaint::default() }
    }

    /// With another clock for outages and their buckets, and another bound on how many buckets those may be.
    #[must_use]
    pub fn with_fallback(self, clock: Arc<dyn Clock>, capacity: usize) -> Self {
        Self { fallback: Fallback::new(clock, capacity), ..self }
    }

    /// Asks `keys` of API keys that the policy says nothing of. It must have been made for the same policy.
    #[must_use]
    pub fn with_keys(self, keys: KeyMemory) -> Self {
        Self { keys: Some(keys), ..self }
    }

    /// Charges a request about which Envoy asks again once. Checks then run on a tokio runtime only.
    #[must_use]
    pub fn deduping(self, stopwatch: Arc<dyn Stopwatch>) -> Self {
        let dedupe = Dedupe::new(self.store.clone(), stopwatch);
        Self { dedupe: Some(dedupe), ..self }
    }

    /// Checks that were not charged since Envoy had asked the same before.
    pub fn repeats(&self) -> u64 {
        self.dedupe.as_ref().map_or(0, Dedupe::repeats)
    }

    /// What it counts in.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The policy that is in force now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Has checks that begin from now on follow another policy.
    pub fn replace(&self, policy: Policy) {
        self.snapshot.store(Arc::new(Snapshot::new(policy, &self.metrics)));
    }

    /// Charges one request and says what came of it. Never fails: what a failed store means is the policy's to say.
    ///
    /// The request is read before the first await and not kept: the future holds the draft, then the plan.
    pub fn check<'s>(
        &'s self,
        snapshot: &'s Snapshot,
        request: &Request<'_>,
    ) -> impl Future<Output = Checked<'s>> + Send + use<'s> {
        let draft = snapshot.policy.draft(request);
        let id = self.dedupe.as_ref().and_then(|_| dedupe::id(request));
        async move {
            let (key, deadline) = self.look_up(&draft).await;
            let plan = snapshot.policy.plan(draft, key.as_deref());
            if let Some(oddity) = plan.oddity {
                self.complain_of(oddity, &plan);
            }
            let at = Moment::now();
            // When nothing is left of the time the store is not asked: it would charge what was answered already.
            let too_late = deadline.filter(|deadline| plan.asks() && deadline.has_passed());
            let answer = match too_late {
                Some(Deadline { timeout, .. }) => Err(StoreError::Timeout(timeout)),
                None => self.ask_until(deadline, &plan, id.as_deref()).await,
            };
            let called = too_late.is_none() && metered::called(&answer);
            let asked = called.then(|| Asked { at, took: at.elapsed() });
            let decision = self.conclude(&plan, &answer);
            metered::count(&self.metrics, &snapshot.tiers, &plan, &decision, &answer);
            Checked { plan, decision, source: metered::source(&answer), asked }
        }
    }

    /// What is known of the caller's key besides the policy; and, where that had to be waited for, when the whole check
    /// is to be answered.
    async fn look_up(&self, draft: &Draft<'_>) -> (Known, Option<Deadline>) {
        let (Some(keys), Some(digest)) = (&self.keys, draft.unknown_key()) else {
            return (None, None);
        };
        let now = Instant::now();
        match keys.find(digest, now) {
            Found::Known(known) => (known, None),
            Found::Reading { reading, last } => {
                let deadline = Deadline { at: now + keys.timeout(), timeout: keys.timeout() };
                (tokio::time::timeout_at(deadline.at, reading).await.unwrap_or(last), Some(deadline))
            }
        }
    }

    /// As [`Self::ask`], bounded by what is left of the time.
    async fn ask_until(
        &self,
        deadline: Option<Deadline>,
        plan: &Plan<'_>,
        id: Option<&[u8]>,
    ) -> Result<Option<Taken>, StoreError> {
        let Some(Deadline { at, timeout }) = deadline else {
            return self.ask(plan, id).await;
        };
        tokio::time::timeout_at(at, self.ask(plan, id)).await.unwrap_or(Err(StoreError::Timeout(timeout)))
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

    fn conclude(&self, plan: &Plan<'_>, answer: &Result<Option<Taken>, StoreError>) -> Decision {
        match answer {
            Ok(None) => decide(plan, Ok(None)),
            Ok(Some(taken)) => {
                // What the cache says tells nothing of the store.
                if taken.source == Source::Store {
                    self.fallback.answered();
                }
                decide(plan, Ok(Some(taken)))
            }
            Err(error) => {
                let local = self.fallback.failed(plan, error);
                decide(plan, Err(Unavailable { error: error.kind(), local: local.as_ref() }))
            }
        }
    }
}

/// When a check is to be answered that had to wait for something before its take.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Instant,
    /// The time that it had in all.
    timeout: Duration,
}

impl Deadline {
    fn has_passed(&self) -> bool {
        Instant::now() >= self.at
    }
}
