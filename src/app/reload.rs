//! Puts a changed configuration in force while the process runs: read and proven wholly first, then swapped in.
//!
//! What is refused, be it for its faults or since it takes a restart, is told in full, counted and shown, and what was in
//! force stays, all of it. Knows nothing of what asks for a reload.

use super::errands::Errands;
use crate::audit::Audit;
use crate::config::{Config, Faults, FilesRead, Settings, Source, Token, changes};
use crate::limiter::Limiter;
use crate::server::admin::Access;
use crate::server::health::{Check, Health, Verdict};
use crate::server::tls::{Handshakes, Tls};
use crate::store::deny_cache::DenyCache;
use crate::store::redis::RedisStore;
use arc_swap::ArcSwap;
use serde_json::Value;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;
use thiserror::Error;
use tokio::sync::Mutex;
use tracing::{error, info, warn};

/// What asked for a configuration to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The process began.
    Start,
    /// A file holds something else than when it was last read.
    File,
    Signal,
    /// Somebody, over the admin endpoint.
    Request,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "start",
            Self::File => "file",
            Self::Signal => "SIGHUP",
            Self::Request => "request",
        })
    }
}

/// The configuration that is in force, and what was refused since.
#[derive(Clone, Debug)]
pub(super) struct Loaded {
    /// See [`Config::hash`].
    pub(super) hash: String,
    pub(super) at: SystemTime,
    pub(super) cause: Cause,
    /// See [`Config::shown`].
    pub(super) shown: Arc<Value>,
    /// The last reload, if it was refused.
    pub(super) refusal: Option<Arc<Refusal>>,
}

impl Loaded {
    /// What the process begins with.
    pub(super) fn at_start(hash: String, shown: Value) -> Self {
        Self { hash, at: SystemTime::now(), cause: Cause::Start, shown: Arc::new(shown), refusal: None }
    }
}

/// A reload that was refused.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) at: SystemTime,
    pub(super) cause: Cause,
    pub(super) why: Refused,
}

/// Why a configuration was not put in force: each fault in a line, none of which shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", faults.join("\n"))]
pub(super) struct Refused {
    pub(super) faults: Vec<String>,
}

impl From<&Faults> for Refused {
    fn from(faults: &Faults) -> Self {
        let more = faults.is_cut().then(|| "and more".to_owned());
        Self { faults: faults.iter().map(ToString::to_string).chain(more).collect() }
    }
}

/// The parts of the process that follow a configuration.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) limiter: Arc<Limiter>,
    pub(super) deny_cache: Option<Arc<DenyCache>>,
    pub(super) redis: Option<Arc<RedisStore>>,
    pub(super) health: Health,
    pub(super) access: Arc<Access>,
    pub(super) audit: Option<Arc<Audit>>,
    /// TLS where Envoy connects.
    pub(super) tls: Option<Handshakes>,
    /// That of the admin endpoint.
    pub(super) admin_tls: Option<Handshakes>,
    /// Where files are read.
    pub(super) errands: Arc<Errands>,
}

/// Follows a change of `log.filter`.
type FilterLog = Box<dyn Fn(&str) + Send + Sync>;

/// Reloads the configuration of this process.
pub(super) struct Reloader {
    source: Source,
    parts: Parts,
    filter_log: Option<FilterLog>,
    loaded: ArcSwap<Loaded>,
    /// One reload at a time, in the order in which they were asked for.
    turn: Mutex<Standing>,
}

/// What the next reload is compared with.
#[derive(Debug)]
struct Standing {
    /// Those that the process follows.
    settings: Settings,
    /// What was last read, whether or not it was refused.
    files: FilesRead,
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloader").field("source", &self.source).field("loaded", &self.loaded).finish_non_exhaustive()
    }
}

impl Reloader {
    /// For a process that runs on what was read from `source`: `loaded` and `settings` of it, in `files`.
    pub(super) fn new(source: Source, parts: Parts, loaded: Loaded, settings: Settings, files: FilesRead) -> Self {
        parts.limiter.metrics().reloads.started(&loaded.hash, loaded.at);
        let loaded = ArcSwap::from_pointee(loaded);
        Self { source, parts, filter_log: None, loaded, turn: Mutex::new(Standing { settings, files }) }
    }

    /// With `follow` to be called when `log.filter` changes, which then takes no restart.
    #[must_use]
    pub(super) fn filtering_log(self, follow: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { filter_log: Some(Box::new(follow)), ..self }
    }

    /// Where the configuration comes from.
    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// What is in force.
    pub(super) fn loaded(&self) -> Arc<Loaded> {
        self.loaded.load_full()
    }

    /// The files that were last read, or looked for.
    pub(super) async fn files(&self) -> FilesRead {
        self.turn.lock().await.files.clone()
    }

