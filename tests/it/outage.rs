//! What the limiter decides while its store is away, on a clock that the test moves: no server, no waiting.

use crate::support::{self, Hands, START};
use futures_util::FutureExt as _;
use proptest::prelude::*;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate::bucket::{Charge, Key, Quota, State, Taken, Timestamp};
use tidegate::clock::Clock as _;
use tidegate::limiter::Limiter;
use tidegate::policy::Policy;
use tidegate::policy::client_ip::AddressSource;
use tidegate::policy::decision::{Decision, FailurePolicy, Mode, Outcome};
use tidegate::policy::identity::{Sources, UserSource};
use tidegate::policy::limits::Limits;
use tidegate::policy::request::Request;
use tidegate::policy::route::COST_EXTENSION;
use tidegate::policy::tier::{Tier, TierSource, Tiers};
use tidegate::store::memory::MemoryStore;
use tidegate::store::{Pending, Store, StoreError};

const MAX_TOKENS: f64 = 12.0;
const REFILL_RATE: f64 = 0.375;
const REPLICAS: u32 = 3;

/// A store that fails when it is told to.
#[derive(Debug)]
struct Moody {
    buckets: MemoryStore,
    fault: Mutex<Option<StoreError>>,
}

impl Moody {
    fn say<T>(&self, answer: impl FnOnce() -> T) -> Result<T, StoreError> {
        self.fault.lock().unwrap().clone().map_or_else(|| Ok(answer()), Err)
    }
}

impl Store for Moody {
    fn take<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken> {
        Box::pin(async { self.say(|| self.buckets.take_now(charges)) })
    }
    fn peek<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken> {
        Box::pin(async { self.say(|| self.buckets.peek_now(charges)) })
    }
    fn inspect<'a>(&'a self, key: &'a Key) -> Pending<'a, Option<State>> {
        self.buckets.inspect(key)
    }
    fn reset<'a>(&'a self, key: &'a Key) -> Pending<'a, bool> {
        self.buckets.reset(key)
    }
    fn probe(&self) -> Pending<'_, ()> {
        Box::pin(async { self.say(|| ()) })
    }
}

fn away() -> StoreError {
    StoreError::Timeout(Duration::from_millis(50))
}

fn foreign() -> StoreError {
    StoreError::WrongType("rl:user:alice".into())
}

fn local() -> FailurePolicy {
    FailurePolicy::Local { replicas: NonZeroU32::new(REPLICAS).unwrap() }
}

fn decided(limiter: &Limiter, request: &Request<'_>) -> Decision {
    limiter.check(&limiter.snapshot(), request).now_or_never().unwrap().decision
}

/// Replicas on one store and one clock.
struct Fleet {
    replicas: Vec<Limiter>,
    store: Arc<Moody>,
    hands: Hands,
}

impl Fleet {
    fn new(count: u32, on_store_error: FailurePolicy) -> Self {
        let hands = Hands::new();
        let store = Moody { buckets: MemoryStore::new(hands.0.clone(), 10_000), fault: Mutex::default() };
        let store = Arc::new(store);
        let limiter = |_| Limiter::new(policy(on_store_error), store.clone()).with_fallback(hands.0.clone(), 10_000);
        Self { replicas: (0..count).map(limiter).collect(), store: store.clone(), hands }
    }

    fn fails(&self, fault: impl Into<Option<StoreError>>) {
        *self.store.fault.lock().unwrap() = fault.into();
    }

    fn pass(&self, seconds: f64) {
        let now = self.hands.0.now().micros + (seconds * 1e6) as u64;
        self.hands.0.set(Timestamp { micros: now });
    }

    fn elapsed(&self) -> f64 {
        (self.hands.0.now().micros - START) as f64 / 1e6
    }

    fn ask(&self, replica: usize, request: &Request<'_>) -> Decision {
        decided(&self.replicas[replica], request)
    }

