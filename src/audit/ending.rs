//! The end of a trail: what was counted is told, what waits is written out, and what cannot be is said.

use super::Audit;
use super::fold::Ended;
use super::sink::Outlet;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// How long the end of the process waits for what is not written yet.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Ends the trail when it is dropped: writes out what was counted and what waits, as far as that is done in 2 seconds.
#[derive(Debug)]
pub struct Ending {
    pub(super) audit: Arc<Audit>,
    /// Dropped, it ends the thread that ends folds.
    pub(super) _folding: Sender<()>,
    /// Each hears when its writer is done.
    pub(super) writers: Vec<(Arc<Outlet>, Receiver<()>)>,
}

/// What a sink will never have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwritten {
    /// Its kind, as the configuration names it.
    pub sink: &'static str,
    /// How much happened that it does not tell.
    pub lost: u64,
    /// Why, as far as that is known.
    pub why: String,
}

impl fmt::Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.sink, self.why)
    }
}

impl Ending {
    /// Ends the trail and says what is not written of it: nothing, usually.
    pub fn finish(mut self) -> Vec<Unwritten> {
        self.end()
    }

    fn end(&mut self) -> Vec<Unwritten> {
        self.audit.end_folds(Ended::All);
        self.writers.iter().for_each(|(outlet, _)| outlet.queue.close());
        let deadline = Instant::now() + LAST_WORDS;
        let settled = self.writers.drain(..).filter_map(|(outlet, done)| {
            // Nothing is ever sent: a writer that is done hangs up.
            let left = deadline.saturating_duration_since(Instant::now());
            let _ = done.recv_timeout(left);
            let lost = outlet.abandon();
            let why = || outlet.failure().unwrap_or_else(|| format!("was not done within {LAST_WORDS:?}"));
            (lost > 0).then(|| Unwritten { sink: outlet.kind.word(), lost, why: why() })
        });
        settled.collect()
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        for Unwritten { sink, lost, why } in self.end() {
            tracing::warn!(sink, lost, why, "the audit trail was not written to its end");
        }
    }
}
