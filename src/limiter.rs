//! Introduces the two wings to each other: plan, take, decide.
//!
//! Gives decisions; knows no protocol. The take is the only await, but for a key that is not known yet.

pub mod keys;

mod dedupe;
mod fallback;
mod metered;
mod outage;

use crate::bucket::{Charge, Level, Source, Taken};
use crate::clock::{Clock, SteadyClock, Stopwatch};
use crate::complaint::Complaint;
use crate::jwt::{Verified, Verifier};
use crate::metrics::{self, Metrics, TierSeries};
use crate::policy::api_key::{ApiKey, Digest};
use crate::policy::decision::{Decision, Unavailable, decide};
use crate::policy::identity::UserFrom;
use crate::policy::request::Request;
use crate::policy::route::Oddity;
use crate::policy::{Draft, Plan, Policy, Step, TierFrom};
use crate::store::{Store, StoreError};
use arc_swap::ArcSwap;
use dedupe::Dedupe;
use fallback::Fallback;
pub use metered::counted_as;

use keys::{Found, Generation, KeyMemory};
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
    /// How many policies were in force before.
    generation: Generation,
    tiers: TierSeries,
    jwt: Option<Arc<Verifier>>,
}

impl Snapshot {
    fn new(policy: Policy, jwt: Option<Arc<Verifier>>, generation: Generation, metrics: &Metrics) -> Self {
        let tiers = metrics.tiers(policy.tiers.iter().map(|tier| tier.name.as_str()));
        Self { policy, generation, tiers, jwt }
    }

    /// What verifies tokens, if anything does.
    pub fn jwt(&self) -> Option<&Arc<Verifier>> {
        self.jwt.as_ref()
    }

    /// What came of a request's token, where tokens are verified.
    pub fn verify(&self, request: &Request<'_>) -> Option<Verified> {
        self.jwt.as_ref().map(|jwt| jwt.verify(request))
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
        counted_as(&self.decision.outcome)
    }
}

/// What would come of a check.
#[derive(Debug)]
pub struct Explained<'s> {
    pub plan: Plan<'s>,
    pub decision: Decision,
    /// The plan's buckets as they are, where any are concerned; or why the store does not say.
    pub found: Result<Option<Taken>, String>,
    /// What said which tier the caller is of.
    pub tier_from: TierFrom,
    /// What said who the user is.
    pub user_from: Option<UserFrom>,
}

/// A call to the store.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub at: Moment,
    pub took: Duration,
}

impl Limiter {
    /// One that verifies no tokens.
    pub fn new(policy: Policy, store: Arc<dyn Store>) -> Self {
        Self::verifying(policy, store, |_| None)
    }

    /// With what `jwt` gives to verify tokens for the policy.
    pub fn verifying(
        policy: Policy,
        store: Arc<dyn Store>,
        jwt: impl FnOnce(&Metrics) -> Option<Arc<Verifier>>,
    ) -> Self {
        let fallback = Fallback::new(Arc::new(SteadyClock::default()), FALLBACK_CAPACITY);
        let metrics = Arc::new(Metrics::new());
        metrics.store_may_fail(StoreError::KINDS);
        let snapshot = ArcSwap::from_pointee(Snapshot::new(policy, jwt(&metrics), 0, &metrics));
        Self { snapshot, store, metrics, dedupe: None, fallback, keys: None, oddities: Complaint::default() }
    }

    /// With another clock for outages and their buckets, and another bound on how many buckets those may be.
    #[must_use]
    pub fn with_fallback(self, clock: Arc<dyn Clock>, capacity: usize) -> Self {
        Self { fallback: Fallback::new(clock, capacity), ..self }
    }

    /// Asks `keys` of API keys that the policy says nothing of. It must have been made for the same policy, and goes along
    /// when that is replaced.
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

    /// Whether it charges once what Envoy asks twice.
    pub fn dedupes(&self) -> bool {
        self.dedupe.is_some()
    }

    /// Checks that were not charged since Envoy had asked the same before.
    pub fn repeats(&self) -> u64 {
        self.dedupe.as_ref().map_or(0, Dedupe::repeats)
    }

    /// What it counts in.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The memory of API keys, if there is one.
    pub fn keys(&self) -> Option<&KeyMemory> {
        self.keys.as_ref()
    }

    /// Buckets of this process that stand in for the store's in an outage.
    pub fn local_buckets(&self) -> usize {
        self.fallback.len()
    }

