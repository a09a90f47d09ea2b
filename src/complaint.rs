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
    /// Calls `line` with the number of those left unsaid before, or leaves this one unsaid. Whether it was called.
    pub fn say(&self, line: impl FnOnce(u64)) -> bool {
        let said = self.is_due();
        if said {
            line(self.unsaid.swap(0, Ordering::Relaxed));
        } else {
            self.unsaid.fetch_add(1, Ordering::Relaxed);
        }
        said
    }

    /// Says what was left unsaid and still is so, if the second is over by now: the state that a storm ends in must not
    /// go unsaid. `line` gets the number of the others.
    pub fn say_late(&self, line: impl FnOnce(u64)) -> bool {
        let said = self.is_due();
        if said {
            line(self.unsaid.swap(0, Ordering::Relaxed).saturating_sub(1));
        }
        said
    }

    /// Whether it is time for a line, which the caller then says.
    fn is_due(&self) -> bool {
        let (now, order) = (self.epoch.elapsed().as_millis() as u64, Ordering::Relaxed);
        let until = self.silent_until.load(order);
        now >= until && self.silent_until.compare_exchange(until, now + 1000, order, order).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As if the second were over.
    fn later(complaint: &Complaint) {
        complaint.silent_until.store(0, Ordering::Relaxed);
    }

    #[test]
    fn the_first_is_said_at_once_and_the_next_a_second_later_with_a_count() {
        let (complaint, mut told) = (Complaint::default(), Vec::new());
        assert!(complaint.say(|more| told.push(more)));
        assert_eq!([(); 3].map(|()| complaint.say(|more| told.push(more))), [false; 3]);
        later(&complaint);
        assert!(complaint.say(|more| told.push(more)));
        assert_eq!(told, [0, 3]);
    }

    #[test]
    fn what_is_said_late_is_not_counted_among_those_left_unsaid() {
        let (complaint, mut told) = (Complaint::default(), Vec::new());
        complaint.say(|more| told.push(more));
        assert_eq!([(); 3].map(|()| complaint.say(|more| told.push(more))), [false; 3]);
        assert!(!complaint.say_late(|more| told.push(more)));
        later(&complaint);
        assert!(complaint.say_late(|more| told.push(more)));
        later(&complaint);
        assert!(complaint.say(|more| told.push(more)));
        assert_eq!(told, [0, 2, 0]);
    }
}
