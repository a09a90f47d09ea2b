//! The composition root: puts the parts together, runs them, and takes them down in order.

mod errands;
mod jwt;
mod log;
mod operations;
mod readiness;
mod reload;
pub mod shown;
mod watch;
mod watched;

use crate::audit::{self, Audit, SinkSettings, StreamServers};
use crate::clock::{SteadyClock, SystemClock};
use crate::config::{ClockSource, Config, FilesRead, Settings, Source, Token};
use crate::ext_authz::Service;
use crate::limiter::Limiter;
use crate::limiter::keys::{KeyMemory, KeyMemorySettings};
use crate::metrics::{Metrics, catalogue};
use crate::policy::Policy;
use crate::server::admin::{Access, Admin, Pages};
use crate::server::health::{Check, Health, Verdict};
use crate::server::tls::{Handshakes, Listener, Tls};
use crate::server::{Endpoint, Lifetime, ServerError};
use crate::store::Store;
use crate::store::deny_cache::DenyCache;
use crate::store::memory::MemoryStore;
use crate::store::redis::{self, RedisSettings, RedisStore};
use crate::trace::{self, Exporting, TraceError, Tracer};
use errands::Errands;
use log::Log;
use operations::Desk;
use readiness::{Follower, Meaning};
use reload::{Cause, Loaded, Parts, Reloader};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing_subscriber::filter::ParseError;

