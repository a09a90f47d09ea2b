//! Connections to one Redis server: made when needed, shared by many calls, replaced when spoilt.
//!
//! Takes a URL and gives a pool of [`Link`]s. Knows nothing of buckets. `deadpool_redis`'s own manager asks PING each
//! time a connection is handed out, which halves the throughput; this one trusts a connection until a call fails on it.

use deadpool::managed::{Manager, Metrics, Pool, RecycleError, RecycleResult};
use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::io::tcp::TcpSettings;
use deadpool_redis::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, IntoConnectionInfo, RedisError, Value,
};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thiserror::Error;

/// Where a Redis server is and how to sign in: `redis://[user][:password@]host[:port][/db]` or
/// `unix:///path[?db=0&user=…&pass=…]`. Printed without the password.
#[derive(Clone)]
pub struct RedisUrl {
    info: ConnectionInfo,
}

/// Why a text is no URL of a Redis server. Holds nothing of the text, which may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("not the URL of a redis server: {0}")]
pub struct UrlError(&'static str);

impl FromStr for RedisUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if !text.contains("://") {
            return Err(UrlError("it starts with no scheme such as redis://"));
        }
        let fault = if text.starts_with("rediss://") {
            "want rediss://[user][:password@]host[:port][/db], and a build with TLS"
        } else {
            "want redis://[user][:password@]host[:port][/db]"
        };
        let info = text.into_connection_info().map_err(|_| UrlError(fault))?;
        Ok(Self { info })
    }
}

impl RedisUrl {
    /// The same server, signed in to with `password`.
    #[must_use]
    pub fn with_password(self, password: &str) -> Self {
        let redis = self.info.redis_settings().clone().set_password(password);
        Self { info: self.info.set_redis_settings(redis) }
    }

    /// `text` with the password, should it occur, struck out.
    pub(super) fn redact(&self, text: String) -> String {
        match self.info.redis_settings().password() {
            Some(password) if !password.is_empty() => text.replace(password, "***"),
            _ => text,
        }
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.info.addr(), self.info.redis_settings().db())
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

/// Says of a connection, to all who hold a clone of it, that it is not to be used again.
#[derive(Clone, Debug, Default)]
pub(super) struct Spoilt(Arc<AtomicBool>);

impl Spoilt {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// One connection, which many calls share: a clone sends on the same socket.
#[derive(Clone, Debug)]
pub(super) struct Link {
    connection: MultiplexedConnection,
    spoilt: Spoilt,
}

impl Link {
    pub(super) fn spoilt(&self) -> Spoilt {
        self.spoilt.clone()
    }

    /// Sends a command and waits for its answer, without a time limit of its own.
    pub(super) async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        command.query_async(&mut self.connection).await
    }
}

/// Makes connections for the pool.
#[derive(Debug)]
pub(super) struct Connector {
    url: RedisUrl,
    config: AsyncConnectionConfig,
}

impl Manager for Connector {
    type Type = Link;
    type Error = RedisError;

    async fn create(&self) -> Result<Link, RedisError> {
        let client = Client::open(self.url.info.clone())?;
        let connection = client.get_multiplexed_async_connection_with_config(&self.config).await?;
        Ok(Link { connection, spoilt: Spoilt::default() })
    }

    async fn recycle(&self, link: &mut Link, _: &Metrics) -> RecycleResult<RedisError> {
        if link.spoilt.is_set() { Err(RecycleError::message("a call failed on it")) } else { Ok(()) }
    }
}

/// A pool of up to `size` connections, none of them made yet. Whoever takes a [`Link`] out clones it and puts it back
/// at once, so that only connecting ever makes others wait.
pub(super) fn links(url: RedisUrl, size: usize, timeout: Duration) -> Pool<Connector> {
    let tcp = TcpSettings::default().set_nodelay(true);
    let url = RedisUrl { info: url.info.set_tcp_settings(tcp) };
    // The caller bounds a whole call, so replies are not timed a second time here.
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(timeout)).set_response_timeout(None);
    Pool::builder(Connector { url, config })
        .max_size(size.max(1))
        .build()
        .expect("only a pool with timeouts of its own can fail to be built, for want of a runtime")
}
