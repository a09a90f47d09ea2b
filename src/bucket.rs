//! Token arithmetic, and the few words that everything else shares.
//!
//! Takes state, quota and time as values and gives back values. Knows nothing of who is asking, of Redis, or of a
//! clock. `lua/take.lua` and `lua/peek.lua` do the same operations in the same order on the same IEEE doubles, so that
//! script and code agree bit for bit.

use smallvec::SmallVec;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;
use thiserror::Error;

/// What a bucket is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dimension {
    User,
    Key,
    Ip,
}

impl Dimension {
    pub const ALL: [Self; 3] = [Self::User, Self::Key, Self::Ip];

    /// The name used in Redis keys, answers, metadata and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Key => "key",
            Self::Ip => "ip",
        }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The full name of one bucket, prefix included, such as `rl:user:alice`. It never holds a raw API key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub dimension: Dimension,
    text: String,
    /// Where the identity begins in the text.
    id_at: usize,
}

impl Key {
    /// Puts `prefix`, the dimension's name and `id` together. The caller vouches for `id`: see `policy::identity`.
    pub fn new(prefix: &str, dimension: Dimension, id: &str) -> Self {
        Self::build(&[prefix, dimension.name(), ":"], dimension, id)
    }

    /// The bucket of the same identity that is kept apart for a tier, such as `rl:user.enterprise:alice`.
    pub fn of_tier(prefix: &str, dimension: Dimension, tier: &str, id: &str) -> Self {
        Self::build(&[prefix, dimension.name(), ".", tier, ":"], dimension, id)
    }

    fn build(head: &[&str], dimension: Dimension, id: &str) -> Self {
        let id_at = head.iter().map(|part| part.len()).sum();
        let mut text = String::with_capacity(id_at + id.len());
        head.iter().for_each(|part| text.push_str(part));
        text.push_str(id);
        Self { dimension, text, id_at }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The stored form of the identity: what follows the prefix and the dimension.
    pub fn id(&self) -> &str {
        &self.text[self.id_at..]
    }
}

/// How much a bucket holds and how fast it fills.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    max_tokens: f64,
    refill_rate: f64,
    ttl: u64,
}

/// Why a pair of numbers is no quota.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum QuotaError {
    #[error("max_tokens must be a finite number above 0")]
    MaxTokens,
    #[error("max_tokens must be at most 2^53: a double counts no single tokens beyond")]
    TooManyTokens,
    #[error("refill_rate must be a finite number above 0")]
    RefillRate,
    #[error("a bucket that takes longer than {} days to fill cannot be kept", Quota::MAX_FILL_SECONDS / 86_400)]
    FillsTooSlowly,
}

impl Quota {
    /// The longest time, in seconds, that an empty bucket may take to fill: ten years. It keeps the time to live far
    /// below what Redis accepts in EXPIRE.
    pub const MAX_FILL_SECONDS: u64 = 10 * 365 * 86_400;

    /// 2^53: taking 1 from more would not change it.
    pub const MAX_TOKENS: f64 = 9_007_199_254_740_992.0;

    /// `max_tokens` in tokens, `refill_rate` in tokens per second.
    ///
    /// # Errors
    /// When either is not finite and above 0, or when the bucket would take more than
    /// [`Self::MAX_FILL_SECONDS`] to fill.
    pub fn parse(max_tokens: f64, refill_rate: f64) -> Result<Self, QuotaError> {
        if !(max_tokens.is_finite() && max_tokens > 0.0) {
            return Err(QuotaError::MaxTokens);
        }
        if max_tokens > Self::MAX_TOKENS {
            return Err(QuotaError::TooManyTokens);
        }
        if !(refill_rate.is_finite() && refill_rate > 0.0) {
            return Err(QuotaError::RefillRate);
        }
        let fill = max_tokens / refill_rate;
        if fill > Self::MAX_FILL_SECONDS as f64 {
            return Err(QuotaError::FillsTooSlowly);
        }
        let ttl = ((2.0 * fill).ceil() as u64).max(1);
        Ok(Self { max_tokens, refill_rate, ttl })
    }

