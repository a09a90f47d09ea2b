//! Denials answered without asking: a [`Store`] around a [`Store`] that remembers which buckets were found exhausted.
//!
//! Takes what a store takes and gives what it gives; of buckets it knows what the inner store told, and for how long
//! that may be used. Knows no Redis. Peeks pass through: they ask what is there now.
//!
//! # Why it never denies what the store would admit
//!
//! An answer tells of a bucket what it held when it was last written, and how many microseconds ago that was by the
//! store's clock, when the call was evaluated: [`Level`]. From then on the bucket holds what refill makes of that as
//! long as nobody takes from it, and less when somebody does, whatever the order in which answers arrive: so **every
//! answer bounds from above what is there later**, and a cost above the bound is a denial. The call was evaluated after
//! it was sent, so the time since is at most the time since it was sent, and since the store reads whole microseconds,
//! that is rounded up. The arithmetic is [`Level`]'s, which is the script's, and it is monotonic in time, rounding
//! included. With the clock of the store running as fast as this machine's, the bound holds exactly.
//!
//! What can put more into a bucket than refill does, and thus make the store admit earlier:
//!
//! * A reset. One through this very store is seen at once: what was sent before its answer is forgotten, and not
//!   learned when it comes in later. One from elsewhere (`tidegate bucket reset`, DEL, FLUSHALL, eviction by
//!   `maxmemory-policy`, a restart without persistence, a failover that lost writes) is not seen.
//! * A refund, where a cluster gives back what one bucket of a request paid that another denied.
//! * Another quota. A bucket is remembered with its quota and asked for anew under any other; but who used it under
//!   another has refilled it at another rate.
//! * Redis's clock stepping forward, or running faster than this machine's (NTP corrects by at most 0.5 ms a second).
//!
//! Each is over-denied for at most `max_age`: no answer is used longer than that after its call was sent. A denial out
//! of this cache renews nothing. When an answer is nearly that old, one take is let through to renew it while the others are
//! still denied: without that, all that are open when it grows too old would ask at once. So a client that hammers one
//! bucket costs the store about one call per `max_age`, however many of its requests are open together.
//!
//! # What is told
//!
//! Retry-After is to be long enough: a level in a denial counts the time since the answer *came*, which is at most the
//! time since it was evaluated. (Takes through other replicas since then make the true wait longer, as they do after
//! any denial.) Of the buckets that are not known to be exhausted nothing is known here, and they are
//! told as full: who words a denial looks at the exhausted ones alone. A bucket that is exhausted unknown to this cache
//! is therefore not named.

use super::{Pending, Store};
use crate::bucket::{Charge, Key, Level, Levels, Quota, Source, State, Taken};
use crate::clock::Stopwatch;
use crate::recent::Recent;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A store whose denials are remembered.
#[derive(Debug)]
pub struct DenyCache {
    store: Arc<dyn Store>,
    stopwatch: Arc<dyn Stopwatch>,
    max_age: Duration,
    known: Mutex<Known>,
    hits: AtomicU64,
}

/// An answer is renewed in the last of so many parts of its time.
const RENEWED_IN: u32 = 8;

/// Whether an answer may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Fresh,
    /// It is true still, and one take is to renew it.
    Due,
}

/// What is remembered.
#[derive(Debug)]
struct Known {
    buckets: Recent<Box<str>, Answer>,
    /// When something was last forgotten. What was sent before is not learned.
    forgotten: Option<Duration>,
}

/// What the store said of one bucket.
#[derive(Clone, Copy, Debug)]
struct Answer {
    quota: Quota,
    level: Level,
    /// Before the call.
    sent: Duration,
    /// After it.
    received: Duration,
    /// Whether a take has been let through to renew it.
    renewing: bool,
}

impl Answer {
    /// Whether it may be told without asking, as long as it is not older than `max_age`.
    fn age(&self, now: Duration, max_age: Duration) -> Age {
        let old = now.saturating_sub(self.sent) >= max_age - max_age / RENEWED_IN;
        if old && !self.renewing { Age::Due } else { Age::Fresh }
    }

    /// The level that the store would find now, or one with more tokens.
    fn at_most(&self, now: Duration) -> Level {
        let nanos = now.saturating_sub(self.sent).as_nanos();
        self.later(nanos.div_ceil(1000))
    }

    /// The level that the store would find now, or one with fewer tokens, had nobody taken from the bucket since.
    fn at_least(&self, now: Duration) -> Level {
        self.later(now.saturating_sub(self.received).as_micros())
    }

    fn later(&self, micros: u128) -> Level {
        Level { elapsed: self.level.elapsed + micros as f64, ..self.level }
    }
}

impl DenyCache {
    /// Remembers at most `size` buckets, each for `max_age` after the call that told of it was sent.
    pub fn new(store: Arc<dyn Store>, stopwatch: Arc<dyn Stopwatch>, size: usize, max_age: Duration) -> Self {
        let known = Mutex::new(Known { buckets: Recent::new(size), forgotten: None });
        Self { store, stopwatch, max_age, known, hits: AtomicU64::new(0) }
    }

