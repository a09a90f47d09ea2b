//! The deny cache: what it answers is what the store would have answered, and it spares the store the rest.

use crate::support::redis::{Server, settings};
use crate::support::service::{Tidegate, check};
use crate::support::{NEVER, START, charge, quota, unique_prefix, user};
use futures_util::FutureExt;
use futures_util::task::noop_waker_ref;
use proptest::prelude::*;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tidegate::bucket::{Charge, Key, Quota, Source, State, Taken, Timestamp};
use tidegate::clock::{SetClock, SetStopwatch, SteadyClock};
use tidegate::ext_authz::proto::authorization_client::AuthorizationClient;
use tidegate::store::deny_cache::DenyCache;
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::RedisStore;
use tidegate::store::{Pending, Store, StoreError};
use tonic::transport::Endpoint;

const SECOND: u64 = 1_000_000_000;

/// One time for everybody: the store reads it in whole microseconds, as Redis does, and the cache exactly.
#[derive(Clone, Debug, Default)]
struct Time {
    nanos: Arc<AtomicU64>,
    clock: Arc<SetClock>,
    stopwatch: Arc<SetStopwatch>,
}

impl Time {
    fn new() -> Self {
        let time = Self::default();
        time.pass(0);
        time
    }

    fn pass(&self, nanos: u64) {
        self.set(self.nanos() + nanos);
    }

    fn nanos(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }

    fn set(&self, nanos: u64) {
        self.nanos.store(nanos, Ordering::Relaxed);
        self.clock.set(Timestamp { micros: START + nanos / 1000 });
        self.stopwatch.set(Duration::from_nanos(nanos));
    }
}

/// A store across a network: it counts calls, and takes its time.
#[derive(Debug)]
struct Wire {
    store: MemoryStore,
    calls: AtomicU64,
    time: Time,
    /// Nanoseconds that a take is on its way, and then its answer.
    delay: AtomicU64,
    /// What takes wait for, where they wait for the test.
    held: Option<Mutex<Vec<Arc<Gate>>>>,
}

/// How far a call may go: 0 it is sent, 1 it is evaluated, 2 it is answered.
#[derive(Debug, Default)]
struct Gate(AtomicU8);

impl Gate {
    fn open(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    async fn pass(&self, stage: u8) {
        poll_fn(|_| if self.0.load(Ordering::Relaxed) >= stage { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

impl Wire {
    fn new(time: &Time) -> Self {
        let store = MemoryStore::new(time.clock.clone(), 10_000);
        Self { store, calls: AtomicU64::new(0), time: time.clone(), delay: AtomicU64::new(0), held: None }
    }

    fn held(time: &Time) -> Self {
        Self { held: Some(Mutex::default()), ..Self::new(time) }
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn last_gate(&self) -> Arc<Gate> {
        self.held.as_ref().unwrap().lock().unwrap().last().unwrap().clone()
    }
}

impl Store for Wire {
    fn take<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let Some(held) = &self.held else {
                self.time.pass(self.delay.load(Ordering::Relaxed));
                let taken = self.store.take(charges).await;
                self.time.pass(self.delay.load(Ordering::Relaxed));
                return taken;
            };
            let gate = Arc::new(Gate::default());
            held.lock().unwrap().push(gate.clone());
            gate.pass(1).await;
            let taken = self.store.take(charges).await;
            gate.pass(2).await;
            taken
        })
    }

    fn peek<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.store.peek(charges)
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> Pending<'a, Option<State>> {
        self.store.inspect(key)
    }

    fn reset<'a>(&'a self, key: &'a Key) -> Pending<'a, bool> {
        self.store.reset(key)
    }

    fn probe(&self) -> Pending<'_, ()> {
        self.store.probe()
    }
}

/// A cache before a store, and their time.
struct Rig {
    time: Time,
    wire: Arc<Wire>,
    cache: DenyCache,
    prefix: String,
}

impl Rig {
    fn new() -> Self {
        Self::with(Wire::new, 100, Duration::from_secs(1))
    }

