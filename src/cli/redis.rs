//! The Redis of the service, as commands reach it: with the service's own configuration, and more patience.

use super::{Failure, Source, note};
use crate::app;
use crate::audit::Audit;
use crate::config::{self, Config, Environment};
use crate::store::StoreError;
use crate::store::redis::{CallLimits, RedisStore};
use std::sync::Arc;
use std::time::Duration;

/// How long a person at a terminal waits for Redis at least.
const PATIENCE: Duration = Duration::from_secs(3);

/// Who did what a command does, in the audit trail.
pub(super) const BY: &str = "cli";

/// The service's configuration, and its Redis.
pub(super) struct Redis {
    pub(super) config: Config,
    runtime: tokio::runtime::Runtime,
    pub(super) store: Arc<RedisStore>,
}

/// Does not connect. `what` is what lives in Redis.
pub(super) fn open(source: Source, what: &str) -> Result<Redis, Failure> {
    let mut config = config::load(&source.flags(None), &Environment::of_process())?;
    if let Some(redis) = &mut config.settings.redis {
        // Nobody's request waits for this, and no crowd asks.
        redis.limits.timeout = redis.limits.timeout.max(PATIENCE);
        redis.limits.max_in_flight = redis.limits.max_in_flight.max(CallLimits::default().max_in_flight);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = runtime.block_on(async { app::redis_store(&config.settings, &config.policy.key_prefix) });
    let store = store.ok_or_else(|| {
        Failure::Other(format!("no Redis is configured, and {what}: give --redis-url, TIDEGATE_REDIS_URL or --config"))
    })?;
    Ok(Redis { config, runtime, store })
}

impl Redis {
    /// Waits for an answer. `about` is the key that was asked for.
    pub(super) fn wait<T>(
        &self,
        about: &str,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Failure> {
        self.runtime.block_on(answer).map_err(|error| Failure::Other(format!("{about}: {error}")))
    }
    /// Has the audit trail of the service's configuration tell of something that was done, and waits until it does. That
    /// it cannot be is said, and nothing more: what was done is done.
    pub(super) fn audit(&self, act: impl FnOnce(&Audit)) {
        match app::audit_of_command(&self.config, &self.store) {
            Ok(None) => {}
            Ok(Some((audit, ending))) => {
                act(&audit);
                ending.finish().iter().for_each(|unwritten| warn_of_no_trail(&unwritten.to_string()));
            }
            Err(error) => warn_of_no_trail(&error.to_string()),
        }
    }
}

fn warn_of_no_trail(why: &str) {
    note(&format!("tidegate: warning: this is done, and the audit trail does not tell of it: {why}"));
}
