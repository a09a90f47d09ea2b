//! Counts failures in a row and says when to stop asking. Knows no time, no server and no task.
//!
//! Closed, calls go through. Open, they do not, so that a dead or frozen server costs a check nothing; somebody else
//! probes the server and closes the breaker again. No check is ever the probe: none pays for finding out.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

#[derive(Debug)]
pub(super) struct Breaker {
    /// Failures in a row that open it, at least 1.
    limit: u32,
    failures: AtomicU32,
    open: AtomicBool,
}

impl Breaker {
    pub(super) fn new(limit: u32) -> Self {
        Self { limit: limit.max(1), failures: AtomicU32::new(0), open: AtomicBool::new(false) }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Notes a failure. True when it is the one that opened the breaker.
    pub(super) fn failed(&self) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        failures >= self.limit && !self.open.swap(true, Ordering::Relaxed)
    }

    /// Notes that the server answered. It does not close an open breaker: the answer may be one that was long under way.
    pub(super) fn answered(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 && !self.is_open() {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn close(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.open.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_says_so_once() {
        let breaker = Breaker::new(3);
        assert_eq!([breaker.failed(), breaker.failed()], [false, false]);
        breaker.answered();
        assert_eq!(
            [breaker.failed(), breaker.failed(), breaker.failed(), breaker.failed()],
            [false, false, true, false]
        );
        assert!(breaker.is_open());
    }

    #[test]
    fn a_late_answer_does_not_close_it_and_a_probe_does() {
        let breaker = Breaker::new(1);
        assert!(breaker.failed());
        breaker.answered();
        assert!(breaker.is_open());
        breaker.close();
        assert!(!breaker.is_open());
        assert!(breaker.failed(), "it can open again");
    }
}
