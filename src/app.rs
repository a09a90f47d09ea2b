//! The composition root: puts the parts together, runs them, and takes them down in order.

use crate::clock::SystemClock;
use crate::config::{Config, Settings};
use crate::ext_authz::Service;
use crate::limiter::Limiter;
use crate::server::health::Health;
use crate::server::{Endpoint, ServerError};
use crate::store::memory::MemoryStore;
use crate::store::redis::RedisStore;
use crate::store::{Store, StoreError};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// How often the store is asked whether it answers, for the sake of readiness.
const STORE_PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Why the service does not run.
#[derive(Debug, Error)]
pub enum AppError {
    #[error("cannot start the runtime: {0}")]
    Runtime(#[source] io::Error),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("redis.urls: {0}")]
    Store(#[from] StoreError),
}

/// Serves until SIGTERM or SIGINT, then drains.
///
/// # Errors
/// When it cannot start, or the server breaks down.
pub fn serve(config: Config) -> Result<(), AppError> {
    // One thread: measured faster than several for a check path that waits on one connection, and without their tail.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AppError::Runtime)?;
    let served = runtime.block_on(run(config));
    // What is still in flight after `shutdown` is dropped with the runtime.
    runtime.shutdown_background();
    served
}

/// The store that the settings name. Does not connect.
///
/// # Errors
/// When Redis's address cannot be used.
pub fn store(settings: &Settings) -> Result<Arc<dyn Store>, StoreError> {
    let clock = Arc::new(SystemClock);
    Ok(match &settings.redis {
        Some(redis) => Arc::new(RedisStore::new(redis.store_settings(settings.clock, clock)?)),
        None => Arc::new(MemoryStore::new(clock, settings.memory_capacity)),
    })
}

async fn run(config: Config) -> Result<(), AppError> {
    let Config { policy, settings, .. } = config;
    let store = store(&settings)?;
    let limiter = Arc::new(Limiter::new(policy, store.clone()));
    let health = Health::new().await;
    let mut signals = Signals::new().map_err(AppError::Runtime)?;
    let endpoint = Endpoint::bind(&settings.listen).await?;
    announce(&endpoint, &settings, &limiter);

    let readiness = tokio::spawn(follow_store(store, health.clone(), settings.readiness_requires_store));
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = endpoint.serve(Service::new(limiter), &health, async move {
        let _ = stopped.await;
    });
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => return Ok(served?),
        name = signals.next() => tracing::info!(signal = name, drain = ?settings.drain, "draining: not ready any more"),
    }
    readiness.abort();
    health.set_ready(false).await;
    tokio::select! {
        served = &mut serving => return Ok(served?),
        () = tokio::time::sleep(settings.drain) => {}
        name = signals.next() => return Ok(tracing::warn!(signal = name, "a second signal: stopping at once")),
    }
    let _ = stop.send(());
    tokio::select! {
        served = &mut serving => served?,
        () = tokio::time::sleep(settings.shutdown) => tracing::warn!(after = ?settings.shutdown, "dropping what is still in flight"),
        name = signals.next() => tracing::warn!(signal = name, "a second signal: stopping at once"),
    }
    tracing::info!("stopped");
    Ok(())
}

fn announce(endpoint: &Endpoint, settings: &Settings, limiter: &Limiter) {
    let listen = endpoint.address().map_or_else(|_| settings.listen.to_string(), |address| address.to_string());
    let policy = limiter.policy();
    for tier in policy.tiers.iter() {
        let name = tier.name.as_str();
        tracing::info!(tier = name, default = tier == policy.tiers.default_tier(), limits = %tier.limits, "tier");
    }
    let store = settings.redis.as_ref().map_or("memory".to_owned(), |redis| redis.url.to_string());
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(version, %listen, %store, mode = ?policy.mode, on_store_error = ?policy.on_store_error, "serving");
}

/// Keeps readiness true to the store: ready after the first answer, and no longer when it stops answering.
async fn follow_store(store: Arc<dyn Store>, health: Health, required: bool) {
    if !required {
        health.set_ready(true).await;
        return;
    }
    let mut ready = None;
    loop {
        let answer = store.ping().await;
        if ready != Some(answer.is_ok()) {
            match &answer {
                Ok(()) => tracing::info!("ready: the store answers"),
                Err(error) => tracing::error!(kind = error.kind(), %error, "not ready: the store does not answer"),
            }
            ready = Some(answer.is_ok());
            health.set_ready(answer.is_ok()).await;
        }
        tokio::time::sleep(STORE_PROBE_INTERVAL).await;
    }
}

/// The signals that ask a process to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
