//! What the process is built from: addresses, stores, times. A change here needs a restart.

use crate::audit;
use crate::jwt;
use crate::server::Listen;
use crate::server::tls::Tls;
use crate::store::redis::{CallLimits, Topology};
use crate::trace::Traces;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// Everything but the policy, proven.
#[derive(Clone, Debug)]
pub struct Settings {
    pub listen: Listen,
    /// TLS there; `None` for plain text.
    pub tls: Option<Tls>,
    /// Where probes and Prometheus connect over HTTP; `None` for nowhere.
    pub admin: Option<SocketAddr>,
    /// TLS there; `None` for plain text.
    pub admin_tls: Option<Tls>,
    /// What operators send there to be let in.
    pub admin_token: Option<Token>,
    /// `None`: buckets are kept in this process's memory.
    pub redis: Option<Redis>,
    /// Buckets at most in this process's memory.
    pub memory_capacity: usize,
    /// `None`: switched off. Without Redis there is none either.
    pub deny_cache: Option<DenyCache>,
    /// Whether a request is charged once though Envoy asks about it again.
    pub dedupe: bool,
    pub clock: ClockSource,
    pub key_metadata: KeyMetadata,
    /// Whether the service is ready only while the store answers.
    pub readiness_requires_store: bool,
    /// NOT_SERVING this long before connections are closed; may be zero.
    pub drain: Duration,
    /// How long open calls may take after that.
    pub shutdown: Duration,
    /// When a connection is to be replaced by a new one; `None` for never.
    pub max_connection_age: Option<Duration>,
    pub log: Log,
    /// `None`: there is no audit trail.
    pub audit: Option<audit::Settings>,
    /// `None`: no check is traced.
    pub traces: Option<Traces>,
    /// `None`: no token is verified here.
    pub jwt: Option<jwt::Settings>,
}

/// A secret that lets its bearer in.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    pub(super) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The servers that hold the buckets.
#[derive(Clone, Debug)]
pub struct Redis {
    pub topology: Topology,
    pub limits: CallLimits,
    /// What CLIENT LIST on the servers shows.
    pub client_name: String,
}

/// What a process remembers of what Redis says of API keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyMetadata {
    /// Keys at most, unknown ones included; 0: Redis is not asked.
    pub size: usize,
    /// How long before Redis is asked again.
    pub max_age: Duration,
}

/// Empty buckets that are remembered, so that Redis need not be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyCache {
    /// Buckets at most.
    pub size: usize,
    /// How long an answer of Redis is used at most.
    pub max_age: Duration,
}

/// Whose clock refills buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockSource {
    /// Redis's `TIME`, one clock for all replicas. Without Redis, this process's.
    #[default]
    Redis,
    /// This process's.
    Local,
}

/// What the process says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// For `tracing_subscriber::EnvFilter`, which has parsed it once.
    pub filter: String,
    pub format: LogFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}
