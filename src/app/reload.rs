//! Puts a changed configuration in force while the process runs: read and proven wholly first, then swapped in.
//!
//! A bad one is refused and told with all its faults, and what was in force stays.

use crate::config::{Config, Faults, Source};
use crate::limiter::Limiter;
use crate::store::deny_cache::DenyCache;
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::Mutex;
use tracing::{error, info, warn};

/// A configuration that is in force.
#[derive(Clone, Debug)]
pub(super) struct Loaded {
    /// See [`Config::hash`].
    pub(super) hash: String,
    pub(super) at: SystemTime,
}

/// Reloads the configuration of this process.
#[derive(Debug)]
pub(super) struct Reloader {
    source: Source,
    limiter: Arc<Limiter>,
    deny_cache: Option<Arc<DenyCache>>,
    loaded: ArcSwap<Loaded>,
    /// One at a time, in the order in which they were asked for.
    turn: Mutex<()>,
}

impl Reloader {
    /// `hash` is that of what is in force now.
    pub(super) fn new(source: Source, limiter: Arc<Limiter>, deny_cache: Option<Arc<DenyCache>>, hash: String) -> Self {
        let loaded = ArcSwap::from_pointee(Loaded { hash, at: SystemTime::now() });
        Self { source, limiter, deny_cache, loaded, turn: Mutex::default() }
    }

    /// What is in force.
    pub(super) fn loaded(&self) -> Arc<Loaded> {
        self.loaded.load_full()
    }

    /// Reads the configuration anew and puts it in force. `cause` says what asked for it.
    ///
    /// # Errors
    /// Every fault of what was read, all of them logged; what was in force stays.
    pub(super) async fn reload(&self, cause: &'static str) -> Result<Arc<Loaded>, Faults> {
        let _turn = self.turn.lock().await;
        // Reading and proving a large file takes long, and checks do not wait for it.
        let source = self.source.clone();
        let read = tokio::task::spawn_blocking(move || source.load()).await;
        match read.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic())) {
            Ok(config) => Ok(self.put_in_force(config, cause)),
            Err(faults) => {
                error!(cause, config = %self.source, %faults, "the configuration was refused, what was in force stays");
                Err(faults)
            }
        }
    }

    fn put_in_force(&self, config: Config, cause: &'static str) -> Arc<Loaded> {
        for warning in &config.warnings {
            warn!("config: {warning}");
        }
        self.limiter.replace(config.policy);
        if let Some(deny_cache) = &self.deny_cache {
            deny_cache.clear();
        }
        let loaded = Arc::new(Loaded { hash: config.hash, at: SystemTime::now() });
        self.loaded.store(loaded.clone());
        info!(cause, config = %self.source, hash = loaded.hash, "the configuration was reloaded");
        loaded
    }
}