    /// Tokens in a full bucket.
    pub fn max_tokens(&self) -> f64 {
        self.max_tokens
    }

    /// Tokens per second.
    pub fn refill_rate(&self) -> f64 {
        self.refill_rate
    }

    /// Seconds after which an untouched bucket may be forgotten: twice the time to fill it, at least 1. A bucket that
    /// old is full, and so is a new one, so expiry never changes an answer.
    pub fn ttl(&self) -> u64 {
        self.ttl
    }

    /// The same for a bucket that may be used under `other` as well, which takes longer to fill: whoever uses it under
    /// this may not have it forgotten, and so filled, before that time.
    #[must_use]
    pub fn kept_as_long_as(self, other: &Self) -> Self {
        Self { ttl: self.ttl.max(other.ttl), ..self }
    }

    /// One of so many equal parts of this quota: as many buckets of that size, together, hold as much and fill as fast.
    pub fn share(&self, parts: NonZeroU32) -> Self {
        let part = |amount: f64| (amount / f64::from(parts.get())).max(f64::MIN_POSITIVE);
        // It takes as long to fill, so it may be forgotten after the same time.
        Self { max_tokens: part(self.max_tokens), refill_rate: part(self.refill_rate), ttl: self.ttl }
    }

    /// Tokens that flow in during `micros` microseconds. Multiplied before it is divided, so that whole seconds at a
    /// round rate give a round number.
    fn inflow(&self, micros: f64) -> f64 {
        micros * self.refill_rate / 1e6
    }

    /// Seconds that an empty bucket takes to fill, rounded up.
    pub fn fill_seconds(&self) -> u64 {
        Level { tokens: 0.0, elapsed: 0.0 }.wait(self, self.max_tokens)
    }
}

/// One bucket and what to take from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Charge {
    pub key: Key,
    pub quota: Quota,
    /// Tokens, finite and not negative.
    pub cost: f64,
}

impl Charge {
    /// What may be given back of this when it was taken at most so long ago: what cannot have flowed in since. `None`:
    /// nothing.
    ///
    /// Had the take never happened, the bucket might have been full all that time, and what flowed in have been lost. In
    /// the bucket it was not lost, so to give back all would be to give that twice.
    #[must_use]
    pub fn refundable(&self, since: Duration) -> Option<Self> {
        let cost = self.cost - self.quota.inflow(since.as_micros() as f64 + 1.0);
        (cost > 0.0).then(|| Self { cost, ..self.clone() })
    }
}

/// The charges of one request; three dimensions fit without an allocation.
pub type Charges = SmallVec<[Charge; 3]>;

/// A point in time, in microseconds since the Unix epoch: the resolution of Redis's TIME.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    pub micros: u64,
}

impl Timestamp {
    /// Microseconds from `earlier` to this, negative when `earlier` is later. Exact below 2^53 microseconds, that is
    /// until the year 2255.
    fn micros_since(self, earlier: Self) -> f64 {
        self.micros as f64 - earlier.micros as f64
    }
}

/// What is stored of a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    pub tokens: f64,
    pub last_refill: Timestamp,
}

impl State {
    /// The state at `now` of a bucket last stored as `stored`, before anything is taken.
    ///
    /// A bucket that was never stored, or whose tokens are not a finite number, is full. A clock that stands before
    /// `last_refill` adds nothing, takes nothing away, and leaves `last_refill` where it is.
    pub fn refilled(stored: Option<Self>, quota: &Quota, now: Timestamp) -> Self {
        let level = Level::found(stored, quota, now);
        let last_refill = stored.map_or(now, |stored| stored.last_refill);
        Self { tokens: level.tokens(quota), last_refill: if level.elapsed < 0.0 { last_refill } else { now } }
    }
}

/// What a bucket held when it was last written, and how long ago that was: enough to tell exactly what it holds now and
/// when it will hold more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Tokens at the last write.
    pub tokens: f64,
    /// Microseconds since then; negative when the clock stands before it.
    pub elapsed: f64,
}

