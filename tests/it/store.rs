//! The suite that every store must pass, run over each of them.

use crate::support::{Hands, NEVER, START, charge, quota, redis, unique_prefix, user};
use futures_util::FutureExt;
use std::sync::Arc;
use std::time::Duration;
use tidegate::bucket::{Charge, Dimension, Key, Level, Quota, Taken, Timestamp};
use tidegate::clock::SteadyClock;
use tidegate::store::Store;
use tidegate::store::deny_cache::DenyCache;
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::{ClockSource, RedisSettings, RedisStore};

/// A store to be tested, and a way to name its buckets.
struct Rig {
    store: Arc<dyn Store>,
    clock: Hands,
    prefix: String,
}

impl Rig {
    fn memory() -> Self {
        let clock = Hands::new();
        let store = Arc::new(MemoryStore::new(clock.0.clone(), 10_000));
        Self { store, clock, prefix: unique_prefix() }
    }

    fn redis_with_set_clock() -> Self {
        let clock = Hands::new();
        let settings = redis::settings(&redis::shared().url());
        let store = RedisStore::new(RedisSettings { clock: ClockSource::Local(clock.0.clone()), ..settings });
        Self { store: Arc::new(store), clock, prefix: unique_prefix() }
    }

    fn redis_with_its_own_clock() -> Self {
        let store = Arc::new(redis::store(&redis::shared().url()));
        Self { store, clock: Hands::new(), prefix: unique_prefix() }
    }

    fn redis_behind_a_deny_cache() -> Self {
        let redis = Self::redis_with_its_own_clock();
        let stopwatch = Arc::new(SteadyClock::default());
        let store = Arc::new(DenyCache::new(redis.store, stopwatch, 100, Duration::from_secs(1)));
        Self { store, ..redis }
    }

    fn key(&self, id: &str) -> Key {
        user(&self.prefix, id)
    }

    async fn take(&self, charges: &[Charge]) -> Seen {
        Seen::new(&self.store.take(charges).await.unwrap(), charges)
    }

    async fn peek(&self, charges: &[Charge]) -> Seen {
        Seen::new(&self.store.peek(charges).await.unwrap(), charges)
    }

    async fn admits(&self, key: &Key, quota: Quota, cost: f64) -> bool {
        self.take(&[charge(key, quota, cost)]).await.admitted
    }

    /// How many of the moments, in microseconds after the start, admit a take of one token.
    async fn admitted_at(&self, key: &Key, quota: Quota, moments: impl Iterator<Item = i64>) -> Vec<i64> {
        let mut admitted = Vec::new();
        for moment in moments {
            self.clock.set_micros(moment);
            if self.admits(key, quota, 1.0).await {
                admitted.push(moment);
            }
        }
        admitted
    }

    /// How many of these takes are admitted when all are made at the same time.
    async fn admitted_at_once(&self, takes: impl Iterator<Item = Vec<Charge>>) -> usize {
        let spawn = |charges: Vec<Charge>| {
            let store = self.store.clone();
            tokio::spawn(async move { store.take(&charges).await.unwrap().admitted })
        };
        let takes: Vec<_> = takes.map(spawn).collect();
        let mut admitted = 0;
        for take in takes {
            admitted += usize::from(take.await.unwrap());
        }
        admitted
    }
}

/// What a store answered: the tokens in each bucket, and the seconds until its cost is there.
#[derive(Debug, PartialEq)]
struct Seen {
    admitted: bool,
    levels: Vec<f64>,
    waits: Vec<u64>,
}

impl Seen {
    fn new(taken: &Taken, charges: &[Charge]) -> Self {
        let wait = |(level, charge): (&Level, &Charge)| level.wait(&charge.quota, charge.cost);
        Self {
            admitted: taken.admitted,
            levels: taken.tokens(charges).collect(),
            waits: taken.levels.iter().zip(charges).map(wait).collect(),
        }
    }
}

/// Equal but for what a slow refill may have added.
#[track_caller]
fn assert_close(levels: &[f64], expected: &[f64]) {
    let close = levels.len() == expected.len() && levels.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-3);
    assert!(close, "{levels:?} is not {expected:?}");
}

macro_rules! suite {
    (any clock: $($any:ident)*; set clock: $($set:ident)*;) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $any() { super::$any(super::Rig::memory()).await })*
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $set() { super::$set(super::Rig::memory()).await })*
        }
        mod redis_with_set_clock {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $any() { super::$any(super::Rig::redis_with_set_clock()).await })*
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $set() { super::$set(super::Rig::redis_with_set_clock()).await })*
        }
        mod redis_with_its_own_clock {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $any() { super::$any(super::Rig::redis_with_its_own_clock()).await })*
        }
        mod redis_behind_a_deny_cache {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $any() { super::$any(super::Rig::redis_behind_a_deny_cache()).await })*
        }
    };
}

