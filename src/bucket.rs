//! Token arithmetic, and the few words that everything else shares.
//!
//! Takes state, quota and time as values and gives back values. Knows nothing of who is asking, of Redis, or of a
//! clock. `lua/take.lua` and `lua/peek.lua` do the same operations in the same order on the same IEEE doubles, so that
//! script and code agree bit for bit.

use smallvec::SmallVec;
use std::fmt;
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
}

impl Key {
    /// Puts `prefix`, the dimension's name and `id` together. The caller vouches for `id`: see `policy::identity`.
    pub fn new(prefix: &str, dimension: Dimension, id: &str) -> Self {
        let name = dimension.name();
        let mut text = String::with_capacity(prefix.len() + name.len() + 1 + id.len());
        text.push_str(prefix);
        text.push_str(name);
        text.push(':');
        text.push_str(id);
        Self { dimension, text }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The part after the prefix and the dimension: the stored form of the identity.
    pub fn id(&self, prefix: &str) -> &str {
        self.text.get(prefix.len() + self.dimension.name().len() + 1..).unwrap_or_default()
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
    #[error("refill_rate must be a finite number above 0")]
    RefillRate,
    #[error("a bucket that takes longer than {} days to fill cannot be kept", Quota::MAX_FILL_SECONDS / 86_400)]
    FillsTooSlowly,
}

impl Quota {
    /// The longest time, in seconds, that an empty bucket may take to fill: ten years. It keeps the time to live far
    /// below what Redis accepts in EXPIRE.
    pub const MAX_FILL_SECONDS: u64 = 10 * 365 * 86_400;

    /// `max_tokens` in tokens, `refill_rate` in tokens per second.
    ///
    /// # Errors
    /// When either is not finite and above 0, or when the bucket would take more than
    /// [`Self::MAX_FILL_SECONDS`] to fill.
    pub fn parse(max_tokens: f64, refill_rate: f64) -> Result<Self, QuotaError> {
        if !(max_tokens.is_finite() && max_tokens > 0.0) {
            return Err(QuotaError::MaxTokens);
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

    /// Tokens that flow in during `micros` microseconds. Multiplied before it is divided, so that whole seconds at a
    /// round rate give a round number.
    fn inflow(&self, micros: f64) -> f64 {
        micros * self.refill_rate / 1e6
    }

    /// Whole seconds until a bucket that holds `tokens` holds `wanted`: 0 when it does already, and never so few that
    /// whoever waits exactly that long is turned away again.
    pub fn wait(&self, tokens: f64, wanted: f64) -> u64 {
        if tokens >= wanted {
            return 0;
        }
        let seconds = ((wanted - tokens) / self.refill_rate).ceil().max(1.0);
        let short = tokens + self.inflow(seconds * 1e6) < wanted;
        seconds as u64 + u64::from(short)
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
        let Some(stored) = stored.filter(|state| state.tokens.is_finite()) else {
            return Self { tokens: quota.max_tokens, last_refill: now };
        };
        let elapsed = now.micros_since(stored.last_refill);
        if elapsed > 0.0 {
            let tokens = quota.max_tokens.min(stored.tokens + quota.inflow(elapsed));
            Self { tokens, last_refill: now }
        } else {
            Self { tokens: quota.max_tokens.min(stored.tokens), ..stored }
        }
    }

    /// Whether `cost` tokens are there.
    pub fn covers(&self, cost: f64) -> bool {
        self.tokens >= cost
    }
}

/// Tokens in each bucket of a request, in the order of its charges.
pub type Levels = SmallVec<[f64; 3]>;

/// What came of an attempt to take.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// Whether every bucket covered its cost. If not, nothing was taken from any.
    pub admitted: bool,
    /// Tokens left: after the cost when admitted, as found when not.
    pub levels: Levels,
}

/// Takes every charge from the bucket at the same place in `states`, or nothing from any.
///
/// `states` holds what is stored and, if the request is admitted, what is to be stored.
///
/// This is the definition of a take. The memory store runs it; `lua/take.lua` repeats it.
pub fn take(charges: &[Charge], states: &mut [Option<State>], now: Timestamp) -> Taken {
    debug_assert_eq!(charges.len(), states.len());
    let refilled = || charges.iter().zip(states.iter()).map(|(c, s)| State::refilled(*s, &c.quota, now));
    let admitted = refilled().zip(charges).all(|(state, charge)| state.covers(charge.cost));
    if !admitted {
        let levels = refilled().map(|state| state.tokens).collect();
        return Taken { admitted, levels };
    }
    let mut levels = Levels::new();
    for (charge, slot) in charges.iter().zip(states.iter_mut()) {
        let mut state = State::refilled(*slot, &charge.quota, now);
        state.tokens -= charge.cost;
        levels.push(state.tokens);
        *slot = Some(state);
    }
    Taken { admitted, levels }
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
    }

    #[test]
    fn a_denied_bucket_costs_the_others_nothing() {
        let quota = Quota::parse(10.0, 1.0).unwrap();
        let charges = [charge(quota, 1.0), charge(quota, 1.0)];
        let empty = State { tokens: 0.0, last_refill: at(100.0) };
        let mut states = [None, Some(empty)];
        let taken = take(&charges, &mut states, at(100.0));
        assert!(!taken.admitted);
        assert_eq!(taken.levels.as_slice(), [10.0, 0.0]);
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
    fn a_last_refill_in_the_future_neither_refills_nor_fails_and_recovers() {
        let quota = Quota::parse(3.0, 1.0).unwrap();
        let mut states = [Some(State { tokens: 2.0, last_refill: at(160.0) })];
        assert_eq!(take(&[charge(quota, 1.0)], &mut states, at(100.0)).levels[0], 1.0);
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

    #[test]
    fn a_deficit_of_300_ms_waits_one_second_and_no_more() {
        let quota = Quota::parse(10.0, 1.0).unwrap();
        assert_eq!(quota.wait(0.7, 1.0), 1);
        assert_eq!(quota.wait(1.0, 1.0), 0);
        assert_eq!(Quota::parse(1.0, 0.5).unwrap().wait(0.0, 1.0), 2);
    }

    #[test]
    fn waiting_exactly_the_stated_seconds_is_always_enough() {
        for rate in [0.1, 0.17, 0.3, 0.7, 1.0 / 3.0, 1.0, 3.0, 7.7, 25.0] {
            let quota = Quota::parse(10.0, rate).unwrap();
            for hundredth in 0..1000 {
                let tokens = f64::from(hundredth) / 100.0;
                for cost in [1.0, 2.5, 10.0] {
                    let state = State { tokens, last_refill: at(1_700_000_000.0) };
                    let later = Timestamp { micros: state.last_refill.micros + quota.wait(tokens, cost) * 1_000_000 };
                    assert!(State::refilled(Some(state), &quota, later).covers(cost), "{rate} {tokens} {cost}");
                }
            }
        }
    }
}
