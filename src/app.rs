//! The composition root: puts the parts together, runs them, and takes them down in order.

mod readiness;
mod reload;

use crate::clock::{SteadyClock, SystemClock};
use crate::config::{ClockSource, Config, LogFormat, Settings, Source};
use crate::ext_authz::Service;
use crate::limiter::Limiter;
use crate::limiter::keys::{KeyMemory, KeyMemorySettings};
use crate::metrics::Breaker;
use crate::policy::Policy;
use crate::server::admin::{Admin, Pages};
use crate::server::health::{Check, Health, Verdict};
use crate::server::{Endpoint, Lifetime, ServerError};
use crate::store::Store;
use crate::store::deny_cache::DenyCache;
use crate::store::memory::MemoryStore;
use crate::store::redis::{self, RedisSettings, RedisStore};
use crate::trace::{self, Exporting, TraceError, Tracer};
use readiness::{Follower, Meaning};
use reload::Reloader;
use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Why the service does not run.
#[derive(Debug, Error)]
pub enum AppError {
    #[error("cannot start the runtime: {0}")]
    Runtime(#[source] io::Error),
    #[error("cannot handle signals: {0}")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("log.filter: {0}")]
    Log(#[from] ParseError),
    #[error("traces: {0}")]
    Traces(#[from] TraceError),
}

/// Serves until SIGTERM or SIGINT, then drains. `source` is where `config` came from, and is read again on a reload.
///
/// # Errors
/// When it cannot start, or the server breaks down.
pub fn serve(config: Config, source: Source) -> Result<(), AppError> {
    // One thread: measured faster than several for a check path that waits on one connection, and without their tail.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AppError::Runtime)?;
    let served = runtime.block_on(run(config, source));
    // What is still in flight after `shutdown` is dropped with the runtime.
    runtime.shutdown_background();
    served
}

fn memory_store(settings: &Settings) -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(Arc::new(SystemClock), settings.memory_capacity))
}

/// The Redis that the settings name, if they do. `key_prefix` is the policy's.
///
/// # Panics
/// Outside a tokio runtime.
pub fn redis_store(settings: &Settings, key_prefix: &str) -> Option<Arc<RedisStore>> {
    let servers = settings.redis.as_ref()?;
    let clock = match settings.clock {
        ClockSource::Redis => redis::ClockSource::Redis,
        ClockSource::Local => redis::ClockSource::Local(Arc::new(SystemClock)),
    };
    Some(Arc::new(RedisStore::new(RedisSettings {
        topology: servers.topology.clone(),
        limits: servers.limits,
        clock,
        client_name: servers.client_name.clone(),
        key_prefix: key_prefix.to_owned(),
    })))
}

/// The limiter over `store`; with Redis it asks there of API keys, if the settings and the policy let it.
fn limiter(policy: Policy, store: Arc<dyn Store>, redis: Option<Arc<RedisStore>>, settings: &Settings) -> Limiter {
    let steady = Arc::new(SteadyClock::default());
    let (size, max_age) = (settings.key_metadata.size, settings.key_metadata.max_age);
    let keys = redis.zip(settings.redis.as_ref()).filter(|_| size > 0 && !policy.sources.key.is_empty());
    let keys = keys.map(|(redis, servers)| {
        let settings = KeyMemorySettings { size, max_age, timeout: servers.limits.timeout };
        KeyMemory::new(redis, &policy.key_prefix, &policy.tiers, settings)
    });
    let limiter = Limiter::new(policy, store).with_fallback(steady.clone(), settings.memory_capacity);
    let limiter = if settings.dedupe { limiter.deduping(steady) } else { limiter };
    match keys {
        Some(keys) => limiter.with_keys(keys),
        None => limiter,
    }
}

/// What remembers the denials of `store`, if the settings say so.
fn deny_cache(store: Arc<RedisStore>, settings: &Settings) -> Option<Arc<DenyCache>> {
    let cache = settings.deny_cache?;
    Some(Arc::new(DenyCache::new(store, Arc::new(SteadyClock::default()), cache.size, cache.max_age)))
}

/// What traces checks, and what exports the spans for as long as it is held, if the settings say so.
fn traces(settings: &Settings, limiter: &Limiter) -> Result<(Option<Arc<Tracer>>, Option<Exporting>), TraceError> {
    let Some(traces) = &settings.traces else { return Ok((None, None)) };
    let system = if settings.redis.is_some() { "redis" } else { "memory" };
    let (tracer, exporting) = trace::start(traces, system, limiter.metrics().traces().clone())?;
    Ok((Some(Arc::new(tracer)), Some(exporting)))
}

async fn run(config: Config, source: Source) -> Result<(), AppError> {
    let Config { policy, settings, warnings, hash } = config;
    let _log = log_to_stderr(&settings)?;
    tracing::info!(config = %source, hash, "starting");
    for warning in warnings {
        tracing::warn!("config: {warning}");
    }
    let redis = redis_store(&settings, &policy.key_prefix);
    let deny_cache = redis.clone().and_then(|redis| deny_cache(redis, &settings));
    let store: Arc<dyn Store> = match (&redis, &deny_cache) {
        (_, Some(cache)) => cache.clone(),
        (Some(redis), None) => redis.clone(),
        (None, None) => memory_store(&settings),
    };
    let limiter = Arc::new(limiter(policy, store.clone(), redis.clone(), &settings));
    if let Some(redis) = redis {
        let state = move || if redis.open_breakers() > 0 { Breaker::Open } else { Breaker::Closed };
        limiter.metrics().watch_breaker(state);
    }
    let (tracer, _exporting) = traces(&settings, &limiter)?;
    let meaning = if settings.readiness_requires_store { Meaning::Required } else { Meaning::Optional };
    let health = Health::new(meaning.unasked()).await;
    let mut signals = Signals::new().map_err(AppError::Signals)?;
    let admin = match settings.admin {
        Some(address) => Some(Admin::bind(address).await?),
        None => None,
    };
    let endpoint = Endpoint::bind(&settings.listen).await?;
    announce(&endpoint, admin.as_ref(), &settings, &limiter);
    if let Some(admin) = admin {
        // To the very end: who looks on wants to see the drain too.
        tokio::spawn(admin.serve(Pages { health: health.clone(), metrics: limiter.metrics().clone() }));
    }

    let on_store_error = limiter.snapshot().policy().on_store_error;
    let reloader = Arc::new(Reloader::new(source, limiter.clone(), deny_cache, hash));
    tokio::spawn(reload_on_hangup(reloader).map_err(AppError::Signals)?);
    let follower = Follower { store, health: health.clone(), meaning, on_store_error };
    let readiness = tokio::spawn(readiness::follow(follower));
    let (stop, stopped) = oneshot::channel::<()>();
    let lifetime = Lifetime { max_age: settings.max_connection_age, grace: settings.shutdown };
    let serving = endpoint.serve(Service::new(limiter).traced(tracer), &health, lifetime, async move {
        // The sender gone means the same.
        let _ = stopped.await;
    });
    tokio::pin!(serving);
    tokio::select! {
        () = &mut serving => return Ok(()),
        name = signals.next() => tracing::info!(signal = name, drain = ?settings.drain, "draining: not ready any more"),
    }
    readiness.abort();
    health.set(Check::Drain, Verdict::Fails("draining")).await;
    tokio::select! {
        () = &mut serving => return Ok(()),
        () = tokio::time::sleep(settings.drain) => {}
        name = signals.next() => return stop_at_once(name),
    }
    let _ = stop.send(());
    tokio::select! {
        () = &mut serving => {}
        () = tokio::time::sleep(settings.shutdown) => {
            tracing::warn!(shutdown = ?settings.shutdown, "dropping what is still in flight");
        }
        name = signals.next() => return stop_at_once(name),
    }
    tracing::info!("stopped");
    Ok(())
}

fn stop_at_once(signal: &str) -> Result<(), AppError> {
    tracing::warn!(signal, "a second signal: stopping at once");
    Ok(())
}

/// Starts logging. What is returned writes out the last lines when it is dropped.
///
/// A thread of its own writes, and drops lines when the reader does not keep up: a full pipe must not stop checks. And
/// a reader that is gone is nobody's to tell: the subscriber would print that, to the same place, and panic.
fn log_to_stderr(settings: &Settings) -> Result<WorkerGuard, AppError> {
    let filter = EnvFilter::try_new(&settings.log.filter)?;
    let (writer, guard) = tracing_appender::non_blocking(io::stderr());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).log_internal_errors(false);
    match settings.log.format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(guard)
}