suite! {
    any clock:
        a_new_bucket_is_full_and_takes_drain_it
        a_denial_by_one_bucket_takes_nothing_from_the_others
        a_cost_equal_to_all_tokens_is_admitted
        a_cost_above_all_tokens_is_never_admitted
        a_cost_of_nothing_is_admitted_by_an_empty_bucket
        costs_may_be_fractions
        each_key_has_its_own_cost_and_quota
        a_peek_tells_what_a_take_would_find_and_writes_nothing
        a_bucket_can_be_inspected_and_reset
        any_text_can_be_a_key
        a_take_of_nothing_is_admitted
        concurrent_takes_admit_exactly_what_there_is
        concurrent_takes_from_crossing_buckets_are_all_or_nothing
        a_ping_is_answered;
    set clock:
        ten_tokens_at_25_per_second_are_ten_tokens
        half_a_token_per_second_polled_every_100_ms_admits_one_every_two_seconds
        a_hammered_bucket_still_admits_its_rate
        waiting_as_told_is_enough
        the_wait_is_exact_where_rounding_bites
        a_last_refill_in_the_future_is_part_of_the_wait
        a_last_refill_in_the_future_adds_nothing_and_recovers
        a_bucket_never_holds_more_than_its_quota
        a_smaller_quota_caps_what_is_there
        last_refill_is_the_time_of_the_take;
}

async fn a_new_bucket_is_full_and_takes_drain_it(rig: Rig) {
    let (key, quota) = (rig.key("alice"), quota(3.0, NEVER));
    for left in [2.0, 1.0, 0.0] {
        let taken = rig.take(&[charge(&key, quota, 1.0)]).await;
        assert!(taken.admitted);
        assert_close(&taken.levels, &[left]);
    }
    let denied = rig.take(&[charge(&key, quota, 1.0)]).await;
    assert!(!denied.admitted);
    assert_close(&denied.levels, &[0.0]);
}

async fn a_denial_by_one_bucket_takes_nothing_from_the_others(rig: Rig) {
    let quota = quota(10.0, NEVER);
    let keys = [Dimension::User, Dimension::Key, Dimension::Ip].map(|of| Key::new(&rig.prefix, of, "x"));
    assert!(rig.admits(&keys[1], quota, 10.0).await);
    let charges = keys.each_ref().map(|key| charge(key, quota, 1.0));
    for _ in 0..10 {
        let denied = rig.take(&charges).await;
        assert!(!denied.admitted);
        assert_close(&denied.levels, &[10.0, 0.0, 10.0]);
    }
    assert_eq!(rig.store.inspect(&keys[0]).await, Ok(None));
    assert_eq!(rig.store.inspect(&keys[2]).await, Ok(None));
    assert!(rig.store.reset(&keys[1]).await.unwrap());
    assert_close(&rig.take(&charges).await.levels, &[9.0, 9.0, 9.0]);
}

async fn a_cost_equal_to_all_tokens_is_admitted(rig: Rig) {
    let (key, quota) = (rig.key("alice"), quota(7.5, NEVER));
    assert!(rig.admits(&key, quota, 7.5).await);
    assert!(!rig.admits(&key, quota, 0.5).await);
}

async fn a_cost_above_all_tokens_is_never_admitted(rig: Rig) {
    let (key, quota) = (rig.key("alice"), quota(7.5, 1e9));
    assert!(!rig.admits(&key, quota, 7.6).await);
    assert_eq!(rig.store.inspect(&key).await, Ok(None));
}

async fn a_cost_of_nothing_is_admitted_by_an_empty_bucket(rig: Rig) {
    let (key, quota) = (rig.key("alice"), quota(1.0, NEVER));
    assert!(rig.admits(&key, quota, 1.0).await);
    assert!(rig.admits(&key, quota, 0.0).await);
}

async fn costs_may_be_fractions(rig: Rig) {
    let (key, quota) = (rig.key("alice"), quota(1.0, NEVER));
    for left in [0.75, 0.5, 0.25, 0.0] {
        assert_close(&rig.take(&[charge(&key, quota, 0.25)]).await.levels, &[left]);
    }
    assert!(!rig.admits(&key, quota, 0.25).await);
}

async fn each_key_has_its_own_cost_and_quota(rig: Rig) {
    let keys = ["a", "b", "c", "d", "e"].map(|id| rig.key(id));
    let charges: Vec<Charge> =
        (1..).zip(&keys).map(|(n, key)| charge(key, quota(f64::from(n) * 10.0, NEVER), n.into())).collect();
    let taken = rig.take(&charges).await;
    assert!(taken.admitted);
    assert_close(&taken.levels, &[9.0, 18.0, 27.0, 36.0, 45.0]);
}