impl Level {
    fn found(stored: Option<State>, quota: &Quota, now: Timestamp) -> Self {
        match stored.filter(|state| state.tokens.is_finite()) {
            Some(state) => Self { tokens: state.tokens, elapsed: now.micros_since(state.last_refill) },
            None => Self { tokens: quota.max_tokens, elapsed: 0.0 },
        }
    }

    /// Tokens that are there now.
    pub fn tokens(&self, quota: &Quota) -> f64 {
        self.tokens_after(0, quota)
    }

    fn tokens_after(&self, seconds: u64, quota: &Quota) -> f64 {
        let elapsed = self.elapsed + seconds as f64 * 1e6;
        let inflow = if elapsed > 0.0 { quota.inflow(elapsed) } else { 0.0 };
        quota.max_tokens.min(self.tokens + inflow)
    }

    /// The fewest whole seconds after which the bucket holds `wanted` tokens, or is full, if nobody takes from it. Found
    /// with the arithmetic that decides then, so whoever waits that long is let in, and who waits less is not.
    pub fn wait(&self, quota: &Quota, wanted: f64) -> u64 {
        /// Beyond any quota's time to fill, and far below what a double counts exactly.
        const LONGEST: f64 = 1e10;
        let wanted = wanted.min(quota.max_tokens);
        let estimate = ((wanted - self.tokens) / quota.refill_rate - self.elapsed / 1e6).ceil();
        let mut seconds = estimate.clamp(0.0, LONGEST) as u64;
        // Rounding moves the estimate by one at most.
        if seconds > 0 && self.tokens_after(seconds - 1, quota) >= wanted {
            seconds -= 1;
        } else if self.tokens_after(seconds, quota) < wanted {
            seconds += 1;
        }
        seconds
    }
}

/// The level of each bucket of a request, in the order of its charges.
pub type Levels = SmallVec<[Level; 3]>;

/// Who says what came of an attempt to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// Where the buckets are.
    #[default]
    Store,
    /// What was remembered of an earlier denial. Of the buckets that were not exhausted nothing is known: they are told
    /// as full.
    DenyCache,
}

/// What came of an attempt to take.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// Whether every bucket covered its cost. If not, nothing was taken from any.
    pub admitted: bool,
    /// As they are now: without the cost when admitted, as found when not.
    pub levels: Levels,
    pub source: Source,
}

impl Taken {
    /// The tokens that are now in each bucket, for the charges that were taken.
    pub fn tokens(&self, charges: &[Charge]) -> impl Iterator<Item = f64> {
        self.levels.iter().zip(charges).map(|(level, charge)| level.tokens(&charge.quota))
    }
}

/// Takes every charge from the bucket at the same place in `states`, or nothing from any.
///
/// `states` holds what is stored and, if the request is admitted, what is to be stored.
///
/// This is the definition of a take. The memory store runs it; `lua/take.lua` repeats it.
pub fn take(charges: &[Charge], states: &mut [Option<State>], now: Timestamp) -> Taken {
    let found = peek(charges, states, now);
    if !found.admitted {
        return found;
    }
    let mut levels = Levels::new();
    for (charge, slot) in charges.iter().zip(states.iter_mut()) {
        let mut state = State::refilled(*slot, &charge.quota, now);
        state.tokens -= charge.cost;
        levels.push(Level::found(Some(state), &charge.quota, now));
        *slot = Some(state);
    }
    Taken { admitted: true, levels, source: Source::Store }
}

/// Tells what [`take`] would find, with the levels before any cost. `lua/peek.lua` repeats it.
pub fn peek(charges: &[Charge], states: &[Option<State>], now: Timestamp) -> Taken {
    debug_assert_eq!(charges.len(), states.len());
    let levels: Levels = charges.iter().zip(states).map(|(c, state)| Level::found(*state, &c.quota, now)).collect();
    let covered = |(charge, level): (&Charge, &Level)| level.tokens(&charge.quota) >= charge.cost;
    Taken { admitted: charges.iter().zip(&levels).all(covered), levels, source: Source::Store }
}