/// Why the service does not run.
#[derive(Debug, Error)]
pub enum AppError {
    #[error("cannot start the runtime: {0}")]
    Runtime(#[source] io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    #[error("cannot handle signals: {0}")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("cannot start the audit trail: {0}")]
    Audit(#[source] io::Error),
    #[error("log.filter: {0}")]
    Log(#[from] ParseError),
    #[error("traces: {0}")]
    Traces(#[from] TraceError),
}

/// Serves until SIGTERM or SIGINT, then drains. `source` is where `config` came from, and is read again on a reload;
/// `files` are those that it was read from.
///
/// # Errors
/// When it cannot start, or the server breaks down.
pub fn serve(config: Config, source: Source, files: FilesRead) -> Result<(), AppError> {
    // One thread: measured faster than several for a check path that waits on one connection, and without their tail.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AppError::Runtime)?;
    let served = runtime.block_on(run(config, source, files));
    // What is still in flight after `shutdown` is dropped with the runtime.
    runtime.shutdown_background();
    served
}

fn memory_store(settings: &Settings) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(Arc::new(SystemClock), settings.memory_capacity))
}

/// The Redis that the settings name, if they do. `key_prefix` is the policy's.
///
/// # Panics
/// Outside a tokio runtime.
pub fn redis_store(settings: &Settings, key_prefix: &str) -> Option<Arc<RedisStore>> {
    redis_settings(settings, key_prefix).map(|redis| Arc::new(RedisStore::new(redis)))
}

fn redis_settings(settings: &Settings, key_prefix: &str) -> Option<RedisSettings> {
    let servers = settings.redis.as_ref()?;
    let clock = match settings.clock {
        ClockSource::Redis => redis::ClockSource::Redis,
        ClockSource::Local => redis::ClockSource::Local(Arc::new(SystemClock)),
    };
    Some(RedisSettings {
        topology: servers.topology.clone(),
        limits: servers.limits,
        clock,
        client_name: servers.client_name.clone(),
        key_prefix: key_prefix.to_owned(),
    })
}

/// Where the stream of the trail is, if the buckets are in Redis.
fn stream_servers(settings: &Settings, key_prefix: &str, redis: Option<&RedisStore>) -> Option<StreamServers> {
    let (settings, redis) = redis_settings(settings, key_prefix).zip(redis)?;
    Some(StreamServers { settings, credentials: redis.credentials() })
}

/// A trail for what a command does, in the sinks of `config` but for standard output, which is the command's own. `redis`
/// is the store of the buckets. `None`: there is none of these.
///
/// # Errors
/// When no thread is to be had.
pub fn audit_of_command(config: &Config, redis: &RedisStore) -> io::Result<Option<(Arc<Audit>, audit::Ending)>> {
    let Some(audit) = &config.settings.audit else { return Ok(None) };
    // Acts are told one by one.
    let mut audit = audit::Settings { fold: Duration::ZERO, ..audit.clone() };
    audit.sinks.retain(|sink| *sink != SinkSettings::Stdout);
    if audit.sinks.is_empty() {
        return Ok(None);
    }
    let redis = stream_servers(&config.settings, &config.policy.key_prefix, Some(redis));
    Audit::start(&audit, redis, Arc::new(Metrics::new())).map(Some)
}

/// The audit trail, and what ends it when it is dropped, if the settings say so.
fn audit(
    settings: &Settings,
    limiter: &Limiter,
    redis: Option<&RedisStore>,
) -> Result<Option<(Arc<Audit>, audit::Ending)>, AppError> {
    let Some(audit) = &settings.audit else { return Ok(None) };
    let redis = stream_servers(settings, &limiter.snapshot().policy().key_prefix, redis);
    let started = Audit::start(audit, redis, limiter.metrics().clone()).map_err(AppError::Audit)?;
    tracing::info!(sinks = ?audit.sinks, hash_users = audit.hash_users, fold = ?audit.fold, replica = audit.replica, "audit trail");
    Ok(Some(started))
}

/// The limiter over `store`; with Redis it asks there of API keys, if the settings let it. Whether requests have any is
/// the policy's to say, and another may say otherwise.
fn limiter(policy: Policy, store: Arc<dyn Store>, redis: Option<Arc<RedisStore>>, settings: &Settings) -> Limiter {
    let steady = Arc::new(SteadyClock::default());
    let (size, max_age) = (settings.key_metadata.size, settings.key_metadata.max_age);
    let keys = redis.zip(settings.redis.as_ref()).filter(|_| size > 0);
    let keys = keys.map(|(redis, servers)| {
        let settings = KeyMemorySettings { size, max_age, timeout: servers.limits.timeout };
        KeyMemory::new(redis, &policy.key_prefix, &policy.tiers, settings)
    });
    let limiter = Limiter::verifying(policy, store, |metrics| jwt::verifier(settings.jwt.as_ref(), None, metrics));
    let limiter = limiter.with_fallback(steady.clone(), settings.memory_capacity);
    let limiter = if settings.dedupe { limiter.deduping(steady) } else { limiter };
    match keys {
        Some(keys) => limiter.with_keys(keys),
        None => limiter,
    }
}

/// A limiter as the service would have, but for what a running one remembers.
///
/// # Panics
/// Outside a tokio runtime.
pub fn limiter_of(config: Config) -> Limiter {
    let Config { policy, settings, .. } = config;
    let redis = redis_store(&settings, &policy.key_prefix);
    let store: Arc<dyn Store> = match &redis {
        Some(redis) => redis.clone(),
        None => memory_store(&settings),
    };
    limiter(policy, store, redis, &settings)
}

/// What remembers the denials of `store`, if the settings say so.
fn deny_cache(store: Arc<RedisStore>, settings: &Settings) -> Option<Arc<DenyCache>> {
    let cache = settings.deny_cache?;
    Some(Arc::new(DenyCache::new(store, Arc::new(SteadyClock::default()), cache.size, cache.max_age)))
}

/// TLS of a listener, if the settings say so.
fn handshakes(listener: Listener, tls: Option<&Tls>, limiter: &Limiter) -> Option<Handshakes> {
    tls.map(|tls| Handshakes::new(listener, tls.clone(), limiter.metrics()))
}

/// What traces checks, and what exports the spans for as long as it is held, if the settings say so.
fn traces(settings: &Settings, limiter: &Limiter) -> Result<(Option<Arc<Tracer>>, Option<Exporting>), TraceError> {
    let Some(traces) = &settings.traces else { return Ok((None, None)) };
    let system = if settings.redis.is_some() { "redis" } else { "memory" };
    let (tracer, exporting) = trace::start(traces, system, limiter.metrics().traces.clone())?;
    Ok((Some(Arc::new(tracer)), Some(exporting)))
}

async fn run(config: Config, source: Source, files: FilesRead) -> Result<(), AppError> {
    let Config { policy, settings, warnings, hash, shown } = config;
    let (log, _guard) = Log::start(&settings)?;
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(version, config = %source, hash, "starting");
    for warning in warnings {
        tracing::warn!("config: {warning}");
    }
    let redis = redis_store(&settings, &policy.key_prefix);
    let deny_cache = redis.clone().and_then(|redis| deny_cache(redis, &settings));
    let mut memory = None;
    let store: Arc<dyn Store> = match (&redis, &deny_cache) {
        (_, Some(cache)) => cache.clone(),
        (Some(redis), None) => redis.clone(),
        (None, None) => memory.insert(memory_store(&settings)).clone(),
    };
    let limiter = Arc::new(limiter(policy, store.clone(), redis.clone(), &settings));
    // Held to the end, when each writes out what is left.
    let (audit, _audit) = audit(&settings, &limiter, redis.as_deref())?.unzip();
    let (tracer, _exporting) = traces(&settings, &limiter)?;
    let meaning = if settings.readiness_requires_store { Meaning::Required } else { Meaning::Optional };
    let health = Health::new(meaning.unasked()).await;
    watched::watch(&limiter, &health, redis.as_ref(), deny_cache.as_ref(), memory.as_ref());
    let lines = log.clone();
    limiter.metrics().watch(catalogue::LOG_LINES_DROPPED, move || lines.dropped() as f64);
    // All of them before anybody hears that it serves: a SIGHUP that nobody waits for ends the process.
    let mut signals = Signals::new().map_err(AppError::Signals)?;
    let hangups = signal(SignalKind::hangup()).map_err(AppError::Signals)?;
    let tls = handshakes(Listener::Grpc, settings.tls.as_ref(), &limiter);
    let admin_tls =
        handshakes(Listener::Admin, settings.admin_tls.as_ref().filter(|_| settings.admin.is_some()), &limiter);
    Handshakes::watch_expiry(tls.iter().chain(&admin_tls), limiter.metrics());
    let admin = match settings.admin {
        Some(address) => Some(Admin::bind(address).await?.secured(admin_tls.clone())),
        None => None,
    };
    let endpoint = Endpoint::bind(&settings.listen).await?.secured(tls.clone());
    let access = Arc::new(access(admin.as_ref(), &settings));
    announce(&endpoint, admin.as_ref(), &settings, &limiter);
    let errands = Arc::new(Errands::new().map_err(AppError::Thread)?);
    let parts = Parts {
        limiter: limiter.clone(),
        deny_cache,
        redis,
        health: health.clone(),
        errands: errands.clone(),
        access: access.clone(),
        audit: audit.clone(),
        tls,
        admin_tls,
    };
    let loaded = Loaded::at_start(hash, shown);
    let filter = log.clone();
    let reloader = Reloader::new(source, parts, loaded, settings.clone(), files).filtering_log(move |text| {
        // It was proven with the rest of the configuration.
        let _ = filter.set_filter(text);
    });
    let reloader = Arc::new(reloader);
    if let Some(admin) = admin {
        let operations = Desk {
            limiter: limiter.clone(),
            store: store.clone(),
            reloader: reloader.clone(),
            audit: audit.clone(),
            log,
        };
        let pages = Pages {
            health: health.clone(),
            metrics: limiter.metrics().clone(),
            access: access.clone(),
            operations: Arc::new(operations),
        };
        // To the very end: who looks on wants to see the drain too.
        tokio::spawn(admin.serve(pages));
    }
    tokio::spawn(reload_on_hangup(hangups, reloader.clone(), audit.clone()));
    tokio::spawn(watch::follow(reloader, errands));
    let follower = Follower { store, health: health.clone(), meaning, limiter: limiter.clone() };
    let readiness = tokio::spawn(readiness::follow(follower));
    let (stop, stopped) = oneshot::channel::<()>();
    let lifetime = Lifetime { max_age: settings.max_connection_age, grace: settings.shutdown };
    let serving = endpoint.serve(Service::new(limiter).audited(audit).traced(tracer), &health, lifetime, async move {
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

/// Who may ask what of the admin endpoint.
fn access(admin: Option<&Admin>, settings: &Settings) -> Access {
    let nowhere = ([0, 0, 0, 0], 0).into();
    let address = admin.and_then(|admin| admin.address().ok()).unwrap_or(nowhere);
    let access = Access::new(address, settings.admin_token.as_ref().map(Token::bytes));
    if admin.is_some() && access.is_closed() {
        let remedy = "set TIDEGATE_ADMIN_TOKEN or TIDEGATE_ADMIN_TOKEN_FILE for the rest";
        tracing::warn!(%address, "the admin endpoint answers only /livez, /readyz and /metrics: {remedy}");
    }
    access
}

fn announce(endpoint: &Endpoint, admin: Option<&Admin>, settings: &Settings, limiter: &Limiter) {
    let listen = endpoint.address().map_or_else(|_| settings.listen.to_string(), |address| address.to_string());
    let admin = admin.and_then(|admin| admin.address().ok()).map_or("off".to_owned(), |address| address.to_string());
    let snapshot = limiter.snapshot();
    let policy = snapshot.policy();
    for tier in policy.tiers.iter() {
        let name = tier.name.as_str();
        let default = tier == policy.tiers.default_tier();
        let on_store_error = tier.on_store_error.unwrap_or(policy.on_store_error).word();
        tracing::info!(tier = name, default, limits = %tier.limits, on_store_error, "tier");
    }
    let store = settings.redis.as_ref().map_or("memory".to_owned(), |redis| redis.topology.to_string());
    let traces = settings.traces.as_ref().map_or("off", |traces| traces.endpoint.as_str());
    let (mode, on_store_error) = (policy.mode.word(), policy.on_store_error.word());
    let tls = settings.tls.is_some();
    tracing::info!(%listen, tls, %admin, %store, traces, mode, on_store_error, "serving");
}

/// On each SIGHUP, for ever, opens the audit trail's file anew and reloads the configuration.
async fn reload_on_hangup(mut hangups: Signal, reloader: Arc<Reloader>, audit: Option<Arc<Audit>>) {
    while hangups.recv().await.is_some() {
        if let Some(audit) = &audit {
            audit.reopen();
        }
        // What came of it is logged.
        let _ = reloader.reload(Cause::Signal).await;
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

    /// Waits for a signal to end.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
