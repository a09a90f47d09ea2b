//! Buckets in this process's memory: exact for one process, bounded, and gone when it ends.
//!
//! Takes charges and keys, gives token levels, as [`Store`] says. Knows no Redis and starts no task.
//!
//! Buckets are spread over shards, each behind its own lock. A take locks the shards of its buckets in ascending
//! order, so that it is all or nothing across them and two takes cannot wait for each other.

mod shard;

use super::{Pending, Store};
use crate::bucket::{self, Charge, Key, State, Taken, Timestamp};
use crate::clock::Clock;
use crate::complaint::Complaint;
use parking_lot::{Mutex, MutexGuard};
use shard::Shard;
use smallvec::SmallVec;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Shards of a store large enough to need them.
const SHARDS: usize = 64;

/// A smaller share of the buckets than this is not worth a shard of its own.
const SMALLEST_SHARD: usize = 64;

/// Buckets in memory.
///
/// At most `capacity` of them. A new bucket that finds no room displaces one: one that has expired if there is one
/// near, else that which is closest to full among a few. **A displaced bucket starts full again**, so a store that is
/// too small for its callers admits more than it should; [`MemoryStore::evicted`] counts how often that happened.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    shards: Box<[Mutex<Shard>]>,
    /// Keyed by chance at start-up, since clients choose the ids: nobody can aim at one shard.
    hashing: RandomState,
    evictions: Complaint,
}

impl MemoryStore {
    /// A store of at most `capacity` buckets, and at least one. Memory is taken as buckets come.
    pub fn new(clock: Arc<dyn Clock>, capacity: usize) -> Self {
        let count = (capacity / SMALLEST_SHARD).clamp(1, SHARDS);
        let share = (capacity / count).max(1);
        let hashing = RandomState::new();
        let shards = (0..count).map(|_| Mutex::new(Shard::new(share, hashing.clone()))).collect();
        Self { clock, shards, hashing, evictions: Complaint::default() }
    }

    /// Buckets held now, expired ones that were not yet swept included.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Buckets displaced before they had expired, ever.
    pub fn evicted(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().evicted()).sum()
    }

    fn place(&self, key: &Key) -> usize {
        self.hashing.hash_one(key.as_str()) as usize % self.shards.len()
    }

    fn lock_all(&self, charges: &[Charge]) -> Locked<'_> {
        let places: SmallVec<[usize; 3]> = charges.iter().map(|charge| self.place(&charge.key)).collect();
        let mut order = places.clone();
        order.sort_unstable();
        order.dedup();
        let guards = order.iter().map(|&place| (place, self.shards[place].lock())).collect();
        Locked { places, guards }
    }

    /// [`Store::take`], which here never waits and never fails.
    pub fn take_now(&self, charges: &[Charge]) -> Taken {
        debug_assert!(super::distinct(charges), "a take names a bucket twice");
        let mut locked = self.lock_all(charges);
        // Read under the locks, so that takes from one bucket see time in the order in which they happen.
        let now = self.clock.now();
        let mut states = locked.states(charges);
        let taken = bucket::take(charges, &mut states, now);
        let displaced = taken.admitted && locked.store(charges, &states, now);
        drop(locked);
        if displaced {
            self.evictions.say(|more| {
                tracing::warn!(more, "memory.capacity is too small: a bucket in use was displaced and starts full");
            });
        }
        taken
    }

    /// [`Store::peek`], which here never waits and never fails.
    pub fn peek_now(&self, charges: &[Charge]) -> Taken {
        let mut locked = self.lock_all(charges);
        let now = self.clock.now();
        let states = locked.states(charges);
        bucket::peek(charges, &states, now)
    }
}

/// The shards of one call's buckets, all locked.
struct Locked<'a> {
    /// The shard of each charge.
    places: SmallVec<[usize; 3]>,
    guards: SmallVec<[(usize, MutexGuard<'a, Shard>); 3]>,
}

impl Locked<'_> {
    fn shard(&mut self, charge: usize) -> &mut Shard {
        let place = self.places[charge];
        let guard = self.guards.iter_mut().find(|(at, _)| *at == place);
        &mut guard.expect("the shard of every charge was locked").1
    }

    fn states(&mut self, charges: &[Charge]) -> SmallVec<[Option<State>; 3]> {
        (0..charges.len()).map(|i| self.shard(i).state(charges[i].key.as_str())).collect()
    }

    /// Says whether a bucket in use was displaced.
    fn store(&mut self, charges: &[Charge], states: &[Option<State>], now: Timestamp) -> bool {
        let mut displaced = false;
        for (i, (charge, state)) in charges.iter().zip(states).enumerate() {
            if let Some(state) = state {
                displaced |= self.shard(i).put(charge.key.as_str(), *state, charge.quota, now);
            }
        }
        displaced
    }
}

impl Store for MemoryStore {
    fn take<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken> {
        Box::pin(async move { Ok(self.take_now(charges)) })
    }

    fn peek<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken> {
        Box::pin(async move { Ok(self.peek_now(charges)) })
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> Pending<'a, Option<State>> {
        Box::pin(async move {
            let shard = self.shards[self.place(key)].lock();
            Ok(shard.unexpired(key.as_str(), self.clock.now()))
        })
    }

    fn reset<'a>(&'a self, key: &'a Key) -> Pending<'a, bool> {
        Box::pin(async move {
            let mut shard = self.shards[self.place(key)].lock();
            Ok(shard.remove(key.as_str(), self.clock.now()))
        })
    }

    fn probe(&self) -> Pending<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}