/// Gives back what was taken for a request that another bucket denied, as `lua/refund.lua` repeats it: never above a full
/// bucket, and nothing where nothing is stored, since that is full.
///
/// Of a charge that is [`Charge::refundable`], nothing is ever admitted by it that would not have been admitted had the
/// take never happened: between the two the bucket holds less than it would have, and after it not more.
pub fn refund(charge: &Charge, stored: Option<State>, now: Timestamp) -> Option<State> {
    let found = stored.filter(|state| state.tokens.is_finite())?;
    let mut state = State::refilled(Some(found), &charge.quota, now);
    state.tokens = charge.quota.max_tokens.min(state.tokens + charge.cost);
    Some(state)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn at(seconds: f64) -> Timestamp {
        Timestamp { micros: (seconds * 1e6) as u64 }
    }

    fn charge(quota: Quota, cost: f64) -> Charge {
        Charge { key: Key::new("rl:", Dimension::User, "alice"), quota, cost }
    }

    #[test]
    fn ten_tokens_at_25_per_second_live_at_least_a_second() {
        assert_eq!(Quota::parse(10.0, 25.0).unwrap().ttl(), 1);
        assert_eq!(Quota::parse(1.0, 1e9).unwrap().ttl(), 1);
        assert_eq!(Quota::parse(10.0, 0.17).unwrap().ttl(), 118);
    }

    #[test]
    fn only_finite_positive_numbers_make_a_quota() {
        for bad in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Quota::parse(bad, 1.0), Err(QuotaError::MaxTokens));
            assert_eq!(Quota::parse(1.0, bad), Err(QuotaError::RefillRate));
        }
        assert_eq!(Quota::parse(1e9, 1e-9), Err(QuotaError::FillsTooSlowly));
        assert_eq!(Quota::parse(1e16, 1e9), Err(QuotaError::TooManyTokens));
    }

    #[test]
    fn the_shares_of_a_quota_are_valid_and_together_no_more_than_it() {
        for (max_tokens, refill_rate) in [(10.0, 0.17), (1.0, 25.0), (1e15, 1e9), (f64::MIN_POSITIVE, 1.0)] {
            let whole = Quota::parse(max_tokens, refill_rate).unwrap();
            for parts in [1, 2, 3, 7, 10_000].map(|parts| NonZeroU32::new(parts).unwrap()) {
                let share = whole.share(parts);
                assert!(Quota::parse(share.max_tokens, share.refill_rate).is_ok(), "{share:?}");
                assert_eq!(share.ttl, whole.ttl);
                let together = share.max_tokens * f64::from(parts.get());
                assert!(together <= max_tokens * (1.0 + f64::EPSILON) || share.max_tokens == f64::MIN_POSITIVE);
            }
        }
    }

    #[test]
    fn a_denied_bucket_costs_the_others_nothing() {
        let quota = Quota::parse(10.0, 1.0).unwrap();
        let charges = [charge(quota, 1.0), charge(quota, 1.0)];
        let empty = State { tokens: 0.0, last_refill: at(100.0) };
        let mut states = [None, Some(empty)];
        let taken = take(&charges, &mut states, at(100.0));
        assert!(!taken.admitted);
        let tokens: Vec<f64> = taken.levels.iter().map(|level| level.tokens(&quota)).collect();
        assert_eq!(tokens, [10.0, 0.0]);
        assert_eq!(states, [None, Some(empty)]);
    }

    #[test]
    fn half_a_token_per_second_polled_every_100_ms_admits_one_every_two_seconds() {
        let quota = Quota::parse(1.0, 0.5).unwrap();
        let mut states = [None];
        let admitted: Vec<u64> = (0..=100)
            .filter(|tick| {
                let now = Timestamp { micros: 1_700_000_000_000_000 + tick * 100_000 };
                take(&[charge(quota, 1.0)], &mut states, now).admitted
            })
            .collect();
        assert_eq!(admitted, [0, 20, 40, 60, 80, 100]);
    }

    #[test]
    fn an_empty_bucket_hammered_at_ten_times_its_rate_still_admits_its_rate() {
        let quota = Quota::parse(5.0, 10.0).unwrap();
        let mut states = [Some(State { tokens: 0.0, last_refill: at(1_700_000_000.0) })];
        let admitted = (1..=1000u64)
            .filter(|tick| {
                let now = Timestamp { micros: 1_700_000_000_000_000 + tick * 10_000 };
                take(&[charge(quota, 1.0)], &mut states, now).admitted
            })
            .count();
        assert!((99..=100).contains(&admitted), "{admitted} admitted in 10 s at 10 per second");
    }

    #[test]
    fn a_refund_gives_back_no_more_than_a_full_bucket_holds_and_makes_none() {
        let ten = charge(Quota::parse(10.0, 1.0).unwrap(), 4.0);
        let at_level = |tokens| Some(State { tokens, last_refill: at(100.0) });
        assert_eq!(refund(&ten, at_level(2.0), at(100.0)), at_level(6.0));
        assert_eq!(refund(&ten, at_level(8.0), at(100.0)), at_level(10.0));
        assert_eq!(refund(&ten, at_level(2.0), at(101.0)), Some(State { tokens: 7.0, last_refill: at(101.0) }));
        assert_eq!(refund(&ten, at_level(2.0), at(50.0)), at_level(6.0), "a clock that steps back");
        assert_eq!(refund(&ten, None, at(100.0)), None);
        assert_eq!(refund(&ten, at_level(f64::NAN), at(100.0)), None);
    }

    #[test]
    fn what_flowed_in_since_is_not_given_back_as_well() {
        let one = charge(Quota::parse(10.0, 25.0).unwrap(), 1.0);
        let left = |millis| one.refundable(Duration::from_millis(millis)).map(|charge| (charge.cost * 1000.0).round());
        assert_eq!([0, 10, 39, 40, 1000].map(left), [Some(1000.0), Some(750.0), Some(25.0), None, None]);
    }

    /// What happens, and how many microseconds after what happened before.
    type Happening = (u64, f64, Option<u64>);

    /// Takes at their times, each with its cost; some are given back so many microseconds later. Gives the others.
    fn kept(quota: Quota, happenings: &[Happening]) -> Vec<(u64, f64)> {
        let (mut now, mut stored, mut kept) = (1_700_000_000_000_000, None, Vec::new());
        let mut refunds: Vec<(u64, u64, Charge)> = Vec::new();
        for (gap, cost, refunded_after) in happenings {
            now += gap;
            refunds.sort_by_key(|(at, ..)| *at);
            while refunds.first().is_some_and(|(at, ..)| *at <= now) {
                let (at, taken, charge) = refunds.remove(0);
                if let Some(charge) = charge.refundable(Duration::from_micros(at - taken)) {
                    stored = refund(&charge, stored, Timestamp { micros: at }).or(stored);
                }
            }
            let (one, mut states) = (charge(quota, *cost), [stored]);
            if take(std::slice::from_ref(&one), &mut states, Timestamp { micros: now }).admitted {
                stored = states[0];
                match refunded_after {
                    Some(later) => refunds.push((now + later, now, one)),
                    None => kept.push((now, *cost)),
                }
            }
        }
        kept
    }

    proptest::proptest! {
        #[test]
        fn refunds_however_late_admit_no_more_than_the_bucket_may(
            rate in 1.0..100.0_f64,
            happenings in proptest::collection::vec(
                (0..60_000_u64, 0.5..3.0_f64, proptest::option::of(0..1_000_000_u64)),
                1..80,
            ),
        ) {
            let kept = kept(Quota::parse(10.0, rate).unwrap(), &happenings);
            for from in 0..kept.len() {
                let mut sum = 0.0;
                for (at, cost) in &kept[from..] {
                    sum += cost;
                    let most = 10.0 + rate * (at - kept[from].0) as f64 / 1e6;
                    proptest::prop_assert!(sum <= most + 1e-6, "{sum} of {most}: {kept:?}");
                }
            }
        }
    }

    #[test]
    fn a_last_refill_in_the_future_neither_refills_nor_fails_and_recovers() {
        let quota = Quota::parse(3.0, 1.0).unwrap();
        let mut states = [Some(State { tokens: 2.0, last_refill: at(160.0) })];
        assert_eq!(take(&[charge(quota, 1.0)], &mut states, at(100.0)).levels[0].tokens(&quota), 1.0);
        assert_eq!(states[0], Some(State { tokens: 1.0, last_refill: at(160.0) }));
        assert!(take(&[charge(quota, 1.0)], &mut states, at(130.0)).admitted);
        assert!(!take(&[charge(quota, 1.0)], &mut states, at(160.0)).admitted);
        assert!(take(&[charge(quota, 1.0)], &mut states, at(161.0)).admitted);
    }

    #[test]
    fn stored_tokens_that_are_not_finite_read_as_a_full_bucket() {
        let quota = Quota::parse(3.0, 1.0).unwrap();
        for tokens in [f64::NAN, f64::NEG_INFINITY, f64::INFINITY] {
            let state = State::refilled(Some(State { tokens, last_refill: at(1.0) }), &quota, at(5.0));
            assert_eq!(state, State { tokens: 3.0, last_refill: at(5.0) });
        }
    }

    fn wait(quota: &Quota, tokens: f64, elapsed: f64, wanted: f64) -> u64 {
        Level { tokens, elapsed }.wait(quota, wanted)
    }

    #[test]
    fn a_deficit_of_300_ms_waits_one_second_and_no_more() {
        let quota = Quota::parse(10.0, 1.0).unwrap();
        assert_eq!(wait(&quota, 0.7, 0.0, 1.0), 1);
        assert_eq!(wait(&quota, 1.0, 0.0, 1.0), 0);
        assert_eq!(wait(&Quota::parse(1.0, 0.5).unwrap(), 0.0, 0.0, 1.0), 2);
        assert_eq!(wait(&Quota::parse(1.0, 0.1).unwrap(), 0.7, 0.0, 1.0), 3, "not 4, as (1 - 0.7) / 0.1 is above 3");
    }

    #[test]
    fn a_last_refill_in_the_future_is_waited_for_as_well() {
        let quota = Quota::parse(10.0, 1.0).unwrap();
        assert_eq!(wait(&quota, 0.0, -5e6, 1.0), 6);
    }

    #[test]
    fn absurd_stored_numbers_give_a_long_wait_and_no_overflow() {
        let quota = Quota::parse(10.0, 1.0).unwrap();
        for (tokens, elapsed) in [(-1e30, 0.0), (-1e308, 0.0), (0.0, -1e300), (f64::MIN, f64::MIN)] {
            assert!(wait(&quota, tokens, elapsed, 1.0) >= 10_000_000_000);
        }
    }

    #[test]
    fn waiting_exactly_the_stated_seconds_is_enough_and_one_less_is_not() {
        for rate in [0.1, 0.17, 0.3, 0.7, 1.0 / 3.0, 1.0 / 98.0, 1.0, 3.0, 7.7, 25.0] {
            let quota = Quota::parse(10.0, rate).unwrap();
            for hundredth in 0..1000 {
                let stored = State { tokens: f64::from(hundredth) / 100.0, last_refill: at(1_700_000_000.0) };
                for (cost, denied_after) in [(1.0, 0), (1.0, 71), (2.5, 3), (10.0, 7)] {
                    let later = |seconds: u64| {
                        let now =
                            Timestamp { micros: stored.last_refill.micros + (denied_after + seconds) * 1_000_000 };
                        take(&[charge(quota, cost)], &mut [Some(stored)], now)
                    };
                    let found = later(0);
                    if !found.admitted {
                        let seconds = found.levels[0].wait(&quota, cost);
                        assert!(later(seconds).admitted, "{rate} {stored:?} {cost}");
                        assert!(!later(seconds - 1).admitted, "{rate} {stored:?} {cost}");
                    }
                }
            }
        }
    }
}