    /// Asks as alice of the default tier until she is denied, and says how often she was admitted.
    fn burst(&self, replica: usize) -> u32 {
        (0..1000).take_while(|_| self.ask(replica, &from("alice", "free")).passes()).count() as u32
    }
}

/// Users by `x-user`, tiers by `x-tier`: free follows the whole policy, strict denies and enterprise allows.
fn policy(on_store_error: FailurePolicy) -> Policy {
    let limits = Limits { user: Some(Quota::parse(MAX_TOKENS, REFILL_RATE).unwrap()), ..Limits::default() };
    let tier = |name: &str, on_store_error| Tier { name: name.into(), limits, on_store_error };
    let others = vec![tier("strict", Some(FailurePolicy::Deny)), tier("enterprise", Some(FailurePolicy::Allow))];
    let sources = Sources {
        user: vec![UserSource::Header("x-user".into())],
        tier: vec![TierSource::Header("x-tier".into())],
        ip: AddressSource::Peer,
        ..Sources::default()
    };
    Policy { on_store_error, ..support::policy(Tiers::new(tier("free", None), others), sources) }
}

fn from(user: &'static str, tier: &'static str) -> Request<'static> {
    let mut request = Request::default();
    request.headers.push((b"x-user", user.as_bytes()));
    request.headers.push((b"x-tier", tier.as_bytes()));
    request
}