    fn with(wire: fn(&Time) -> Wire, size: usize, max_age: Duration) -> Self {
        let time = Time::new();
        let wire = Arc::new(wire(&time));
        let cache = DenyCache::new(wire.clone(), time.stopwatch.clone(), size, max_age);
        Self { time, wire, cache, prefix: unique_prefix() }
    }

    fn key(&self, id: usize) -> Key {
        user(&self.prefix, &id.to_string())
    }

    /// Takes from one bucket.
    fn take(&self, id: usize, quota: Quota, cost: f64) -> Taken {
        now(self.cache.take(&[charge(&self.key(id), quota, cost)]))
    }

    /// The seconds that a denied take is told to wait.
    fn wait(&self, id: usize, quota: Quota, cost: f64) -> u64 {
        let taken = self.take(id, quota, cost);
        assert!(!taken.admitted);
        wait(&taken, &[charge(&self.key(id), quota, cost)])
    }
}

fn now<T>(pending: Pending<'_, T>) -> T {
    pending.now_or_never().unwrap().unwrap()
}

/// The charges that a denial blames.
fn exhausted(taken: &Taken, charges: &[Charge]) -> Vec<Charge> {
    let covered = taken.tokens(charges).zip(charges).map(|(tokens, charge)| tokens >= charge.cost);
    charges.iter().zip(covered).filter(|(_, covered)| !covered).map(|(charge, _)| charge.clone()).collect()
}

/// The longest wait of an exhausted bucket, at least a second, as it is told to clients.
fn wait(taken: &Taken, charges: &[Charge]) -> u64 {
    let levels = taken.levels.iter().zip(charges).filter(|(level, charge)| level.tokens(&charge.quota) < charge.cost);
    levels.map(|(level, charge)| level.wait(&charge.quota, charge.cost)).max().unwrap().max(1)
}

#[test]
fn a_client_that_hammers_an_empty_bucket_costs_one_call_in_each_max_age() {
    let rig = Rig::new();
    let limit = quota(5.0, NEVER);
    for _ in 0..5 {
        assert!(rig.take(1, limit, 1.0).admitted);
    }
    for _ in 0..10_000 {
        assert!(!rig.take(1, limit, 1.0).admitted);
        rig.time.pass(SECOND / 1000);
    }
    // Ten seconds, and an answer is renewed in the last eighth of its second.
    assert_eq!(rig.wire.calls(), 5 + 12);
    assert_eq!(rig.cache.hits(), 10_000 - 12);
    assert_eq!(rig.cache.len(), 1);
}

#[test]
fn requests_that_are_open_together_when_an_answer_grows_old_cost_one_call_and_not_one_each() {
    let rig = Rig::with(Wire::held, 100, Duration::from_secs(1));
    let charges = [charge(&rig.key(1), quota(1.0, NEVER), 1.0)];
    let answered = |mut take: Pending<'_, Taken>| {
        assert!((&mut take).now_or_never().is_none());
        rig.wire.last_gate().open();
        rig.wire.last_gate().open();
        now(take)
    };
    assert!(answered(rig.cache.take(&charges)).admitted);
    assert!(!answered(rig.cache.take(&charges)).admitted);
    rig.time.pass(SECOND * 9 / 10);
    let mut renewing = rig.cache.take(&charges);
    assert!((&mut renewing).now_or_never().is_none(), "the first asks");
    for _ in 0..100 {
        assert_eq!(now(rig.cache.take(&charges)).source, Source::DenyCache, "the others are denied meanwhile");
    }
    assert_eq!(rig.wire.calls(), 3);
    assert!(!answered(renewing).admitted);
    rig.time.pass(SECOND * 8 / 10);
    assert_eq!(now(rig.cache.take(&charges)).source, Source::DenyCache, "it is renewed");
    assert_eq!(rig.wire.calls(), 3);
}