fn announce(endpoint: &Endpoint, admin: Option<&Admin>, settings: &Settings, limiter: &Limiter) {
    let listen = endpoint.address().map_or_else(|_| settings.listen.to_string(), |address| address.to_string());
    let admin = admin.and_then(|admin| admin.address().ok()).map_or("off".to_owned(), |address| address.to_string());
    let snapshot = limiter.snapshot();
    let policy = snapshot.policy();
    for tier in policy.tiers.iter() {
        let name = tier.name.as_str();
        let default = tier == policy.tiers.default_tier();
        let on_store_error = tier.on_store_error.unwrap_or(policy.on_store_error);
        tracing::info!(tier = name, default, limits = %tier.limits, ?on_store_error, "tier");
    }
    let store = settings.redis.as_ref().map_or("memory".to_owned(), |redis| redis.topology.to_string());
    let traces = settings.traces.as_ref().map_or("off", |traces| traces.endpoint.as_str());
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(version, %listen, %admin, %store, traces, mode = ?policy.mode, on_store_error = ?policy.on_store_error, "serving");
}

/// Reloads the configuration on each SIGHUP, for ever.
fn reload_on_hangup(reloader: Arc<Reloader>) -> io::Result<impl Future<Output = ()>> {
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        while hangup.recv().await.is_some() {
            // What came of it is logged.
            let _ = reloader.reload("SIGHUP").await;
        }
    })
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

    /// Waits for a signal to end.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
