//! The keys in force: given once, or fetched in the background again and again. No check ever waits for them.
//!
//! While they cannot be fetched, those that were fetched last stay in force. A token with an unknown `kid` asks for a
//! fetch before its time, since keys may have been replaced; however many such tokens come, there is one in a while.

use super::fetch::Origin;
use super::keys::KeySet;
use super::memory::Generation;
use crate::clock::Stopwatch;
use crate::complaint::Complaint;
use crate::metrics::{self, JwksRefresh};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The least time between two fetches, however many tokens ask for one.
const SPACING: Duration = Duration::from_secs(5);

/// How long the first wait after a failure is. It doubles with each, up to [`LONGEST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// The keys in force, which may be replaced at any time.
#[derive(Debug)]
pub(super) struct Keys {
    shared: Arc<Shared>,
    /// What fetches them, if anything does; it ends with this.
    _task: JoinSet<()>,
    tried: watch::Receiver<bool>,
}

#[derive(Debug)]
struct Shared {
    current: ArcSwap<Current>,
    /// When they were read, by the stopwatch; until then, when this was made.
    read: Mutex<Duration>,
    stopwatch: Arc<dyn Stopwatch>,
    wanted: Notify,
}

/// Keys, and which they are among those that were in force.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) generation: Generation,
    pub(super) set: KeySet,
    /// The SHA-256 of their text.
    digest: [u8; 32],
}

impl Keys {
    /// Keys that stay as they are.
    pub(super) fn fixed(set: KeySet, stopwatch: Arc<dyn Stopwatch>) -> Self {
        let current = Current { generation: 0, set, digest: [0; 32] };
        let tried = watch::channel(true).1;
        Self { shared: Shared::new(current, stopwatch), _task: JoinSet::new(), tried }
    }

    /// Keys that are fetched at once, and then each time after `every`; until then those of `before`.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(super) fn fetched(
        origin: Origin,
        every: Duration,
        before: KeySet,
        stopwatch: Arc<dyn Stopwatch>,
        metrics: metrics::Jwt,
    ) -> Self {
        let shared = Shared::new(Current { generation: 0, set: before, digest: [0; 32] }, stopwatch);
        let (tell, tried) = watch::channel(false);
        let follower = Follower { shared: shared.clone(), origin, every, metrics, complaint: Complaint::default() };
        let mut task = JoinSet::new();
        task.spawn(follower.follow(tell));
        Self { shared, _task: task, tried }
    }

    /// Those in force now.
    pub(super) fn current(&self) -> Arc<Current> {
        self.shared.current.load_full()
    }

    /// How long ago they were read.
    pub(super) fn age(&self) -> Duration {
        self.shared.stopwatch.elapsed().saturating_sub(*self.shared.read.lock())
    }

    /// Asks for a fetch before its time.
    pub(super) fn want(&self) {
        self.shared.wanted.notify_one();
    }

    /// Waits until they were fetched once, or could not be.
    pub(super) async fn tried(&self) {
        // The sender is gone only with the runtime.
        let _ = self.tried.clone().wait_for(|tried| *tried).await;
    }
}

impl Shared {
    fn new(current: Current, stopwatch: Arc<dyn Stopwatch>) -> Arc<Self> {
        let read = Mutex::new(stopwatch.elapsed());
        Arc::new(Self { current: ArcSwap::from_pointee(current), read, stopwatch, wanted: Notify::new() })
    }

    /// The same keys again are no change: what was verified with them stays so.
    fn put_in_force(&self, set: KeySet, text: &[u8]) {
        let (digest, current) = (Sha256::digest(text).into(), self.current.load());
        *self.read.lock() = self.stopwatch.elapsed();
        if current.digest == digest {
            return;
        }
        let (keys, generation) = (set.len(), current.generation + 1);
        self.current.store(Arc::new(Current { generation, set, digest }));
        tracing::info!(keys, "the keys that verify tokens were fetched");
    }
}

/// Fetches keys, for ever.
struct Follower {
    shared: Arc<Shared>,
    origin: Origin,
    every: Duration,
    metrics: metrics::Jwt,
    complaint: Complaint,
}

impl Follower {
    async fn follow(self, tell: watch::Sender<bool>) {
        let mut failures = 0;
        loop {
            failures = if self.fetch().await { 0 } else { failures + 1 };
            tell.send_replace(true);
            let pause = pause(failures, self.every);
            let spacing = SPACING.min(pause);
            sleep(spacing).await;
            // Whether it was asked for, or is time: either will do.
            let _ = timeout(pause - spacing, self.shared.wanted.notified()).await;
        }
    }

    async fn fetch(&self) -> bool {
        let (result, why) = match self.origin.fetch().await {
            Ok(text) => match KeySet::parse(&text) {
                Ok(set) => {
                    self.shared.put_in_force(set, &text);
                    (JwksRefresh::Success, None)
                }
                Err(error) => (JwksRefresh::BadBody, Some(error.to_string())),
            },
            Err(error) => (error.result(), Some(error.to_string())),
        };
        self.metrics.refreshed(result);
        let succeeded = why.is_none();
        if let Some(error) = why {
            let (origin, keys) = (self.origin.url(), self.shared.current.load().set.len());
            self.complaint.say(|more| {
                tracing::warn!(%origin, error, keys, more, "cannot fetch the keys that verify tokens, the last ones stay");
            });
        }
        succeeded
    }
}

/// How long to wait before the next fetch, give or take a tenth, so that replicas do not ask all at once.
fn pause(failures: u32, every: Duration) -> Duration {
    let usual = match failures.checked_sub(1) {
        None => every,
        Some(doublings) => FIRST_RETRY.saturating_mul(1 << doublings.min(10)).min(LONGEST_RETRY).min(every),
    };
    usual.mul_f64(0.9 + 0.2 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_followed_by_ever_longer_waits_up_to_a_bound() {
        let within = |pause: Duration, seconds: f64| (pause.as_secs_f64() / seconds - 1.0).abs() <= 0.1 + 1e-9;
        let every = Duration::from_secs(300);
        for (failures, seconds) in [(0, 300.0), (1, 1.0), (2, 2.0), (5, 16.0), (7, 60.0), (1000, 60.0)] {
            assert!(within(pause(failures, every), seconds), "{failures}");
        }
        assert!(within(pause(5, Duration::from_secs(2)), 2.0), "no longer than the usual wait");
    }
}