#[test]
fn retry_after_counts_down_and_whoever_waits_for_it_is_let_in() {
    let rig = Rig::with(Wire::new, 100, Duration::from_secs(60));
    let limit = quota(1.0, 0.1);
    assert!(rig.take(1, limit, 1.0).admitted);
    let waits: Vec<u64> = (0..10)
        .map(|_| {
            let wait = rig.wait(1, limit, 1.0);
            rig.time.pass(SECOND);
            wait
        })
        .collect();
    assert_eq!(waits, [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(rig.wire.calls(), 2);
    let taken = rig.take(1, limit, 1.0);
    assert_eq!((taken.admitted, taken.source, rig.wire.calls()), (true, Source::Store, 3));
}

#[test]
fn a_denial_tells_whether_the_store_was_asked() {
    let rig = Rig::new();
    let limit = quota(1.0, NEVER);
    assert_eq!(rig.take(1, limit, 1.0).source, Source::Store);
    assert_eq!(rig.take(1, limit, 1.0).source, Source::Store);
    assert_eq!(rig.take(1, limit, 1.0).source, Source::DenyCache);
}

#[test]
fn a_cost_that_is_covered_is_asked_for_and_paid_though_a_larger_one_was_denied() {
    let rig = Rig::new();
    let limit = quota(10.0, NEVER);
    assert!(rig.take(1, limit, 6.0).admitted);
    assert!(!rig.take(1, limit, 5.0).admitted);
    assert!(rig.take(1, limit, 3.0).admitted);
    let calls = rig.wire.calls();
    assert!(!rig.take(1, limit, 3.0).admitted, "what was left is known");
    assert!(!rig.take(1, limit, 5.0).admitted);
    assert_eq!(rig.wire.calls(), calls);
    assert!(rig.take(1, limit, 0.5).admitted);
    assert!(rig.cache.is_empty(), "the same again is covered");
}

#[test]
fn a_bucket_of_which_nothing_is_known_is_not_blamed() {
    let rig = Rig::new();
    let limit = quota(1.0, NEVER);
    rig.take(1, limit, 1.0);
    rig.take(1, limit, 1.0);
    let charges = [charge(&rig.key(2), limit, 1.0), charge(&rig.key(1), limit, 1.0)];
    let taken = now(rig.cache.take(&charges));
    assert_eq!((taken.admitted, taken.source), (false, Source::DenyCache));
    assert_eq!(exhausted(&taken, &charges), charges[1..]);
    assert!(rig.take(2, limit, 1.0).admitted, "and nothing was taken from it");
}

#[test]
fn a_reset_is_seen_at_once_here_and_within_max_age_when_it_is_done_elsewhere() {
    let rig = Rig::new();
    let limit = quota(1.0, NEVER);
    let exhaust = || while rig.take(1, limit, 1.0).admitted {};
    exhaust();
    assert!(now(rig.cache.reset(&rig.key(1))));
    assert!(rig.take(1, limit, 1.0).admitted);

    rig.time.pass(1);
    exhaust();
    assert!(now(rig.wire.reset(&rig.key(1))));
    // An answer is renewed in the last eighth of its time.
    rig.time.pass(SECOND * 7 / 8 - 1);
    assert!(!rig.take(1, limit, 1.0).admitted);
    rig.time.pass(1);
    assert!(rig.take(1, limit, 1.0).admitted);

    rig.time.pass(1);
    exhaust();
    assert!(now(rig.wire.reset(&rig.key(1))));
    rig.cache.clear();
    assert!(rig.take(1, limit, 1.0).admitted);
}

/// The bucket is written in microsecond 0 and found empty at the end of microsecond 1, 999,998,001 ns before it is full:
/// whole microseconds would be one too few.
#[test]
fn a_bucket_that_is_full_in_this_very_microsecond_is_asked_for() {
    let rig = Rig::with(Wire::new, 100, Duration::from_secs(60));
    let limit = quota(1.0, 1.0);
    assert!(rig.take(1, limit, 1.0).admitted);
    rig.time.set(1_999);
    assert!(!rig.take(1, limit, 1.0).admitted);
    rig.time.set(SECOND - 1);
    assert!(!rig.take(1, limit, 1.0).admitted);
    rig.time.set(SECOND);
    assert!(rig.take(1, limit, 1.0).admitted);
}

#[test]
fn another_quota_is_asked_for() {
    let rig = Rig::new();
    while rig.take(1, quota(1.0, NEVER), 1.0).admitted {}
    let calls = rig.wire.calls();
    assert!(!rig.take(1, quota(2.0, NEVER), 1.0).admitted);
    assert_eq!(rig.wire.calls(), calls + 1);
}

#[test]
fn a_peek_passes_through() {
    let rig = Rig::new();
    let charges = [charge(&rig.key(1), quota(1.0, NEVER), 1.0)];
    while now(rig.cache.take(&charges)).admitted {}
    let calls = rig.wire.calls();
    assert!(!now(rig.cache.peek(&charges)).admitted);
    assert_eq!((rig.wire.calls(), rig.cache.hits()), (calls + 1, 0));
}

#[test]
fn no_more_buckets_are_remembered_than_there_is_room_for() {
    let rig = Rig::with(Wire::new, 10, Duration::from_secs(1));
    for id in 0..1000 {
        while rig.take(id, quota(1.0, NEVER), 1.0).admitted {}
        assert!(rig.cache.len() <= 10);
    }
    assert_eq!(rig.take(999, quota(1.0, NEVER), 1.0).source, Source::DenyCache);
}

#[test]
fn a_store_that_fails_is_nobodys_denial() {
    #[derive(Debug)]
    struct Away;
    fn away() -> StoreError {
        StoreError::Connection("gone".into())
    }
    impl Store for Away {
        fn take<'a>(&'a self, _: &'a [Charge]) -> Pending<'a, Taken> {
            Box::pin(async { Err(away()) })
        }
        fn peek<'a>(&'a self, _: &'a [Charge]) -> Pending<'a, Taken> {
            Box::pin(async { Err(away()) })
        }
        fn inspect<'a>(&'a self, _: &'a Key) -> Pending<'a, Option<State>> {
            Box::pin(async { Err(away()) })
        }
        fn reset<'a>(&'a self, _: &'a Key) -> Pending<'a, bool> {
            Box::pin(async { Err(away()) })
        }
        fn probe(&self) -> Pending<'_, ()> {
            Box::pin(async { Err(away()) })
        }
    }
    let cache = DenyCache::new(Arc::new(Away), Arc::new(SteadyClock::default()), 10, Duration::from_secs(1));
    let charges = [charge(&user("rl:", "alice"), quota(1.0, NEVER), 1.0)];
    assert_eq!(cache.take(&charges).now_or_never().unwrap(), Err(away()));
    assert!(cache.is_empty());
}

const BUCKETS: usize = 3;

/// Quotas whose buckets are empty often.
fn quotas() -> impl Strategy<Value = Quota> {
    let rate = prop_oneof![0.01..100.0, (1..=20_u32).prop_map(f64::from), Just(1.0 / 3.0)];
    ((1..=10_u32).prop_map(f64::from), rate).prop_map(|(tokens, rate)| quota(tokens, rate))
}

/// Nanoseconds: none, a few, fractions of a millisecond, and up to more than `max_age`.
fn delays() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1..2000_u64, 1000..2_000_000_u64, 1_000_000..500_000_000_u64, 0..3 * SECOND]
}

