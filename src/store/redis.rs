//! Buckets in Redis: each call is one script run, or one command, on a connection that many calls share.
//!
//! Takes charges and keys, gives token levels, as [`Store`] says. Knows Redis, its Sentinels and its Cluster; knows
//! nothing of who is asking. The arithmetic is in `lua/`, operation for operation that of [`crate::bucket`].

mod breaker;
mod cluster;
mod connect;
mod credentials;
mod fault;
mod metadata;
mod node;
mod scan;
mod script;
mod sentinel;
mod shards;
mod stream;
mod url;

pub use credentials::Credentials;
pub use node::CallLimits;
pub use scan::{Cursor, Glance, Round};
pub use url::{RedisUrl, TlsError, TlsFiles, UrlError};

use super::{Pending, Store, StoreError};
use crate::bucket::{Charge, Key, State, Taken, Timestamp};
use crate::clock::Clock;
use cluster::Cluster;
use connect::{Access, Dial, Role};
use deadpool_redis::redis::{self, Cmd, FromRedisValue};
use node::{Node, Request};
use script::{Probe, Run, Script};
use sentinel::Sentinel;
use shards::Shards;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Whose time the buckets are refilled by.
#[derive(Clone, Debug, Default)]
pub enum ClockSource {
    /// TIME of the server, read inside the script: one clock for every replica of this service.
    #[default]
    Redis,
    /// A clock of this process, passed to the script.
    Local(Arc<dyn Clock>),
}

/// Which servers hold the buckets.
#[derive(Clone, Debug)]
pub enum Topology {
    Standalone(RedisUrl),
    /// The master that the Sentinels name, followed when it changes.
    Sentinel {
        sentinels: Vec<RedisUrl>,
        /// The name under which the Sentinels know it.
        master: String,
        /// How the master is signed in to; its address is not used.
        access: RedisUrl,
    },
    /// A Redis Cluster, of which some nodes are named. One is signed in to as the first of them.
    Cluster(Vec<RedisUrl>),
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |urls: &[RedisUrl]| urls.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        match self {
            Self::Standalone(url) => url.fmt(f),
            Self::Sentinel { sentinels, master, .. } => write!(f, "{master} of the sentinels {}", list(sentinels)),
            Self::Cluster(nodes) => write!(f, "the cluster of {}", list(nodes)),
        }
    }
}

/// What a [`RedisStore`] needs to know.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    pub topology: Topology,
    pub limits: CallLimits,
    pub clock: ClockSource,
    /// What CLIENT LIST on the servers shows.
    pub client_name: String,
    /// Starts the name of the bucket that probes take nothing from: a user of Redis may be allowed no other names.
    pub key_prefix: String,
}

impl RedisSettings {
    /// One server and what is usual elsewhere: one connection, the server's clock, 50 ms for each call.
    pub fn new(url: RedisUrl) -> Self {
        Self::of(Topology::Standalone(url))
    }

    /// As [`RedisSettings::new`], for any topology.
    pub fn of(topology: Topology) -> Self {
        let (limits, clock) = (CallLimits::default(), ClockSource::Redis);
        Self { topology, limits, clock, client_name: "tidegate".into(), key_prefix: "rl:".into() }
    }
}

/// Buckets in Redis.
#[derive(Debug)]
pub struct RedisStore {
    servers: Servers,
    credentials: Credentials,
    limits: CallLimits,
    clock: ClockSource,
    take: Script,
    peek: Script,
}

#[derive(Debug)]
enum Servers {
    One(Arc<Node>),
    Sentinel(Box<Sentinel>),
    Cluster(Arc<Shards>),
}

/// Who holds the buckets at the moment.
enum Holder<'s> {
    /// One server, all of them.
    Node(Arc<Node>),
    Cluster(&'s Arc<Shards>),
}