    /// Reads the configuration anew and puts it in force.
    ///
    /// # Errors
    /// Every fault of what was read, or every key that takes a restart, all of them logged; what was in force stays.
    pub(super) async fn reload(&self, cause: Cause) -> Result<Arc<Loaded>, Refused> {
        let mut standing = self.turn.lock().await;
        self.read_anew(&mut standing, cause).await
    }

    /// As [`Reloader::reload`], if a file holds something else than when it was last read. What was refused is not refused
    /// again as long as it stays as it is. Says whether there was a reload, refused or not.
    pub(super) async fn reload_if_changed(&self) -> bool {
        let mut standing = self.turn.lock().await;
        let files = standing.files.clone();
        let changed = !self.parts.errands.run(move || files.are_unchanged()).await;
        if changed {
            // What came of it is logged.
            let _ = self.read_anew(&mut standing, Cause::File).await;
        }
        changed
    }

    async fn read_anew(&self, standing: &mut Standing, cause: Cause) -> Result<Arc<Loaded>, Refused> {
        let source = self.source.clone();
        let (read, files) = self.parts.errands.run(move || source.read()).await;
        standing.files = files;
        let refused = match read {
            Ok(config) => match self.takes_restart(&standing.settings, &config) {
                None => return Ok(self.put_in_force(config, &mut standing.settings, cause).await),
                Some(refused) => refused,
            },
            Err(faults) => Refused::from(&faults),
        };
        self.refuse(refused, cause).await
    }

    /// What of it cannot be followed while the process runs.
    fn takes_restart(&self, settings: &Settings, config: &Config) -> Option<Refused> {
        let snapshot = self.parts.limiter.snapshot();
        let (prefix, new_prefix) = (&snapshot.policy().key_prefix, &config.policy.key_prefix);
        let mut keys = changes::restart_only(settings, prefix, &config.settings, new_prefix);
        keys.retain(|key| *key != changes::LOG_FILTER || self.filter_log.is_none());
        let faults = keys.iter().map(|key| format!("{key}: a change needs a restart"));
        (!keys.is_empty()).then(|| Refused { faults: faults.collect() })
    }

    async fn put_in_force(&self, config: Config, settings: &mut Settings, cause: Cause) -> Arc<Loaded> {
        for warning in &config.warnings {
            warn!("config: {warning}");
        }
        if let Some((redis, servers)) = self.parts.redis.as_ref().zip(config.settings.redis.as_ref()) {
            redis.sign_in_as(&servers.topology);
        }
        change_tls("tls", self.parts.tls.as_ref(), config.settings.tls.as_ref());
        change_tls("admin.tls", self.parts.admin_tls.as_ref(), config.settings.admin_tls.as_ref());
        self.parts.access.set_token(config.settings.admin_token.as_ref().map(Token::bytes));
        let (snapshot, limiter) = (self.parts.limiter.snapshot(), &self.parts.limiter);
        let jwt = super::jwt::verifier(config.settings.jwt.as_ref(), snapshot.jwt(), limiter.metrics());
        limiter.replace_with(config.policy, jwt);
        if let Some(deny_cache) = &self.parts.deny_cache {
            deny_cache.clear();
        }
        if let Some(follow) = self.filter_log.as_ref().filter(|_| settings.log.filter != config.settings.log.filter) {
            follow(&config.settings.log.filter);
        }
        *settings = config.settings;
        let shown = Arc::new(config.shown);
        let loaded = Arc::new(Loaded { hash: config.hash, at: SystemTime::now(), cause, shown, refusal: None });
        self.loaded.store(loaded.clone());
        info!(%cause, config = %self.source, hash = loaded.hash, "the configuration was reloaded");
        self.parts.limiter.metrics().reloads.succeeded(&loaded.hash, loaded.at);
        if let Some(audit) = &self.parts.audit {
            audit.config_reloaded(&loaded.hash, &cause.to_string());
        }
        self.parts.health.set(Check::Config, Verdict::Passes).await;
        loaded
    }

    async fn refuse(&self, why: Refused, cause: Cause) -> Result<Arc<Loaded>, Refused> {
        let faults = why.faults.len();
        error!(%cause, config = %self.source, faults, "the configuration was refused, what was in force stays");
        for fault in &why.faults {
            error!("config: {fault}");
        }
        let refusal = Arc::new(Refusal { at: SystemTime::now(), cause, why: why.clone() });
        self.loaded.rcu(|loaded| Loaded { refusal: Some(refusal.clone()), ..Loaded::clone(loaded) });
        self.parts.limiter.metrics().reloads.refused();
        if let Some(audit) = &self.parts.audit {
            audit.config_refused(&why.to_string(), &cause.to_string());
        }
        self.parts.health.set(Check::Config, Verdict::Warns("reload refused")).await;
        Err(why)
    }
}

/// Has a listener show and ask what is said now.
fn change_tls(key: &str, listener: Option<&Handshakes>, tls: Option<&Tls>) {
    let Some((listener, tls)) = listener.zip(tls) else { return };
    if listener.change(tls) {
        info!(key, "certificates were changed: connections from now on see them, those that stand go on");
    }
}
