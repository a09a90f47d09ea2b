//! The one door through which time of day comes in.

use crate::bucket::Timestamp;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Tells the time of day. Elapsed time for timeouts is tokio's affair, not this one's.
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