async fn a_peek_tells_what_a_take_would_find_and_writes_nothing(rig: Rig) {
    let (spent, fresh, quota) = (rig.key("spent"), rig.key("fresh"), quota(2.0, NEVER));
    assert!(rig.admits(&spent, quota, 1.5).await);
    let before = rig.store.inspect(&spent).await.unwrap();
    let both = |cost| [charge(&spent, quota, cost), charge(&fresh, quota, cost)];
    for (cost, covered) in [(0.5, true), (1.0, false)] {
        let found = rig.peek(&both(cost)).await;
        assert_eq!(found.admitted, covered);
        assert_close(&found.levels, &[0.5, 2.0]);
    }
    assert_eq!(rig.store.inspect(&spent).await.unwrap(), before);
    assert_eq!(rig.store.inspect(&fresh).await, Ok(None));
}

async fn a_bucket_can_be_inspected_and_reset(rig: Rig) {
    let (key, quota) = (rig.key("alice"), quota(2.0, NEVER));
    assert_eq!(rig.store.inspect(&key).await, Ok(None));
    assert_eq!(rig.store.reset(&key).await, Ok(false));
    assert!(rig.admits(&key, quota, 2.0).await);
    assert_eq!(rig.store.inspect(&key).await.unwrap().unwrap().tokens, 0.0);
    assert_eq!(rig.store.reset(&key).await, Ok(true));
    assert!(rig.admits(&key, quota, 2.0).await);
}

