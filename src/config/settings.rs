//! What the process is built from: addresses, stores, times. A change here needs a restart.

use redis::IntoConnectionInfo;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Everything but the policy, proven.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub listen: Listen,
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
    pub log: Log,
}

/// Where Envoy connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// One Redis server.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// The address of a Redis server. Shown, it has neither user, password nor query.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    full: String,
    shown: String,
}

impl RedisUrl {
    /// Reads a `redis://` or `unix://` URL.
    ///
    /// # Errors
    /// What is wrong and what would be right, without the text itself, which may hold a password.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const RIGHT: &str = "is no Redis URL; write redis://host:port/database or unix:///path";
        if text.starts_with("rediss:") {
            return Err("asks for TLS (rediss://), which is not supported yet; write redis://host:port/database");
        }
        let url = redis::parse_redis_url(text).ok_or(RIGHT)?;
        // An unescaped `#`, `?` or `/` in a password ends the authority there and makes a host of the password.
        if url.fragment().is_some() || url.path().contains('@') || url.query().is_some_and(|query| query.contains('@'))
        {
            return Err("has a #, ?, / or @ in its password or elsewhere; write those as %23, %3F, %2F and %40");
        }
        text.into_connection_info().map_err(|_| RIGHT)?;
        let host = url.host_str().unwrap_or_default();
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        Ok(Self { shown: format!("{}://{host}{port}{}", url.scheme(), url.path()), full: text.to_owned() })
    }

    /// The same server, asked with this password.
    pub fn with_password(&self, password: &str) -> Self {
        let Some(mut url) = redis::parse_redis_url(&self.full) else {
            return self.clone();
        };
        if url.set_password(Some(password)).is_err() {
            // A unix socket has no host for a password to stand before; redis-rs reads it in the query.
            let others: Vec<(String, String)> =
                url.query_pairs().filter(|(name, _)| name != "pass").map(|(n, v)| (n.into(), v.into())).collect();
            url.query_pairs_mut().clear().extend_pairs(others).append_pair("pass", password);
        }
        Self { full: url.into(), shown: self.shown.clone() }
    }

    /// The whole URL, password included: for the client, and nobody else.
    pub fn reveal(&self) -> &str {
        &self.full
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn a_shown_url_has_no_password() {
        for (text, shown) in [
            ("redis://user:hunter2@h:6380/3", "redis://h:6380/3"),
            ("redis://:hunter2@[::1]:6380", "redis://[::1]:6380"),
            ("redis://h/0?protocol=resp3", "redis://h/0"),
            ("unix:///run/redis.sock?pass=hunter2", "unix:///run/redis.sock"),
        ] {
            let url = RedisUrl::parse(text).unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), shown);
            assert_eq!(url.reveal(), text);
        }
    }

    #[test]
    fn a_password_given_apart_reaches_the_client_whatever_its_letters() {
        for text in ["redis://h:6379/0", "redis://user:old@h/0", "unix:///run/redis.sock?pass=old&db=1"] {
            let url = RedisUrl::parse(text).unwrap().with_password("p@s/s?#%&é");
            let info = url.reveal().into_connection_info().unwrap();
            assert_eq!(info.redis_settings().password(), Some("p@s/s?#%&é"), "{text}");
            assert!(!format!("{url:?}{url}").contains("p@s"));
        }
    }

    #[test]
    fn what_is_no_url_is_refused_without_being_repeated() {
        for text in [
            "",
            "h:6379",
            ":hunter2@h",
            "http://hunter2@h",
            "redis://",
            "rediss://:hunter2@h",
            "redis://h/x",
            "redis://hunter2#@h",
            "redis://hunter2?@h",
        ] {
            let said = RedisUrl::parse(text).unwrap_err();
            assert!(!said.contains("hunter2"), "{text}");
        }
    }
}