impl RedisStore {
    /// A store that connects when it is first called. With Sentinel or Cluster, a task that looks for the servers is
    /// started and lives as long as the store.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(settings: RedisSettings) -> Self {
        let credentials = Credentials::of(&settings.topology);
        Self::signed_in_with(settings, credentials)
    }

    /// As [`RedisStore::new`], with the credentials of another store: they change with its own.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn signed_in_with(settings: RedisSettings, credentials: Credentials) -> Self {
        let RedisSettings { topology, limits, clock, client_name, key_prefix } = settings;
        let probe = Probe::new(&key_prefix);
        let access = &credentials.servers;
        let dial = |url, access: &Access, role| {
            let (access, client_name) = (access.clone(), client_name.as_str().into());
            Dial { url, access, client_name, role }
        };
        let servers = match topology {
            Topology::Standalone(url) => Servers::One(Node::new(dial(url, access, Role::Any), limits, probe)),
            Topology::Sentinel { sentinels, master, access: url } => {
                let sentinels = sentinels.into_iter().zip(&credentials.sentinels);
                let sentinels = sentinels.map(|(url, access)| dial(url, access, Role::Any)).collect();
                let sentinel = Sentinel::follow(sentinels, master, dial(url, access, Role::Master), limits, probe);
                Servers::Sentinel(Box::new(sentinel))
            }
            Topology::Cluster(urls) => {
                let seeds = urls.into_iter().map(|url| dial(url, access, Role::Any)).collect();
                Servers::Cluster(Arc::new(Shards::of(Cluster::follow(seeds, limits, probe, key_prefix))))
            }
        };
        Self { servers, credentials, limits, clock, take: Script::take(), peek: Script::peek() }
    }

    /// See [`Credentials::change`].
    pub fn sign_in_as(&self, topology: &Topology) {
        self.credentials.change(topology);
    }

    /// For other stores that go to the same servers.
    pub fn credentials(&self) -> Credentials {
        self.credentials.clone()
    }

    /// Servers that are not asked for the time being, as they failed several times in a row.
    pub fn open_breakers(&self) -> usize {
        self.sum(|node| usize::from(node.breaker_is_open()))
    }

    /// Calls on their way to servers that hold buckets.
    pub fn in_flight(&self) -> usize {
        self.sum(|node| node.in_flight())
    }

    /// Connections to servers that hold buckets.
    pub fn connections(&self) -> usize {
        self.sum(|node| node.connections())
    }

    /// Over the servers that are known to hold buckets.
    fn sum(&self, of: impl Fn(&Arc<Node>) -> usize) -> usize {
        match &self.servers {
            Servers::One(node) => of(node),
            Servers::Sentinel(sentinel) => sentinel.known().as_ref().map_or(0, of),
            Servers::Cluster(shards) => shards.cluster.known_masters().iter().map(of).sum(),
        }
    }

    fn now(&self) -> Option<Timestamp> {
        match &self.clock {
            ClockSource::Redis => None,
            ClockSource::Local(clock) => Some(clock.now()),
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.limits.timeout
    }

    async fn holder(&self, deadline: Instant) -> Result<Holder<'_>, StoreError> {
        Ok(match &self.servers {
            Servers::One(node) => Holder::Node(node.clone()),
            Servers::Sentinel(sentinel) => Holder::Node(sentinel.master(deadline).await?),
            Servers::Cluster(shards) => Holder::Cluster(shards),
        })
    }

    /// On one server: all buckets in one script.
    async fn run(
        &self,
        node: &Arc<Node>,
        script: &Script,
        charges: &[Charge],
        deadline: Instant,
    ) -> Result<Taken, StoreError> {
        let run = Run { script, charges, now: self.now() };
        script::parse(&node.ask(Request::Script(&run), deadline).await?, charges.len())
    }

    /// The servers that hold buckets, each some of them.
    async fn masters(&self) -> Result<Vec<Arc<Node>>, StoreError> {
        let deadline = self.deadline();
        match self.holder(deadline).await? {
            Holder::Node(node) => Ok(vec![node]),
            Holder::Cluster(shards) => shards.cluster.masters(deadline).await,
        }
    }

    /// Sends a command to the server that holds `key`.
    async fn query<T: FromRedisValue>(&self, key: &[u8], command: &Cmd) -> Result<T, StoreError> {
        let (request, deadline) = (Request::Command(command), self.deadline());
        let reply = match self.holder(deadline).await? {
            Holder::Node(node) => node.ask(request, deadline).await?,
            Holder::Cluster(shards) => shards.cluster.call(script::slot(key), request, deadline).await?,
        };
        T::from_redis_value(reply).map_err(|error| StoreError::Protocol(fault::one_line(&error)))
    }
}

/// How long after the start calls wait for the servers to be found, at least.
const SEARCH: Duration = Duration::from_secs(1);

/// Give or take a fifth, so that a fleet does not knock in step.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.8 + 0.4 * fastrand::f64())
}

impl Store for RedisStore {
    fn take<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken> {
        Box::pin(async {
            debug_assert!(super::distinct(charges), "a take names a bucket twice");
            let deadline = self.deadline();
            match self.holder(deadline).await? {
                Holder::Node(node) => self.run(&node, &self.take, charges, deadline).await,
                Holder::Cluster(shards) => shards.take(charges, self.now(), deadline).await,
            }
        })
    }

    fn peek<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken> {
        Box::pin(async {
            let deadline = self.deadline();
            match self.holder(deadline).await? {
                Holder::Node(node) => self.run(&node, &self.peek, charges, deadline).await,
                Holder::Cluster(shards) => shards.peek(charges, self.now(), deadline).await,
            }
        })
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> Pending<'a, Option<State>> {
        Box::pin(async {
            let mut command = redis::cmd("HMGET");
            command.arg(key.as_str()).arg("tokens").arg("last_refill");
            let [tokens, last_refill] = self.query::<[Option<Vec<u8>>; 2]>(key.as_str().as_bytes(), &command).await?;
            Ok(script::state(tokens.as_deref(), last_refill.as_deref()))
        })
    }

    fn reset<'a>(&'a self, key: &'a Key) -> Pending<'a, bool> {
        Box::pin(async {
            let mut command = redis::cmd("DEL");
            command.arg(key.as_str());
            self.query(key.as_str().as_bytes(), &command).await
        })
    }

    fn probe(&self) -> Pending<'_, ()> {
        Box::pin(async {
            let deadline = self.deadline();
            match self.holder(deadline).await? {
                Holder::Node(node) => node.probe().await.map_err(|failure| node.told(&failure)),
                Holder::Cluster(shards) => shards.cluster.probe(deadline).await,
            }
        })
    }
}