    /// Takes denied without asking, ever.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Buckets remembered now, some of them perhaps too long ago to be used.
    pub fn len(&self) -> usize {
        self.known.lock().buckets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything, and what is being asked right now.
    pub fn clear(&self) {
        let mut known = self.known.lock();
        known.forgotten = Some(self.stopwatch.elapsed());
        known.buckets.clear();
    }

    /// The denial of a take that is known to be denied at `now`.
    fn denial(&self, charges: &[Charge], now: Duration) -> Option<Taken> {
        let mut known = self.known.lock();
        if known.buckets.is_empty() {
            return None;
        }
        let mut denied = false;
        let mut levels = Levels::new();
        for charge in charges {
            let exhausted = known.exhausted(charge, now, self.max_age);
            denied |= exhausted.is_some_and(|(_, age)| age == Age::Fresh);
            let full = Level { tokens: charge.quota.max_tokens(), elapsed: 0.0 };
            levels.push(exhausted.map_or(full, |(level, _)| level));
        }
        if !denied {
            known.renew(charges, now, self.max_age);
            return None;
        }
        Some(Taken { admitted: false, levels, source: Source::DenyCache })
    }

    /// Learns from an answer to what was sent at `sent`: of a denial always, of an admission if one of its buckets was
    /// remembered.
    fn learn(&self, charges: &[Charge], taken: &Taken, sent: Duration) {
        let mut known = self.known.lock();
        if taken.admitted && !known.any(charges) {
            return;
        }
        let received = self.stopwatch.elapsed();
        for (charge, level) in charges.iter().zip(&taken.levels) {
            let answer = Answer { quota: charge.quota, level: *level, sent, received, renewing: false };
            if level.tokens(&charge.quota) < charge.cost {
                known.remember(charge, answer);
            } else if taken.admitted {
                known.drop_older(charge, answer);
            }
        }
    }

    fn forget(&self, key: &Key) {
        let mut known = self.known.lock();
        known.forgotten = Some(self.stopwatch.elapsed());
        known.buckets.remove(key.as_str());
    }
}

impl Known {
    /// The level of a bucket that is known not to cover a cost, and whether that may be told without asking.
    fn exhausted(&mut self, charge: &Charge, now: Duration, max_age: Duration) -> Option<(Level, Age)> {
        let answer = *self.buckets.get(charge.key.as_str())?;
        if now.saturating_sub(answer.sent) >= max_age {
            self.buckets.remove(charge.key.as_str());
            return None;
        }
        let denies = answer.quota == charge.quota && answer.at_most(now).tokens(&charge.quota) < charge.cost;
        denies.then(|| (answer.at_least(now), answer.age(now, max_age)))
    }

    /// Notes that the store is about to be asked of these buckets.
    fn renew(&mut self, charges: &[Charge], now: Duration, max_age: Duration) {
        for charge in charges {
            let answer = self.buckets.get_mut(charge.key.as_str());
            if let Some(answer) = answer.filter(|answer| answer.age(now, max_age) == Age::Due) {
                answer.renewing = true;
            }
        }
    }

    fn any(&self, charges: &[Charge]) -> bool {
        !self.buckets.is_empty() && charges.iter().any(|charge| self.buckets.peek(charge.key.as_str()).is_some())
    }

    /// Remembers a bucket that does not cover the cost, or not once more.
    fn remember(&mut self, charge: &Charge, answer: Answer) {
        let key = charge.key.as_str();
        let forgotten = self.forgotten.is_some_and(|at| answer.sent <= at);
        // A late answer is as true as one that overtook it, but would sooner be too old.
        if !forgotten && self.buckets.peek(key).is_none_or(|there| there.sent <= answer.sent) {
            self.buckets.insert(key.into(), answer);
        }
    }

    /// Drops what is known of a bucket that covers the cost once more, unless it is newer.
    fn drop_older(&mut self, charge: &Charge, answer: Answer) {
        let key = charge.key.as_str();
        if self.buckets.peek(key).is_some_and(|there| there.sent <= answer.sent) {
            self.buckets.remove(key);
        }
    }
}

impl Store for DenyCache {
    fn take<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken> {
        Box::pin(async move {
            let sent = self.stopwatch.elapsed();
            if let Some(denied) = self.denial(charges, sent) {
                self.hits.fetch_add(1, Ordering::Relaxed);
                return Ok(denied);
            }
            let taken = self.store.take(charges).await?;
            self.learn(charges, &taken, sent);
            Ok(taken)
        })
    }

    fn peek<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken> {
        self.store.peek(charges)
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> Pending<'a, Option<State>> {
        self.store.inspect(key)
    }

    fn reset<'a>(&'a self, key: &'a Key) -> Pending<'a, bool> {
        Box::pin(async move {
            let was_there = self.store.reset(key).await;
            // A reset that failed may have been done all the same.
            self.forget(key);
            was_there
        })
    }

    fn probe(&self) -> Pending<'_, ()> {
        self.store.probe()
    }
}