/// Which buckets a take charges, and what.
fn costs() -> impl Strategy<Value = [Option<f64>; BUCKETS]> {
    let cost = prop_oneof![Just(1.0), 0.1..8.0, (0..=10_u32).prop_map(f64::from)];
    prop::array::uniform3(prop::option::of(cost))
}

fn charges(prefix: &str, quotas: &[Quota], costs: &[Option<f64>; BUCKETS]) -> Vec<Charge> {
    let each = quotas.iter().zip(costs).enumerate();
    each.filter_map(|(id, (quota, cost))| Some(charge(&user(prefix, &id.to_string()), *quota, (*cost)?))).collect()
}

proptest! {
    #[test]
    fn decisions_with_the_cache_are_those_without(
        quotas in prop::collection::vec(quotas(), BUCKETS),
        steps in prop::collection::vec((delays(), costs()), 1..80),
    ) {
        let rig = Rig::new();
        let plain = MemoryStore::new(rig.time.clock.clone(), 100);
        for (delay, costs) in steps {
            rig.time.pass(delay);
            let charges = charges(&rig.prefix, &quotas, &costs);
            let (with, without) = (now(rig.cache.take(&charges)), now(plain.take(&charges)));
            prop_assert_eq!(with.admitted, without.admitted);
            if with.source == Source::Store {
                prop_assert!(with.tokens(&charges).eq(without.tokens(&charges)));
            } else {
                let (named, all) = (exhausted(&with, &charges), exhausted(&without, &charges));
                prop_assert!(!named.is_empty() && named.iter().all(|charge| all.contains(charge)));
            }
        }
    }

    #[test]
    fn takes_of_the_same_buckets_are_told_the_same_retry_after_with_the_cache_as_without(
        quotas in prop::collection::vec(quotas(), BUCKETS),
        costs in prop::array::uniform3((0.1..5.0).prop_map(Some)),
        delays in prop::collection::vec(delays().prop_map(|nanos| nanos / 1000 * 1000), 1..80),
    ) {
        let rig = Rig::new();
        let plain = MemoryStore::new(rig.time.clock.clone(), 100);
        let charges = charges(&rig.prefix, &quotas, &costs);
        for delay in delays {
            rig.time.pass(delay);
            let (with, without) = (now(rig.cache.take(&charges)), now(plain.take(&charges)));
            prop_assert_eq!(with.admitted, without.admitted);
            if !with.admitted {
                prop_assert_eq!(exhausted(&with, &charges), exhausted(&without, &charges));
                prop_assert_eq!(wait(&with, &charges), wait(&without, &charges));
            }
        }
    }

    #[test]
    fn across_a_slow_network_nothing_is_denied_too_long_and_whoever_waits_as_told_is_let_in(
        quotas in prop::collection::vec(quotas(), BUCKETS),
        steps in prop::collection::vec((delays(), 0..20_000_000_u64, costs()), 1..80),
    ) {
        let rig = Rig::new();
        for (delay, on_the_way, costs) in steps {
            rig.time.pass(delay);
            rig.wire.delay.store(on_the_way, Ordering::Relaxed);
            let charges = charges(&rig.prefix, &quotas, &costs);
            let taken = now(rig.cache.take(&charges));
            if taken.source == Source::Store {
                continue;
            }
            prop_assert!(!now(rig.wire.peek(&charges)).admitted, "the store would have admitted");
            let named = exhausted(&taken, &charges);
            if named.iter().all(|charge| charge.cost <= charge.quota.max_tokens()) {
                let here = rig.time.nanos();
                rig.time.pass(wait(&taken, &charges) * SECOND);
                prop_assert!(now(rig.wire.peek(&named)).admitted, "whoever waits is let in");
                rig.time.set(here);
            }
        }
    }

    #[test]
    fn nothing_is_denied_that_would_be_admitted_in_whatever_order_answers_come(
        quotas in prop::collection::vec(quotas(), BUCKETS),
        events in prop::collection::vec((delays(), any::<prop::sample::Index>(), 0..20_u8, costs()), 1..120),
    ) {
        let rig = Rig::with(Wire::held, 100, Duration::from_secs(1));
        let mut context = Context::from_waker(noop_waker_ref());
        let mut on_their_way = Vec::new();
        for (delay, which, event, costs) in events {
            rig.time.pass(delay);
            if event == 0 {
                now(rig.cache.reset(&rig.key(which.index(BUCKETS))));
            } else if event < 9 || on_their_way.is_empty() {
                // Kept until the end: the futures borrow them.
                let charges: &[Charge] = charges(&rig.prefix, &quotas, &costs).leak();
                let mut take = rig.cache.take(charges);
                match take.poll_unpin(&mut context) {
                    Poll::Pending => on_their_way.push((take, rig.wire.last_gate())),
                    Poll::Ready(taken) => {
                        let taken = taken.unwrap();
                        prop_assert_eq!((taken.admitted, taken.source), (false, Source::DenyCache));
                        prop_assert!(!now(rig.wire.peek(charges)).admitted, "the store would have admitted");
                    }
                }
            } else {
                let place = which.index(on_their_way.len());
                on_their_way[place].1.open();
                if on_their_way[place].0.poll_unpin(&mut context).is_ready() {
                    drop(on_their_way.swap_remove(place));
                }
            }
        }
    }
}

