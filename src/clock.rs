//! The doors through which time comes in: the time of day, and time that never steps.

use crate::bucket::Timestamp;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Tells the time of day.
pub trait Clock: Debug + Send + Sync {
    fn now(&self) -> Timestamp;
}

/// This machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        // A clock set before 1970 reads as 1970: buckets then simply do not refill.
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp { micros: elapsed.as_micros() as u64 }
    }
}

/// Starts with this machine's time of day and then counts on, whatever is done to that: for what never leaves the
/// process.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock {
    begun: Instant,
    began_at: Timestamp,
}

impl Default for SteadyClock {
    fn default() -> Self {
        Self { begun: Instant::now(), began_at: SystemClock.now() }
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Timestamp {
        Timestamp { micros: self.began_at.micros + self.begun.elapsed().as_micros() as u64 }
    }
}

impl Stopwatch for SteadyClock {
    fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// A clock that stands still until it is set, for tests.
#[derive(Debug, Default)]
pub struct SetClock {
    micros: AtomicU64,
}

impl SetClock {
    pub fn new(now: Timestamp) -> Self {
        Self { micros: AtomicU64::new(now.micros) }
    }

    pub fn set(&self, now: Timestamp) {
        self.micros.store(now.micros, Ordering::Relaxed);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp { micros: self.micros.load(Ordering::Relaxed) }
    }
}

/// Tells how long ago things were: time that never steps, from a moment of its own. Timeouts are tokio's affair, not
/// this one's.
pub trait Stopwatch: Debug + Send + Sync {
    /// Time since it was started; never less than before.
    fn elapsed(&self) -> Duration;
}

/// A stopwatch that stands still until it is set, for tests.
#[derive(Debug, Default)]
pub struct SetStopwatch {
    nanos: AtomicU64,
}

impl SetStopwatch {
    pub fn set(&self, elapsed: Duration) {
        self.nanos.store(elapsed.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Stopwatch for SetStopwatch {
    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}
