//! What the process is built from: addresses, stores, times. A change here needs a restart.

use crate::server::Listen;
use crate::store::redis::RedisUrl;
use std::net::SocketAddr;
use std::time::Duration;

/// Everything but the policy, proven.
#[derive(Clone, Debug)]
pub struct Settings {
    pub listen: Listen,
    /// Where probes and Prometheus connect over HTTP; `None` for nowhere.
    pub admin: Option<SocketAddr>,
    /// `None`: buckets are kept in this process's memory.
    pub redis: Option<Redis>,
    /// Buckets at most in this process's memory.
    pub memory_capacity: usize,
    pub clock: ClockSource,
    /// Whether the service is ready only while the store answers.
    pub readiness_requires_store: bool,
    /// NOT_SERVING this long before connections are closed; may be zero.
    pub drain: Duration,
    /// How long open calls may take after that.
    pub shutdown: Duration,
    /// When a connection is to be replaced by a new one; `None` for never.
    pub max_connection_age: Option<Duration>,
    pub log: Log,
}

/// One Redis server.
#[derive(Clone, Debug)]
pub struct Redis {
    pub url: RedisUrl,
    /// One round trip, waiting for a connection included.
    pub timeout: Duration,
    /// Connections, each shared by many calls at once.
    pub pool_size: usize,
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
