//! Whether this replica should be asked: follows the store, without flapping.
//!
//! One replica that is late for a second is a blip; a fleet that turns away from itself for it is an outage. So it
//! takes several failures in a row to be not ready, and more than one success to be ready again.

use crate::limiter::Limiter;
use crate::server::health::{Check, Health, Verdict};
use crate::store::{Store, StoreError};
use std::sync::Arc;
use std::time::Duration;

/// How often the store is asked whether it answers.
const INTERVAL: Duration = Duration::from_secs(1);

/// Failures in a row after which the store is away.
const FAILURES: u32 = 3;
/// Successes in a row after which a store that was away is back.
const SUCCESSES: u32 = 2;

/// What is told when the store comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Without it this replica is not ready.
    Required,
    /// Without it this replica is ready and follows `on_store_error`.
    Optional,
}

impl Meaning {
    /// The verdict on a store that nobody has asked yet.
    pub(super) fn unasked(self) -> Verdict {
        let why = "not asked yet";
        match self {
            Self::Required => Verdict::Fails(why),
            Self::Optional => Verdict::Warns(why),
        }
    }
}

/// Keeps `health` true to the store, for ever.
pub(super) async fn follow(follower: Follower) {
    let mut standing = Standing::default();
    loop {
        match follower.store.probe().await {
            Ok(()) if standing.succeeded() => follower.came().await,
            Err(error) if standing.failed() => follower.went(&error).await,
            _ => {}
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Who is asked, and who is told.
#[derive(Debug)]
pub(super) struct Follower {
    pub(super) store: Arc<dyn Store>,
    pub(super) health: Health,
    pub(super) meaning: Meaning,
    /// Whose policy says what becomes of checks meanwhile.
    pub(super) limiter: Arc<Limiter>,
}

impl Follower {
    async fn came(&self) {
        tracing::info!("ready: the store answers");
        self.health.set(Check::Store, Verdict::Passes).await;
    }

    async fn went(&self, error: &StoreError) {
        let (kind, on_store_error) = (error.kind(), self.limiter.snapshot().policy().on_store_error.word());
        let verdict = match self.meaning {
            Meaning::Required => {
                let told = "not ready: the store fails; checks follow on_store_error until it answers";
                tracing::error!(kind, %error, on_store_error, "{told}");
                Verdict::Fails(kind)
            }
            Meaning::Optional => {
                let told = "ready, but the store fails; checks follow on_store_error until it answers";
                tracing::warn!(kind, %error, on_store_error, "{told}");
                Verdict::Warns(kind)
            }
        };
        self.health.set(Check::Store, verdict).await;
    }
}

/// How the store stands, by what was asked so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    /// Nobody has asked.
    #[default]
    Unknown,
    /// It has never answered: the first success will do.
    Missing,
    Here {
        failures: u32,
    },
    Away {
        successes: u32,
    },
}

impl Standing {
    /// Notes an answer, and says whether the store is here now and was not before.
    fn succeeded(&mut self) -> bool {
        let (next, came) = match *self {
            Self::Unknown | Self::Missing => (Self::Here { failures: 0 }, true),
            Self::Here { .. } => (Self::Here { failures: 0 }, false),
            Self::Away { successes } if successes + 1 >= SUCCESSES => (Self::Here { failures: 0 }, true),
            Self::Away { successes } => (Self::Away { successes: successes + 1 }, false),
        };
        *self = next;
        came
    }

    /// Notes a failure, and says whether the store is away now and was not known to be.
    fn failed(&mut self) -> bool {
        let (next, went) = match *self {
            Self::Unknown => (Self::Missing, true),
            Self::Missing => (Self::Missing, false),
            Self::Here { failures } if failures + 1 >= FAILURES => (Self::Away { successes: 0 }, true),
            Self::Here { failures } => (Self::Here { failures: failures + 1 }, false),
            Self::Away { .. } => (Self::Away { successes: 0 }, false),
        };
        *self = next;
        went
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of a row of successes `+` and failures `-`: `R` for ready, `N` for not ready, `.` for nothing.
    fn told(answers: &str) -> String {
        let mut standing = Standing::default();
        let told = answers.chars().map(|answer| match answer {
            '+' if standing.succeeded() => 'R',
            '-' if standing.failed() => 'N',
            _ => '.',
        });
        told.collect()
    }

    #[test]
    fn the_first_success_is_enough_and_the_first_failure_is_told() {
        assert_eq!(told("+++"), "R..");
        assert_eq!(told("---+-+"), "N..R..");
    }

    #[test]
    fn two_failures_are_a_blip_and_three_in_a_row_are_not() {
        assert_eq!(told("+--+--+-+"), "R........");
        assert_eq!(told("+--+---+"), "R.....N.");
    }

    #[test]
    fn a_store_that_was_away_is_back_after_two_successes_in_a_row() {
        assert_eq!(told("+---+-+-++"), "R..N.....R");
        assert_eq!(told("+---++--+---"), "R..N.R.....N");
    }
}
