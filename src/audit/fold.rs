//! Answers that repeat become one line: the first is told at once, the others are counted until the fold ends.
//!
//! Takes answers and time as values; gives events. Bounded: when there are too many folds, answers are told one by one.

use super::event::{Event, Kept, Numbers, Repeats, Told, Who};
use crate::bucket::Timestamp;
use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

/// Folds at once.
pub(super) const MOST: usize = 65_536;

/// Answers that are being counted, by who was answered.
#[derive(Debug)]
pub(super) struct Folds {
    length: Duration,
    most: usize,
    hashing: RandomState,
    /// By the hash of [`Who`], under a seed that nobody knows. Boxed, so that the table is small enough to be made as a
    /// whole at the start: one that grows hashes all its entries anew, which takes milliseconds.
    open: HashMap<u64, Box<Fold>>,
    /// When each fold ends, and its hash. All are of one length, so the first to begin is the first to end.
    ends: VecDeque<(Instant, u64)>,
}

#[derive(Debug)]
struct Fold {
    who: Kept,
    /// Of the last answer.
    numbers: Numbers,
    count: u64,
    first: Timestamp,
    last: Timestamp,
}

/// What is to be done with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// It is to be told.
    Single,
    /// It was counted.
    Counted,
}

impl Folds {
    pub(super) fn new(length: Duration, most: usize) -> Self {
        let (open, ends) = (HashMap::with_capacity(most), VecDeque::with_capacity(most));
        Self { length, most, hashing: RandomState::new(), open, ends }
    }

    /// Counts an answer, if one of that kind was told of a short time ago.
    pub(super) fn note(&mut self, who: &Who<'_>, numbers: Numbers, at: Timestamp, now: Instant) -> Noted {
        let hash = self.hashing.hash_one(who);
        let full = self.open.len() >= self.most;
        match self.open.entry(hash) {
            // Of two whose hashes are the same, one is told one by one.
            Entry::Occupied(fold) if fold.get().who.who() != *who => Noted::Single,
            Entry::Occupied(mut fold) => {
                fold.get_mut().count(numbers, at);
                Noted::Counted
            }
            Entry::Vacant(_) if full => Noted::Single,
            Entry::Vacant(place) => {
                place.insert(Box::new(Fold { who: Kept::from(who), numbers, count: 0, first: at, last: at }));
                self.ends.push_back((now + self.length, hash));
                Noted::Single
            }
        }
    }

    /// Ends up to `most` of the folds that are to end by now, and gives what was counted in them; whether there may be
    /// more of them.
    pub(super) fn end(&mut self, by: Ended, most: usize, at: Timestamp, told: &mut Vec<Event>) -> bool {
        for _ in 0..most {
            let due = |(ends, _): &&(Instant, u64)| match by {
                Ended::Due(now) => *ends <= now,
                Ended::All => true,
            };
            let Some((_, hash)) = self.ends.front().filter(due).copied() else { return false };
            self.ends.pop_front();
            told.extend(self.open.remove(&hash).and_then(|fold| fold.told(at)));
        }
        true
    }
}

/// Which folds end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ended {
    Due(Instant),
    All,
}

impl Fold {
    fn count(&mut self, numbers: Numbers, at: Timestamp) {
        if self.count == 0 {
            self.first = at;
        }
        self.count += 1;
        self.numbers = numbers;
        self.last = at;
    }

    /// One event for all that were counted; none where none was.
    fn told(self, at: Timestamp) -> Option<Event> {
        let Self { who, numbers, count, first, last } = self;
        let repeats = Some(Repeats { count, first, last });
        (count > 0).then_some(Event { at, told: Told::Answer { who, numbers, excerpt: None, repeats } })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a test fails by panicking")]
    use super::*;
    use crate::bucket::Dimension;
    use crate::metrics::AuditEvent;

    const LENGTH: Duration = Duration::from_secs(10);

    fn who(identity: &str) -> Who<'_> {
        Who {
            event: AuditEvent::Denied,
            reason: None,
            tier: "free",
            dimension: Some(Dimension::User),
            identity: Some(identity),
            rule: None,
            outage: None,
        }
    }

    fn at(micros: u64) -> Timestamp {
        Timestamp { micros }
    }

    fn ended(folds: &mut Folds, by: Ended) -> Vec<(String, Repeats)> {
        let mut told = Vec::new();
        while folds.end(by, 1, at(99), &mut told) {}
        let repeats = |event: Event| match event.told {
            Told::Answer { who, repeats: Some(repeats), .. } => {
                (who.who().identity.unwrap_or_default().into(), repeats)
            }
            other => panic!("{other:?}"),
        };
        told.into_iter().map(repeats).collect()
    }

    #[test]
    fn the_first_is_told_and_the_others_are_counted_until_the_fold_ends() {
        let (mut folds, now) = (Folds::new(LENGTH, 10), Instant::now());
        let noted = [1, 2, 3].map(|time| folds.note(&who("alice"), Numbers::default(), at(time), now));
        assert_eq!(noted, [Noted::Single, Noted::Counted, Noted::Counted]);
        assert_eq!(folds.note(&who("bob"), Numbers::default(), at(4), now + LENGTH / 2), Noted::Single);
        assert!(ended(&mut folds, Ended::Due(now + LENGTH - Duration::from_nanos(1))).is_empty());
        let alice = ("alice".to_owned(), Repeats { count: 2, first: at(2), last: at(3) });
        assert_eq!(ended(&mut folds, Ended::Due(now + LENGTH)), [alice]);
        assert_eq!(folds.note(&who("alice"), Numbers::default(), at(5), now + LENGTH), Noted::Single, "a new fold");
        assert!(ended(&mut folds, Ended::All).is_empty(), "nobody repeated");
        assert!(folds.open.is_empty() && folds.ends.is_empty());
    }

    #[test]
    fn the_numbers_of_a_fold_are_those_of_the_last_answer() {
        let (mut folds, now) = (Folds::new(LENGTH, 10), Instant::now());
        for retry_after in [6, 5, 4] {
            let numbers = Numbers { retry_after: Some(retry_after), ..Numbers::default() };
            folds.note(&who("alice"), numbers, at(1), now);
        }
        let mut told = Vec::new();
        folds.end(Ended::All, 9, at(2), &mut told);
        let Some(Event { told: Told::Answer { numbers, .. }, .. }) = told.pop() else { panic!("nothing was told") };
        assert_eq!(numbers.retry_after, Some(4));
    }

    #[test]
    fn beyond_the_bound_answers_are_told_one_by_one() {
        let (mut folds, now) = (Folds::new(LENGTH, 2), Instant::now());
        let mut note = |identity| folds.note(&who(identity), Numbers::default(), at(1), now);
        assert_eq!(["a", "b", "c", "c"].map(&mut note), [Noted::Single; 4]);
        assert_eq!(["a", "b"].map(note), [Noted::Counted; 2]);
    }

    #[test]
    fn who_differs_in_anything_is_not_counted_together() {
        let (mut folds, now) = (Folds::new(LENGTH, 10), Instant::now());
        let alice = who("alice");
        let others = [
            alice,
            Who { tier: "gold", ..alice },
            Who { dimension: Some(Dimension::Key), ..alice },
            Who { event: AuditEvent::ShadowDenied, ..alice },
            Who { rule: Some("chat"), ..alice },
            Who { outage: Some(("deny", "timeout")), ..alice },
        ];
        for other in others {
            assert_eq!(folds.note(&other, Numbers::default(), at(1), now), Noted::Single, "{other:?}");
        }
    }
}
