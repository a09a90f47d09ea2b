//! Buckets in Redis: each call is one script run, or one command, on a connection that many calls share.
//!
//! Takes charges and keys, gives token levels, as [`Store`] says. Knows Redis; knows nothing of who is asking. The
//! arithmetic is in `lua/`, operation for operation that of [`crate::bucket`].

mod connect;
mod fault;
mod metadata;
mod scan;
mod script;
mod url;

pub use scan::{Cursor, Glance, Round};
pub use url::{RedisUrl, UrlError};

use super::{Pending, Store, StoreError};
use crate::bucket::{Charge, Key, State, Taken};
use crate::clock::Clock;
use connect::Link;
use deadpool::managed::{Pool, PoolError};
use deadpool_redis::redis::{self, Cmd, FromRedisValue, RedisError, Value};
use script::Script;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Whose time the buckets are refilled by.
#[derive(Clone, Debug, Default)]
pub enum ClockSource {
    /// TIME of the server, read inside the script: one clock for every replica of this service.
    #[default]
    Redis,
    /// A clock of this process, passed to the script.
    Local(Arc<dyn Clock>),
}

/// What a [`RedisStore`] needs to know.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    pub url: RedisUrl,
    /// Bounds a whole call: waiting for a connection, connecting, and the round trip. A server that takes longer than
    /// this to connect to and sign in to is therefore never reached.
    pub timeout: Duration,
    /// Connections, at least 1. One is shared by all calls and is enough to saturate a server.
    pub pool_size: usize,
    pub clock: ClockSource,
}

impl RedisSettings {
    /// One connection, the server's clock, and 50 ms for each call.
    pub fn new(url: RedisUrl) -> Self {
        Self { url, timeout: Duration::from_millis(50), pool_size: 1, clock: ClockSource::Redis }
    }
}

/// Buckets in one Redis server.
#[derive(Debug)]
pub struct RedisStore {
    links: Pool<connect::Connector>,
    timeout: Duration,
    clock: ClockSource,
    url: RedisUrl,
    take: Script,
    peek: Script,
}

impl RedisStore {
    /// A store that connects when it is first called.
    pub fn new(settings: RedisSettings) -> Self {
        let RedisSettings { url, timeout, pool_size, clock } = settings;
        let links = connect::links(url.clone(), pool_size, timeout);
        Self { links, timeout, clock, url, take: Script::take(), peek: Script::peek() }
    }

    async fn run(&self, script: &Script, charges: &[Charge]) -> Result<Taken, StoreError> {
        debug_assert!(super::distinct(charges), "a take names a bucket twice");
        let now = match &self.clock {
            ClockSource::Redis => None,
            ClockSource::Local(clock) => Some(clock.now()),
        };
        let reply = self.bounded(async |mut link| match link.send(&script.by_digest(charges, now)).await {
            Err(error) if fault::is_no_script(&error) => link.send(&script.by_text(charges, now)).await,
            reply => reply,
        });
        script::parse(&reply.await?, charges.len())
    }

    async fn query<T: FromRedisValue>(&self, command: Cmd) -> Result<T, StoreError> {
        let reply: Value = self.bounded(async |mut link| link.send(&command).await).await?;
        T::from_redis_value(reply).map_err(|error| StoreError::Protocol(fault::one_line(&error)))
    }

    /// Runs `call` on a connection and bounds everything by the timeout.
    ///
    /// A connection that failed, or did not answer in time, is not handed out again: Redis may have closed it, hung,
    /// or moved to another address.
    async fn bounded<F>(&self, call: impl FnOnce(Link) -> F) -> Result<Value, StoreError>
    where
        F: Future<Output = Result<Value, RedisError>>,
    {
        let mut used = None;
        let answer = async {
            let link = self.links.get().await?.clone();
            used = Some(link.spoilt());
            Ok(call(link).await?)
        };
        let outcome = tokio::time::timeout(self.timeout, answer).await;
        if let Some(spoilt) = used.filter(|_| fault::spoils_connection(&outcome)) {
            spoilt.set();
        }
        match outcome {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(PoolError::Backend(error))) => Err(fault::store_error(&error, &self.url, self.timeout)),
            Ok(Err(error)) => Err(StoreError::Connection(fault::one_line(&error))),
            Err(_elapsed) => Err(StoreError::Timeout(self.timeout)),
        }
    }
}

impl Store for RedisStore {
    fn take<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken> {
        Box::pin(self.run(&self.take, charges))
    }

    fn peek<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken> {
        Box::pin(self.run(&self.peek, charges))
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> Pending<'a, Option<State>> {
        Box::pin(async {
            let mut command = redis::cmd("HMGET");
            command.arg(key.as_str()).arg("tokens").arg("last_refill");
            let [tokens, last_refill] = self.query::<[Option<Vec<u8>>; 2]>(command).await?;
            Ok(script::state(tokens.as_deref(), last_refill.as_deref()))
        })
    }

    fn reset<'a>(&'a self, key: &'a Key) -> Pending<'a, bool> {
        Box::pin(async {
            let mut command = redis::cmd("DEL");
            command.arg(key.as_str());
            self.query(command).await
        })
    }

    fn ping(&self) -> Pending<'_, ()> {
        Box::pin(async { self.query::<Value>(redis::cmd("PING")).await.map(drop) })
    }
}
