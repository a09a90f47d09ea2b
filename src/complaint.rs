//! Log lines for what may happen with every request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Says the first of a storm at once, then one a second with the number of those left unsaid.
#[derive(Debug)]
pub struct Complaint {
    epoch: Instant,
    /// Milliseconds after `epoch` before which nothing is said.
    silent_until: AtomicU64,
    unsaid: AtomicU64,
}

impl Default for Complaint {
    fn default() -> Self {
        Self { epoch: Instant::now(), silent_until: AtomicU64::new(0), unsaid: AtomicU64::new(0) }
    }
}

impl Complaint {
    /// Calls `line` with the number of those left unsaid before, or leaves this one unsaid.
    pub fn say(&self, line: impl FnOnce(u64)) {
        let now = self.epoch.elapsed().as_millis() as u64;
        let until = self.silent_until.load(Ordering::Relaxed);
        let order = Ordering::Relaxed;
        if now < until || self.silent_until.compare_exchange(until, now + 1000, order, order).is_err() {
            self.unsaid.fetch_add(1, order);
            return;
        }
        line(self.unsaid.swap(0, order));
    }
}
