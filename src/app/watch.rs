//! Follows the files that the configuration was read from: has it reloaded soon after one of them holds something else.
//!
//! Directories are watched, and not the files: Kubernetes swaps a ConfigMap or a Secret by a symlink beside them, and
//! editors put a new file in the old one's place; a watch on a file would be lost with it. An event says only that it is
//! time to look. As not every change comes with one (NFS, a directory that was away), there is a look now and then too.

mod directories;

use super::errands::Errands;
use super::reload::Reloader;
use directories::{Directories, directories_of};
use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

/// How long it must be quiet before a look: a swap of a ConfigMap is many events, and so is what an editor does.
const QUIET: Duration = Duration::from_millis(150);
/// How long a look waits for quiet at most.
const LONGEST: Duration = Duration::from_secs(1);
/// How long without an event before a look.
const NOW_AND_THEN: Duration = Duration::from_secs(10);
/// The same while a directory cannot be watched.
const UNWATCHED: Duration = Duration::from_secs(2);

/// Reloads when files change, for ever; ends at once where there are none.
pub(super) async fn follow(reloader: Arc<Reloader>, errands: Arc<Errands>) {
    let signs = Arc::new(Signs::default());
    let mut watch = Watch::default();
    while let files = reloader.files().await
        && files.paths().next().is_some()
    {
        let told = signs.clone();
        watch = errands.run(move || watch.over(directories_of(&files), told)).await;
        // The watch stands before the look, so nothing is missed between.
        if reloader.reload_if_changed().await {
            // It may have named other files.
            signs.seen.notify_one();
        }
        signs.next(watch.patience()).await;
    }
}

/// What the watcher's own thread tells.
#[derive(Debug, Default)]
struct Signs {
    seen: Notify,
    /// Something befell a directory itself, and the watch over it may have ended.
    lost: AtomicBool,
}

impl Signs {
    fn take_in(&self, event: notify::Result<Event>, watched: &Directories) {
        match event {
            // Reading is no change: each look would make another.
            Ok(event) if !tells_of_change(event.kind) => return,
            Ok(event) if event.paths.iter().any(|path| watched.contains_key(path)) => {
                self.lost.store(true, Ordering::Relaxed);
            }
            Ok(_) => {}
            Err(_) => self.lost.store(true, Ordering::Relaxed),
        }
        self.seen.notify_one();
    }

    /// Waits for an event and then for quiet, or for so long.
    async fn next(&self, patience: Duration) {
        if timeout(patience, self.seen.notified()).await.is_err() {
            return;
        }
        let latest = Instant::now() + LONGEST;
        while timeout_at(latest.min(Instant::now() + QUIET), self.seen.notified()).await.is_ok() {
            if Instant::now() >= latest {
                return;
            }
        }
    }
}

fn tells_of_change(kind: EventKind) -> bool {
    !matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

/// The watch over some directories, as far as it could be had.
#[derive(Debug, Default)]
struct Watch {
    watcher: Option<RecommendedWatcher>,
    directories: Directories,
    /// What cannot be watched, and why. It was said.
    trouble: Option<String>,
}

impl Watch {
    /// The same watch if it is over these very directories, else a new one. It may wait for the disk.
    fn over(self, wanted: Directories, signs: Arc<Signs>) -> Self {
        let lost = signs.lost.swap(false, Ordering::Relaxed);
        if !lost && self.trouble.is_none() && self.watcher.is_some() && self.directories == wanted {
            return self;
        }
        let Self { watcher, trouble: before, .. } = self;
        // There are few watchers to be had: the old one goes first.
        drop(watcher);
        let (watcher, trouble) = begin(&wanted, signs);
        match (&trouble, &before) {
            (Some(why), before) if before.as_ref() != Some(why) => {
                warn!(why, every = ?UNWATCHED, "cannot watch for changes of the configuration, so its files are looked at");
            }
            (None, Some(_)) => info!("changes of the configuration are watched for again"),
            _ => {}
        }
        Self { watcher, directories: wanted, trouble }
    }

    /// How long without an event before a look.
    fn patience(&self) -> Duration {
        if self.trouble.is_some() { UNWATCHED } else { NOW_AND_THEN }
    }
}

/// Begins to watch, and says what cannot be watched.
fn begin(directories: &Directories, signs: Arc<Signs>) -> (Option<RecommendedWatcher>, Option<String>) {
    let watched = directories.clone();
    let watcher = notify::recommended_watcher(move |event| signs.take_in(event, &watched));
    let mut watcher = match watcher {
        Ok(watcher) => watcher,
        Err(error) => return (None, Some(error.to_string())),
    };
    let mut trouble = None;
    for directory in directories.keys() {
        if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
            trouble.get_or_insert_with(|| format!("{}: {:?}", directory.display(), error.kind));
        }
    }
    (Some(watcher), trouble)
}
