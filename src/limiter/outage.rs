//! Outages: many failures and successes of the store -> that it went away, and that it is back.
//!
//! Takes what happened and when; gives what is news. Knows no store, no policy, no clock and no log.

use crate::bucket::Timestamp;
use std::time::Duration;

/// The store is back when it has answered this long without a single failure. So a store that fails and answers by
/// turns, or of which a part is away, has one outage and not many.
pub(super) const RECOVERY: Duration = Duration::from_secs(3);

/// An outage that begins so soon after another is the sign of a store that is back only in part or for a while. It takes
/// twice as long a recovery as that one, but no longer than this. Else whoever meets only the part that is away, and
/// that every few seconds, would meet a new outage each time.
pub(super) const RELAPSE: Duration = Duration::from_secs(60);

/// How often it is news that an outage lasts.
pub(super) const REMINDER: Duration = Duration::from_secs(60);

/// Whether the store is away.
#[derive(Debug, Default)]
pub(super) struct Outage {
    ongoing: Option<Ongoing>,
    last: Option<Last>,
}

#[derive(Debug)]
struct Ongoing {
    began: Timestamp,
    recovery: Duration,
    /// The first answer after the last failure.
    answering_since: Option<Timestamp>,
    told: Timestamp,
    failures: u64,
}

#[derive(Debug)]
struct Last {
    ended: Timestamp,
    recovery: Duration,
}

/// A change that is worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Begins,
    Lasts {
        since: Duration,
        failures: u64,
    },
    Ends {
        /// From the first failure to the first answer after the last one.
        lasted: Duration,
        failures: u64,
    },
}

impl Outage {
    pub(super) fn is_on(&self) -> bool {
        self.ongoing.is_some()
    }

    /// The store did not do what it was asked.
    pub(super) fn failed(&mut self, now: Timestamp) -> Option<News> {
        let Some(ongoing) = &mut self.ongoing else {
            let recovery = self.recovery(now);
            self.ongoing = Some(Ongoing { began: now, recovery, answering_since: None, told: now, failures: 1 });
            return Some(News::Begins);
        };
        ongoing.answering_since = None;
        ongoing.failures += 1;
        if between(ongoing.told, now) < REMINDER {
            return None;
        }
        ongoing.told = now;
        Some(News::Lasts { since: between(ongoing.began, now), failures: ongoing.failures })
    }

    /// The store did what it was asked.
    pub(super) fn answered(&mut self, now: Timestamp) -> Option<News> {
        let ongoing = self.ongoing.as_mut()?;
        let since = *ongoing.answering_since.get_or_insert(now);
        if between(since, now) < ongoing.recovery {
            return None;
        }
        self.last = Some(Last { ended: now, recovery: ongoing.recovery });
        let news = News::Ends { lasted: between(ongoing.began, since), failures: ongoing.failures };
        self.ongoing = None;
        Some(news)
    }

    fn recovery(&self, now: Timestamp) -> Duration {
        match &self.last {
            Some(last) if between(last.ended, now) < RELAPSE => RELAPSE.min(last.recovery * 2),
            _ => RECOVERY,
        }
    }
}

/// Zero for a clock that went back.
fn between(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::from_micros(later.micros.saturating_sub(earlier.micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Timestamp {
        Timestamp { micros: 1_700_000_000_000_000 + (seconds * 1e6) as u64 }
    }

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn an_outage_begins_with_the_first_failure_and_ends_when_the_store_has_answered_for_the_recovery() {
        let mut outage = Outage::default();
        assert_eq!((outage.answered(at(0.0)), outage.is_on()), (None, false));
        assert_eq!((outage.failed(at(1.0)), outage.is_on()), (Some(News::Begins), true));
        assert_eq!(outage.failed(at(2.0)), None);
        assert_eq!(outage.answered(at(5.0)), None);
        assert_eq!((outage.answered(at(7.999)), outage.is_on()), (None, true));
        assert_eq!(outage.answered(at(8.0)), Some(News::Ends { lasted: seconds(4.0), failures: 2 }));
        assert_eq!((outage.answered(at(9.0)), outage.is_on()), (None, false));
    }

    #[test]
    fn failures_among_answers_are_one_outage() {
        let mut outage = Outage::default();
        let mut begun = 0;
        for turn in 0..100 {
            let now = f64::from(turn) * 2.9;
            begun += u32::from(outage.failed(at(now)) == Some(News::Begins));
            assert_eq!(outage.answered(at(now + 0.1)), None);
            assert_eq!(outage.answered(at(now + 2.8)), None);
        }
        assert_eq!(begun, 1);
    }

    #[test]
    fn nothing_ends_while_nobody_asks() {
        let mut outage = Outage::default();
        outage.failed(at(0.0));
        assert_eq!(outage.answered(at(3600.0)), None, "one answer after an hour is not an hour of answers");
        assert_eq!(outage.failed(at(3601.0)), Some(News::Lasts { since: seconds(3601.0), failures: 2 }));
        assert_eq!(outage.answered(at(7200.0)), None);
        assert_eq!(outage.answered(at(7203.0)), Some(News::Ends { lasted: seconds(7200.0), failures: 2 }));
    }

    #[test]
    fn that_an_outage_lasts_is_said_once_a_minute() {
        let mut outage = Outage::default();
        outage.failed(at(0.0));
        let said: Vec<(u32, News)> =
            (1..=300).filter_map(|second| Some((second, outage.failed(at(f64::from(second)))?))).collect();
        let lasts =
            |second: u32| (second, News::Lasts { since: seconds(second.into()), failures: u64::from(second) + 1 });
        assert_eq!(said, [60, 120, 180, 240, 300].map(lasts));
    }

    #[test]
    fn outages_that_follow_each_other_take_ever_longer_to_end_up_to_a_minute() {
        let mut outage = Outage::default();
        let mut now = 0.0;
        let mut recoveries = Vec::new();
        for _ in 0..7 {
            assert_eq!(outage.failed(at(now)), Some(News::Begins));
            let ends = (1..).find(|second| outage.answered(at(now + f64::from(*second))).is_some());
            // The first answer came after one second.
            let recovery = f64::from(ends.unwrap_or_default()) - 1.0;
            recoveries.push(recovery);
            now += recovery + 10.0;
        }
        assert_eq!(recoveries, [3.0, 6.0, 12.0, 24.0, 48.0, 60.0, 60.0]);
        assert_eq!(outage.failed(at(now + 60.0)), Some(News::Begins));
        assert_eq!(outage.answered(at(now + 61.0)), None);
        assert!(outage.answered(at(now + 64.0)).is_some(), "after a good minute all is forgiven");
    }

    #[test]
    fn a_clock_that_steps_back_ends_nothing_and_breaks_nothing() {
        let mut outage = Outage::default();
        outage.failed(at(100.0));
        assert_eq!(outage.answered(at(50.0)), None);
        assert_eq!(outage.failed(at(20.0)), None);
        assert_eq!(outage.answered(at(20.0)), None);
        assert!(outage.answered(at(23.0)).is_some());
    }
}