#[tokio::test]
async fn a_hammered_bucket_in_redis_costs_about_one_call_in_each_max_age() {
    let server = Server::start(&[]);
    let max_age = Duration::from_millis(250);
    let store: Arc<dyn Store> = Arc::new(RedisStore::new(settings(&server.url())));
    let cache = DenyCache::new(store, Arc::new(SteadyClock::default()), 100, max_age);
    let charges = [charge(&user("rl:", "alice"), quota(3.0, NEVER), 1.0)];
    let begun = Instant::now();
    let (mut takes, mut admitted) = (0_u64, 0);
    while begun.elapsed() < Duration::from_secs(2) {
        admitted += u64::from(cache.take(&charges).await.unwrap().admitted);
        takes += 1;
    }
    let ages = begun.elapsed().as_secs_f64() / max_age.as_secs_f64();
    let calls = script_calls(&server);
    assert_eq!(admitted, 3);
    // The three that were admitted, and the first EVALSHA, which Redis answers with NOSCRIPT.
    assert!(calls <= 3 + 1 + 1 + ages.ceil() as u64, "{calls} calls for {takes} takes in {ages:.1} times max_age");
    assert_eq!(cache.hits() + calls - 1, takes, "each take is one or the other");
}

/// EVALSHA and EVAL that Redis has run.
fn script_calls(server: &Server) -> u64 {
    let statistics: String = server.run(&["INFO", "commandstats"]);
    let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
    let scripts = statistics.lines().filter(|line| line.starts_with("cmdstat_eval"));
    scripts.filter_map(calls).sum()
}