    /// The policy that is in force now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Has checks that begin from now on follow another policy.
    ///
    /// Its key prefix must be the same. Tokens are verified as before. For one caller at a time.
    pub fn replace(&self, policy: Policy) {
        let jwt = self.snapshot.load().jwt.clone();
        self.replace_with(policy, jwt);
    }

    /// As [`Limiter::replace`], with `jwt` to verify tokens from then on.
    pub fn replace_with(&self, policy: Policy, jwt: Option<Arc<Verifier>>) {
        let generation = self.snapshot.load().generation + 1;
        if let Some(keys) = &self.keys {
            keys.follow(generation, &policy.tiers);
        }
        self.snapshot.store(Arc::new(Snapshot::new(policy, jwt, generation, &self.metrics)));
    }

    /// Charges one request and says what came of it. Never fails: what a failed store means is the policy's to say.
    ///
    /// The request is read before the first await and not kept: the future holds the draft, then the plan.
    pub fn check<'s>(
        &'s self,
        snapshot: &'s Snapshot,
        request: &Request<'_>,
    ) -> impl Future<Output = Checked<'s>> + Send + use<'s> {
        let watch = self.metrics.begin();
        let draft = snapshot.policy.draft(request);
        let id = self.dedupe.as_ref().and_then(|_| dedupe::id(request));
        async move {
            let (key, deadline) = self.look_up(snapshot, &draft).await;
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
            if let Some(Asked { took, .. }) = asked {
                self.metrics.asked(took);
            }
            watch.end();
            Checked { plan, decision, source: metered::source(&answer), asked }
        }
    }

    /// What is known of the caller's key besides the policy; and, where that had to be waited for, when the whole check
    /// is to be answered.
    async fn look_up(&self, snapshot: &Snapshot, draft: &Draft<'_>) -> (Option<Arc<ApiKey>>, Option<Deadline>) {
        let (Some(keys), Some(digest)) = (&self.keys, draft.unknown_key()) else {
            return (None, None);
        };
        let now = Instant::now();
        let mut deadline = None;
        // While the pepper changes both are read at once, so that nobody waits for one after the other.
        let found = [Some(digest), draft.previous_key()].map(|digest: Option<Digest>| Some(keys.find(digest?, now)));
        for found in found.into_iter().flatten() {
            let known = match found {
                Found::Known(known) => known,
                Found::Reading { reading, last } => {
                    let at = now + keys.timeout();
                    deadline = Some(Deadline { at, timeout: keys.timeout() });
                    tokio::time::timeout_at(at, reading).await.unwrap_or(last)
                }
            };
            if let Some(record) = known {
                return (Some(record.under(snapshot.generation, &snapshot.policy.tiers)), deadline);
            }
        }
        (None, deadline)
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

    /// What [`Limiter::check`] would say of a request now: the store is looked at and nothing is taken, counted or noted.
    ///
    /// The deny cache is not asked: what it knows is at most as good as what the store says.
    pub fn explain<'s>(
        &'s self,
        snapshot: &'s Snapshot,
        request: &Request<'_>,
    ) -> impl Future<Output = Explained<'s>> + Send + use<'s> {
        let draft = snapshot.policy.draft(request);
        let why = snapshot.policy.why(&draft, request);
        let user_from = snapshot.policy.user_from(&draft, request);
        async move {
            let (key, _) = self.look_up(snapshot, &draft).await;
            let tier_from = why.tier_from(draft.api_key(key.as_deref()));
            let plan = snapshot.policy.plan(draft, key.as_deref());
            let found = if plan.asks() { self.store.peek(&plan.charges).await.map(Some) } else { Ok(None) };
            let decision = match &found {
                Ok(found) => decide(&plan, Ok(found.as_ref().map(|found| spent(&plan, found)).as_ref())),
                Err(error) => {
                    let local = self.fallback.would(&plan);
                    decide(&plan, Err(Unavailable { error: error.kind(), local: local.as_ref() }))
                }
            };
            Explained { plan, decision, found: found.map_err(|error| error.to_string()), tier_from, user_from }
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

/// What a take would leave of what a look found.
fn spent(plan: &Plan<'_>, found: &Taken) -> Taken {
    if plan.step() == Step::Peek {
        return Taken { admitted: true, ..found.clone() };
    }
    if !found.admitted {
        return found.clone();
    }
    let left = |(charge, level): (&Charge, &Level)| Level {
        tokens: level.tokens(&charge.quota) - charge.cost,
        elapsed: level.elapsed.min(0.0),
    };
    Taken { levels: plan.charges.iter().zip(&found.levels).map(left).collect(), ..found.clone() }
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