fn costing(cost: &'static str) -> Request<'static> {
    let mut request = from("alice", "free");
    request.extensions.push((COST_EXTENSION.as_bytes(), cost.as_bytes()));
    request
}

/// What the buckets of so many replicas admit in so many seconds.
fn bound(replicas: u32, seconds: f64) -> f64 {
    let share = f64::from(replicas) / f64::from(REPLICAS);
    share * (MAX_TOKENS + REFILL_RATE * seconds)
}

#[test]
fn one_outage_denies_the_one_tier_and_lets_the_other_pass() {
    let fleet = Fleet::new(1, local());
    fleet.fails(away());
    for _ in 0..20 {
        let strict = fleet.ask(0, &from("bob", "strict"));
        assert_eq!((strict.outcome.clone(), strict.passes()), (Outcome::Failed(FailurePolicy::Deny), false));
        let enterprise = fleet.ask(0, &from("eve", "enterprise"));
        assert_eq!((enterprise.outcome.clone(), enterprise.passes()), (Outcome::Failed(FailurePolicy::Allow), true));
        assert_eq!((strict.store_error, enterprise.store_error), (Some("timeout"), Some("timeout")));
    }
    let free = fleet.ask(0, &from("alice", "free"));
    assert_eq!((free.outcome.clone(), free.degraded()), (Outcome::Admitted, true));
    fleet.fails(None);
    assert!(["free", "strict", "enterprise"].iter().all(|tier| !fleet.ask(0, &from("carol", tier)).degraded()));
}

#[test]
fn a_share_of_the_limit_is_admitted_and_then_denied_with_the_wait_of_the_share() {
    let fleet = Fleet::new(1, local());
    fleet.fails(away());
    assert_eq!(fleet.burst(0), 4);
    let denied = fleet.ask(0, &from("alice", "free"));
    let Outcome::Denied { retry_after, .. } = denied.outcome else { panic!("{denied:?}") };
    assert_eq!((denied.binding.unwrap().1.limit, retry_after, denied.degraded()), (4, 8, true));
    fleet.pass(7.9);
    assert_eq!(fleet.burst(0), 0);
    fleet.pass(0.1);
    assert_eq!(fleet.burst(0), 1);
}

#[test]
fn one_replica_admits_no_more_than_its_share_over_an_outage_of_any_shape() {
    // How long the store fails and how long it answers, by turns: away for good, flapping, away now and then.
    for (failing, answering) in [(5.0, 0.0), (1.0, 1.0), (0.1, 2.9), (5.0, 0.1), (0.5, 2.5)] {
        let fleet = Fleet::new(1, local());
        let mut admitted = 0;
        while fleet.elapsed() < 600.0 {
            fleet.fails(away());
            for _ in 0..5 {
                admitted += fleet.burst(0);
                fleet.pass(failing / 5.0);
            }
            fleet.fails(None);
            // Others are answered, and are not counted here.
            fleet.ask(0, &from("bob", "enterprise"));
            fleet.pass(answering);
            fleet.ask(0, &from("bob", "enterprise"));
        }
        let most = bound(1, fleet.elapsed());
        assert!(f64::from(admitted) <= most, "{failing}/{answering}: {admitted} admitted, {most} is the bound");
        assert!(f64::from(admitted) >= 0.8 * most - 1.0, "{failing}/{answering}: {admitted} of {most} is too few");
    }
}

proptest! {
    /// Each step: whether the store fails, how long it lasts, and whether alice asks in it.
    #[test]
    fn however_the_store_fails_and_answers_an_outage_fills_one_local_bucket(
        steps in prop::collection::vec((any::<bool>(), 0.0..1.4_f64, any::<bool>()), 1..200),
    ) {
        let fleet = Fleet::new(1, local());
        let mut admitted = 0;
        for (fails, seconds, asks) in steps {
            // Never three seconds without a failure.
            fleet.fails(away());
            admitted += if asks { fleet.burst(0) } else { 0 };
            fleet.ask(0, &from("bob", "strict"));
            fleet.pass(seconds);
            if !fails {
                fleet.fails(None);
                fleet.ask(0, &from("bob", "enterprise"));
                fleet.pass(seconds);
                fleet.ask(0, &from("bob", "enterprise"));
            }
        }
        prop_assert!(f64::from(admitted) <= bound(1, fleet.elapsed()), "{} admitted", admitted);
    }
}

#[test]
fn all_replicas_together_admit_no_more_than_the_limit_over_an_outage() {
    let fleet = Fleet::new(REPLICAS, local());
    fleet.fails(away());
    let mut admitted = 0;
    for _ in 0..300 {
        admitted += (0..fleet.replicas.len()).map(|replica| fleet.burst(replica)).sum::<u32>();
        fleet.pass(1.0);
    }
    let most = bound(REPLICAS, 300.0);
    assert!(
        f64::from(admitted) <= most && f64::from(admitted) > most - 4.0,
        "{admitted} admitted, {most} is the bound"
    );
}

#[test]
fn what_is_away_only_for_some_gives_them_no_new_bucket_every_few_seconds() {
    let fleet = Fleet::new(1, local());
    let (mut admitted, mut pauses) = (0, 0);
    while fleet.elapsed() < 600.0 {
        fleet.fails(away());
        admitted += fleet.burst(0);
        fleet.fails(None);
        // Four seconds in which only others ask, and are answered.
        for _ in 0..4 {
            fleet.pass(1.0);
            fleet.ask(0, &from("bob", "enterprise"));
        }
        pauses += 1;
    }
    // Without longer recoveries it would be a full share for each pause.
    let two = 2.0 * MAX_TOKENS / f64::from(REPLICAS) + REFILL_RATE / f64::from(REPLICAS) * 600.0;
    assert!(f64::from(admitted) <= two, "{admitted} admitted in {pauses} bursts");
}

#[test]
fn local_buckets_are_forgotten_when_the_store_is_back() {
    let fleet = Fleet::new(1, local());
    fleet.fails(away());
    assert_eq!((fleet.burst(0), fleet.burst(0)), (4, 0));
    fleet.fails(None);
    assert!(!fleet.ask(0, &from("alice", "free")).degraded(), "the store counts at once when it answers");
    fleet.pass(2.9);
    fleet.ask(0, &from("bob", "free"));
    fleet.fails(away());
    assert_eq!(fleet.burst(0), 0, "it had not yet recovered");
    fleet.fails(None);
    fleet.ask(0, &from("bob", "free"));
    fleet.pass(3.0);
    fleet.ask(0, &from("bob", "free"));
    fleet.fails(away());
    assert_eq!(fleet.burst(0), 4, "another outage");
}

#[test]
fn an_hour_without_any_request_ends_no_outage() {
    let fleet = Fleet::new(1, local());
    fleet.fails(away());
    // An hour fills the bucket again. What is asked for is that it is the same one.
    assert_eq!(fleet.burst(0), 4);
    fleet.pass(3600.0);
    fleet.fails(None);
    fleet.ask(0, &from("bob", "free"));
    fleet.fails(away());
    assert_eq!((fleet.burst(0), fleet.burst(0)), (4, 0));
    fleet.pass(2.0);
    fleet.fails(None);
    fleet.ask(0, &from("bob", "free"));
    fleet.fails(away());
    assert_eq!(fleet.burst(0), 0);
}

#[test]
fn a_foreign_value_in_one_key_is_limited_locally_and_is_no_outage() {
    let fleet = Fleet::new(1, local());
    let mut admitted = 0;
    while fleet.elapsed() < 600.0 {
        fleet.fails(foreign());
        let decision = fleet.ask(0, &from("alice", "free"));
        assert_eq!(decision.store_error, Some("wrong_type"));
        admitted += u32::from(decision.passes()) + fleet.burst(0);
        fleet.fails(None);
        for _ in 0..5 {
            assert!(!fleet.ask(0, &from("bob", "enterprise")).degraded());
            fleet.pass(1.0);
        }
    }
    let most = bound(1, fleet.elapsed());
    assert!(f64::from(admitted) <= most, "{admitted} admitted, {most} is the bound of a bucket that is never renewed");
}

#[test]
fn a_free_request_is_told_of_the_local_bucket_and_takes_nothing_from_it() {
    let fleet = Fleet::new(1, local());
    fleet.fails(away());
    for _ in 0..20 {
        let looked = fleet.ask(0, &costing("0"));
        assert_eq!((looked.outcome.clone(), looked.degraded()), (Outcome::Admitted, true));
        assert_eq!(looked.binding.unwrap().1.remaining, 4);
    }
    assert_eq!(fleet.burst(0), 4);
    let looked = fleet.ask(0, &costing("0"));
    assert_eq!((looked.outcome.clone(), looked.binding.unwrap().1.remaining), (Outcome::Admitted, 0));
}

#[test]
fn a_cost_that_no_share_covers_is_refused_until_the_store_is_back() {
    let fleet = Fleet::new(1, local());
    fleet.fails(away());
    assert_eq!(fleet.ask(0, &costing("5")).outcome, Outcome::Failed(local()));
    assert!(!fleet.ask(0, &costing("5")).passes());
    assert!(matches!(fleet.ask(0, &costing("13")).outcome, Outcome::NeverFits { .. }));
    assert_eq!(fleet.burst(0), 4, "it took nothing");
    fleet.fails(None);
    assert_eq!(fleet.ask(0, &costing("5")).outcome, Outcome::Admitted);
}

#[test]
fn on_a_store_that_does_not_fail_the_whole_limit_counts_whatever_the_policy() {
    for on_store_error in [FailurePolicy::Allow, FailurePolicy::Deny, local()] {
        let fleet = Fleet::new(1, on_store_error);
        assert_eq!(f64::from(fleet.burst(0)), MAX_TOKENS);
    }
}

#[test]
fn in_shadow_mode_local_buckets_deny_nothing_and_tell_what_they_would_have() {
    let hands = Hands::new();
    let store = Moody { buckets: MemoryStore::new(hands.0.clone(), 10), fault: Mutex::new(Some(away())) };
    let policy = Policy { mode: Mode::Shadow, ..policy(local()) };
    let limiter = Limiter::new(policy, Arc::new(store)).with_fallback(hands.0.clone(), 10);
    let decisions: Vec<Decision> = (0..6).map(|_| decided(&limiter, &from("alice", "free"))).collect();
    assert!(decisions.iter().all(|decision| decision.passes() && decision.degraded()));
    let denied = decisions.iter().filter(|decision| matches!(decision.outcome, Outcome::Denied { .. })).count();
    assert_eq!(denied, 2);
}
