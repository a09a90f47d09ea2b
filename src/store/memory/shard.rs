//! One shard of the memory store: a bounded map from key to bucket.
//!
//! Takes keys and states and gives states back. Knows no locks and no clock; whoever calls holds the one and reads the
//! other. Every call costs a bounded number of steps, however many buckets there are.

use crate::bucket::{Quota, State, Timestamp};
use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::Arc;

/// Buckets looked at for expiry whenever a new one comes. Two for one, so that a shard whose buckets are all left alone
/// empties faster than it fills.
const SWEPT_PER_INSERT: usize = 2;

/// Buckets compared when one must be displaced.
const COMPARED: usize = 8;

#[derive(Debug)]
struct Entry {
    key: Arc<str>,
    state: State,
    quota: Quota,
}

impl Entry {
    /// Whether nothing was taken for the quota's time to live: the bucket is full, and Redis would have dropped it.
    fn is_expired(&self, now: Timestamp) -> bool {
        now.micros >= self.state.last_refill.micros.saturating_add(self.quota.ttl().saturating_mul(1_000_000))
    }

    /// The share of its tokens that a bucket has: 1 when full.
    fn fullness(&self, now: Timestamp) -> f64 {
        State::refilled(Some(self.state), &self.quota, now).tokens / self.quota.max_tokens()
    }
}

/// Buckets by key, at most `capacity` of them.
#[derive(Debug)]
pub(super) struct Shard {
    /// Where in `entries` a key's bucket is.
    index: HashMap<Arc<str>, usize, RandomState>,
    entries: Vec<Entry>,
    capacity: usize,
    /// Where the next sweep goes on.
    hand: usize,
    evicted: u64,
}

impl Shard {
    pub(super) fn new(capacity: usize, hashing: RandomState) -> Self {
        Self { index: HashMap::with_hasher(hashing), entries: Vec::new(), capacity, hand: 0, evicted: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// What is stored, expired or not: the arithmetic makes an expired bucket full by itself.
    pub(super) fn state(&self, key: &str) -> Option<State> {
        self.index.get(key).map(|&at| self.entries[at].state)
    }

    pub(super) fn unexpired(&self, key: &str, now: Timestamp) -> Option<State> {
        let entry = &self.entries[*self.index.get(key)?];
        (!entry.is_expired(now)).then_some(entry.state)
    }

    /// Stores a bucket, and says whether another that had not expired was displaced for it.
    pub(super) fn put(&mut self, key: &str, state: State, quota: Quota, now: Timestamp) -> bool {
        if let Some(&at) = self.index.get(key) {
            let entry = &mut self.entries[at];
            entry.state = state;
            entry.quota = quota;
            return false;
        }
        let evicted = self.evicted;
        self.sweep(now);
        if self.entries.len() >= self.capacity {
            self.displace(now);
        }
        let key: Arc<str> = key.into();
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push(Entry { key, state, quota });
        self.evicted > evicted
    }

    /// Forgets a bucket and says whether there was one that had not expired.
    pub(super) fn remove(&mut self, key: &str, now: Timestamp) -> bool {
        let Some(&at) = self.index.get(key) else { return false };
        let expired = self.entries[at].is_expired(now);
        self.drop_at(at);
        !expired
    }

    fn sweep(&mut self, now: Timestamp) {
        for _ in 0..SWEPT_PER_INSERT.min(self.entries.len()) {
            self.hand = (self.hand + 1) % self.entries.len().max(1);
            if self.entries.get(self.hand).is_some_and(|entry| entry.is_expired(now)) {
                self.drop_at(self.hand);
            }
        }
    }

    /// Drops that which is closest to full among the next few: dropping it gives away the fewest tokens. One that has
    /// expired is full.
    fn displace(&mut self, now: Timestamp) {
        let len = self.entries.len();
        let near = (1..=COMPARED.min(len)).map(|step| (self.hand + step) % len);
        let fullness = |at: &usize| self.entries[*at].fullness(now);
        let Some(at) = near.max_by(|a, b| fullness(a).total_cmp(&fullness(b))) else { return };
        self.hand = (self.hand + COMPARED) % len;
        self.evicted += u64::from(!self.entries[at].is_expired(now));
        self.drop_at(at);
    }

    fn drop_at(&mut self, at: usize) {
        let entry = self.entries.swap_remove(at);
        self.index.remove(&entry.key);
        if let Some(moved) = self.entries.get(at) {
            self.index.insert(moved.key.clone(), at);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp { micros: seconds * 1_000_000 }
    }

    fn put(shard: &mut Shard, key: &str, tokens: f64, seconds: u64) {
        let quota = Quota::parse(10.0, 1.0).unwrap();
        let state = State { tokens, last_refill: at(seconds) };
        shard.put(key, state, quota, at(seconds));
    }

    fn consistent(shard: &Shard) -> bool {
        shard.index.len() == shard.entries.len()
            && shard.entries.iter().enumerate().all(|(at, entry)| shard.index.get(&entry.key) == Some(&at))
    }

    #[test]
    fn a_full_shard_gives_up_the_bucket_that_is_closest_to_full() {
        let mut shard = Shard::new(3, RandomState::new());
        for (key, tokens) in [("a", 1.0), ("b", 8.0), ("c", 2.0), ("d", 3.0)] {
            put(&mut shard, key, tokens, 100);
        }
        assert!(shard.state("b").is_none());
        assert!(["a", "c", "d"].iter().all(|key| shard.state(key).is_some()));
        assert_eq!((shard.len(), shard.evicted()), (3, 1));
    }

    #[test]
    fn an_expired_bucket_goes_first_and_is_not_counted() {
        let mut shard = Shard::new(3, RandomState::new());
        put(&mut shard, "old", 0.0, 100);
        put(&mut shard, "a", 9.0, 120);
        put(&mut shard, "b", 9.0, 120);
        put(&mut shard, "c", 9.0, 120);
        assert!(shard.state("old").is_none());
        assert_eq!((shard.len(), shard.evicted()), (3, 0));
    }

    #[test]
    fn buckets_left_alone_are_swept_as_others_come() {
        let mut shard = Shard::new(10_000, RandomState::new());
        for i in 0..1000 {
            put(&mut shard, &format!("old{i}"), 0.0, 100);
        }
        for i in 0..1000 {
            put(&mut shard, &format!("new{i}"), 0.0, 200);
        }
        assert_eq!((shard.len(), shard.evicted()), (1000, 0));
        assert!(consistent(&shard));
    }

    #[test]
    fn the_index_stays_true_through_many_displacements() {
        let mut shard = Shard::new(7, RandomState::new());
        for i in 0..500_u64 {
            put(&mut shard, &format!("{}", i * 7 % 31), (i % 10) as f64, 100 + i);
            if i % 5 == 0 {
                shard.remove(&format!("{}", i % 31), at(100 + i));
            }
            assert!(consistent(&shard) && shard.len() <= 7);
        }
    }

    #[test]
    fn an_expired_bucket_is_not_shown() {
        let mut shard = Shard::new(7, RandomState::new());
        put(&mut shard, "a", 0.0, 100);
        assert!(shard.unexpired("a", at(119)).is_some());
        assert!(shard.unexpired("a", at(120)).is_none());
        assert!(!shard.remove("a", at(120)));
    }
}