async fn any_text_can_be_a_key(rig: Rig) {
    let long = "x".repeat(128);
    let ids =
        ["", " ", "*", "a b", "\r\n$3\r\nfoo", "\0", "{tag}", "rl:user:bob", "'\"; return 1 --", "ä→🦀", "~0", &long];
    let keys: Vec<Key> = ids.iter().map(|id| rig.key(id)).collect();
    let charges: Vec<Charge> = keys.iter().map(|key| charge(key, quota(2.0, NEVER), 1.0)).collect();
    let taken = rig.take(&charges).await;
    assert!(taken.admitted);
    assert_close(&taken.levels, &[1.0; 12]);
    assert!(rig.admits(&keys[4], quota(2.0, NEVER), 1.0).await);
    let denied = rig.take(&charges).await;
    assert!(!denied.admitted);
    assert_close(&denied.levels, &[1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
}

async fn a_take_of_nothing_is_admitted(rig: Rig) {
    let taken = rig.take(&[]).await;
    assert!(taken.admitted && taken.levels.is_empty());
}

async fn concurrent_takes_admit_exactly_what_there_is(rig: Rig) {
    let (key, quota) = (rig.key("alice"), quota(100.0, NEVER));
    let takes = (0..200).map(|_| [charge(&key, quota, 1.0)].to_vec());
    assert_eq!(rig.admitted_at_once(takes).await, 100);
}

async fn concurrent_takes_from_crossing_buckets_are_all_or_nothing(rig: Rig) {
    let (a, b, quota) = (rig.key("a"), rig.key("b"), quota(100.0, NEVER));
    let (one, two) = (charge(&a, quota, 1.0), charge(&b, quota, 2.0));
    let takes =
        (0..200).map(|n| if n % 2 == 0 { vec![one.clone(), two.clone()] } else { vec![two.clone(), one.clone()] });
    assert_eq!(rig.admitted_at_once(takes).await, 50);
    assert_close(&rig.peek(&[one, two]).await.levels, &[50.0, 0.0]);
}

async fn a_ping_is_answered(rig: Rig) {
    assert_eq!(rig.store.probe().await, Ok(()));
}

async fn ten_tokens_at_25_per_second_are_ten_tokens(rig: Rig) {
    let (key, quota) = (rig.key("alice"), quota(10.0, 25.0));
    assert_eq!(rig.admitted_at(&key, quota, std::iter::repeat_n(0, 20)).await.len(), 10);
    assert!(rig.store.inspect(&key).await.unwrap().is_some());
}

async fn half_a_token_per_second_polled_every_100_ms_admits_one_every_two_seconds(rig: Rig) {
    let admitted = rig.admitted_at(&rig.key("alice"), quota(1.0, 0.5), (0..=100).map(|tick| tick * 100_000)).await;
    assert_eq!(admitted, [0, 2_000_000, 4_000_000, 6_000_000, 8_000_000, 10_000_000]);
}

async fn a_hammered_bucket_still_admits_its_rate(rig: Rig) {
    let (key, quota) = (rig.key("alice"), quota(5.0, 10.0));
    assert!(rig.admits(&key, quota, 5.0).await);
    let admitted = rig.admitted_at(&key, quota, (1..=1000).map(|tick| tick * 10_000)).await.len();
    assert!((99..=100).contains(&admitted), "{admitted} in 10 s at 10 per second");
}

async fn waiting_as_told_is_enough(rig: Rig) {
    let (key, quota) = (rig.key("alice"), quota(10.0, 1.0));
    assert!(rig.admits(&key, quota, 9.3).await);
    let denied = rig.take(&[charge(&key, quota, 1.0)]).await;
    assert!(!denied.admitted);
    assert_eq!(denied.waits, [1]);
    rig.clock.set_seconds(1);
    assert!(rig.admits(&key, quota, 1.0).await);
}

/// The level at the denial is rounded, and so is what is there later: 71 + 27 seconds at 1/98 per second are not quite
/// a token.
async fn the_wait_is_exact_where_rounding_bites(rig: Rig) {
    let (key, quota) = (rig.key("alice"), quota(2.0, 1.0 / 98.0));
    assert!(rig.admits(&key, quota, 2.0).await);
    rig.clock.set_seconds(71);
    let wait = rig.take(&[charge(&key, quota, 1.0)]).await.waits[0];
    rig.clock.set_seconds(71 + wait as i64 - 1);
    assert!(!rig.admits(&key, quota, 1.0).await);
    rig.clock.set_seconds(71 + wait as i64);
    assert!(rig.admits(&key, quota, 1.0).await);
}

async fn a_last_refill_in_the_future_is_part_of_the_wait(rig: Rig) {
    let (key, quota) = (rig.key("alice"), quota(1.0, 1.0));
    rig.clock.set_seconds(5);
    assert!(rig.admits(&key, quota, 1.0).await);
    rig.clock.set_seconds(0);
    assert_eq!(rig.take(&[charge(&key, quota, 1.0)]).await.waits, [6]);
    rig.clock.set_seconds(6);
    assert!(rig.admits(&key, quota, 1.0).await);
}

async fn a_last_refill_in_the_future_adds_nothing_and_recovers(rig: Rig) {
    let (key, quota) = (rig.key("alice"), quota(3.0, 1.0));
    rig.clock.set_seconds(60);
    assert!(rig.admits(&key, quota, 1.0).await);
    rig.clock.set_seconds(0);
    let taken = rig.take(&[charge(&key, quota, 1.0)]).await;
    assert_eq!((taken.admitted, taken.levels[0]), (true, 1.0));
    let stored = rig.store.inspect(&key).await.unwrap().unwrap();
    assert_eq!(stored.last_refill, Timestamp { micros: START + 60_000_000 });
    assert!(rig.admits(&key, quota, 1.0).await);
    rig.clock.set_seconds(60);
    assert!(!rig.admits(&key, quota, 1.0).await);
    rig.clock.set_seconds(61);
    assert!(rig.admits(&key, quota, 1.0).await);
}

async fn a_bucket_never_holds_more_than_its_quota(rig: Rig) {
    let (key, quota) = (rig.key("alice"), quota(3.0, 1.0));
    assert!(rig.admits(&key, quota, 1.0).await);
    rig.clock.set_seconds(5);
    assert_eq!(rig.take(&[charge(&key, quota, 1.0)]).await.levels[0], 2.0);
    rig.clock.set_seconds(1_000_000);
    assert_eq!(rig.take(&[charge(&key, quota, 1.0)]).await.levels[0], 2.0);
}

async fn a_smaller_quota_caps_what_is_there(rig: Rig) {
    let key = rig.key("alice");
    assert!(rig.admits(&key, quota(100.0, 1.0), 1.0).await);
    assert_eq!(rig.take(&[charge(&key, quota(10.0, 1.0), 1.0)]).await.levels[0], 9.0);
}

async fn last_refill_is_the_time_of_the_take(rig: Rig) {
    let (key, quota) = (rig.key("alice"), quota(3.0, 1.0));
    for micros in [1, 999_999, 1_234_567] {
        rig.clock.set_micros(micros);
        assert!(rig.admits(&key, quota, 0.1).await);
        let stored = rig.store.inspect(&key).await.unwrap().unwrap();
        assert_eq!(stored.last_refill.micros, START + micros as u64);
    }
}

#[test]
fn a_memory_store_holds_no_more_than_its_capacity_and_counts_what_it_displaced() {
    let clock = Hands::new();
    let store = MemoryStore::new(clock.0.clone(), 1000);
    for n in 0..5000 {
        let key = user("t:", &n.to_string());
        assert!(store.take(&[charge(&key, quota(10.0, NEVER), 1.0)]).now_or_never().unwrap().unwrap().admitted);
    }
    assert!(store.len() <= 1000, "{}", store.len());
    assert_eq!(store.evicted(), 5000 - store.len() as u64);
}