/// What `count` checks of one empty bucket cost a service's Redis, and how often its readiness may have asked it.
fn cost_of_checks(deny_cache: &str, count: u64) -> (u64, u64) {
    let server = Server::start(&[]);
    let service = Tidegate::start(&format!(
        "redis: {{urls: [\"{}\"], timeout: 10s}}\ndeny_cache: {deny_cache}\n\
         tiers: {{free: {{per_ip: {{max_tokens: 1, refill_rate: 0.000001}}}}}}\n",
        server.url()
    ));
    let begun = Instant::now();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{}", service.address)).unwrap();
        let mut client = AuthorizationClient::new(endpoint.connect().await.unwrap());
        for turn in 0..count {
            let answer = client.check(check(&[])).await.unwrap().into_inner();
            assert_eq!(answer.status.unwrap().code == 0, turn == 0, "the first is let in");
        }
    });
    (script_calls(&server), begun.elapsed().as_secs() + 2)
}

#[test]
fn the_service_remembers_denials_unless_it_is_told_not_to() {
    let (calls, readiness) = cost_of_checks("{max_age: 5m}", 300);
    assert!(calls <= 2 + 1 + readiness, "{calls} calls");
    let (calls, _) = cost_of_checks("{size: 0}", 300);
    assert!(calls >= 300, "{calls} calls");
}
