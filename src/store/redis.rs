//! Buckets in Redis: each call is one script run, or one command, on a connection that many calls share.
//!
//! Takes charges and keys, gives token levels, as [`Store`] says. Knows Redis, its Sentinels and its Cluster; knows
//! nothing of who is asking. The arithmetic is in `lua/`, operation for operation that of [`crate::bucket`].

mod breaker;
mod cluster;
mod connect;
mod fault;
mod metadata;
mod node;
mod scan;
mod script;
mod sentinel;
mod url;

pub use node::CallLimits;
pub use scan::{Cursor, Glance, Round};
pub use url::{RedisUrl, TlsError, TlsFiles, UrlError};

use super::{Pending, Store, StoreError};
use crate::bucket::{Charge, Key, Levels, Source, State, Taken, Timestamp};
use crate::clock::Clock;
use cluster::Cluster;
use connect::{Dial, Role};
use deadpool_redis::redis::{self, Cmd, FromRedisValue, Value};
use fault::Failure;
use node::{Manner, Node, Request};
use script::{Probe, Run, Script};
use sentinel::Sentinel;
use std::fmt;
use std::sync::Arc;
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
    limits: CallLimits,
    clock: ClockSource,
    take: Script,
    peek: Script,
    refund: Arc<Script>,
}

#[derive(Debug)]
enum Servers {
    One(Arc<Node>),
    Sentinel(Box<Sentinel>),
    Cluster(Cluster),
}

impl RedisStore {
    /// A store that connects when it is first called. With Sentinel or Cluster, a task that looks for the servers is
    /// started and lives as long as the store.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(settings: RedisSettings) -> Self {
        let RedisSettings { topology, limits, clock, client_name, key_prefix } = settings;
        let probe = Probe::new(&key_prefix);
        let dial = |url, role| Dial { url, client_name: client_name.as_str().into(), role };
        let servers = match topology {
            Topology::Standalone(url) => Servers::One(Node::new(dial(url, Role::Any), limits, probe)),
            Topology::Sentinel { sentinels, master, access } => {
                let sentinels = sentinels.into_iter().map(|url| dial(url, Role::Any)).collect();
                let sentinel = Sentinel::follow(sentinels, master, dial(access, Role::Master), limits, probe);
                Servers::Sentinel(Box::new(sentinel))
            }
            Topology::Cluster(urls) => {
                let seeds = urls.into_iter().map(|url| dial(url, Role::Any)).collect();
                Servers::Cluster(Cluster::follow(seeds, limits, probe, key_prefix))
            }
        };
        let (take, peek, refund) = (Script::take(), Script::peek(), Arc::new(Script::refund()));
        Self { servers, limits, clock, take, peek, refund }
    }

    /// Servers that are not asked for the time being, as they failed several times in a row.
    pub fn open_breakers(&self) -> usize {
        let open = |node: &Arc<Node>| usize::from(node.breaker_is_open());
        match &self.servers {
            Servers::One(node) => open(node),
            Servers::Sentinel(sentinel) => sentinel.known().as_ref().map_or(0, open),
            Servers::Cluster(cluster) => cluster.known_masters().iter().map(open).sum(),
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

    async fn run(&self, script: &Script, charges: &[Charge]) -> Result<Taken, StoreError> {
        debug_assert!(super::distinct(charges), "a take names a bucket twice");
        let (run, deadline) = (Run { script, charges, now: self.now() }, self.deadline());
        let request = Request::Script(&run);
        let reply = match &self.servers {
            Servers::One(node) => self.ask(node, request, deadline).await?,
            Servers::Sentinel(sentinel) => {
                let node = sentinel.master(deadline).await.map_err(|failure| self.told(&failure, sentinel.url()))?;
                self.ask(&node, request, deadline).await?
            }
            Servers::Cluster(cluster) => return self.run_each(cluster, run, deadline).await,
        };
        script::parse(&reply, charges.len())
    }

    async fn ask(&self, node: &Arc<Node>, request: Request<'_>, deadline: Instant) -> Result<Value, StoreError> {
        node.call(request, Manner::Plain, deadline).await.map_err(|failure| self.told(&failure, node.url()))
    }

    fn told(&self, failure: &Failure, url: &RedisUrl) -> StoreError {
        failure.told(url, self.limits.timeout)
    }

    /// The servers that hold buckets, each some of them.
    async fn masters(&self) -> Result<Vec<Arc<Node>>, StoreError> {
        match &self.servers {
            Servers::One(node) => Ok(vec![node.clone()]),
            Servers::Sentinel(sentinel) => {
                let master = sentinel.master(self.deadline()).await;
                Ok(vec![master.map_err(|failure| self.told(&failure, sentinel.url()))?])
            }
            Servers::Cluster(cluster) => {
                let masters = cluster.masters(self.deadline()).await;
                masters.map_err(|failure| self.told(&failure, cluster.url()))
            }
        }
    }

    /// Sends a command to the server that holds `key`.
    async fn query<T: FromRedisValue>(&self, key: &[u8], command: &Cmd) -> Result<T, StoreError> {
        let (request, deadline) = (Request::Command(command), self.deadline());
        let reply = match &self.servers {
            Servers::One(node) => self.ask(node, request, deadline).await?,
            Servers::Sentinel(sentinel) => {
                let node = sentinel.master(deadline).await.map_err(|failure| self.told(&failure, sentinel.url()))?;
                self.ask(&node, request, deadline).await?
            }
            Servers::Cluster(cluster) => {
                let outcome = cluster.call(script::slot(key), request, deadline).await;
                outcome.map_err(|failure| self.told(&failure, cluster.url()))?
            }
        };
        T::from_redis_value(reply).map_err(|error| StoreError::Protocol(fault::one_line(&error)))
    }

    /// On a Cluster each bucket is on a server of its own, as no script may touch two slots. All scripts are on their way
    /// together; what was taken where another denied or failed is given back.
    ///
    /// So nothing is ever admitted that not every bucket covered. For as long as the giving back takes, another request
    /// may find less in a bucket than there should be. If this process dies in between, the bucket stays short of that one
    /// request's tokens until they are refilled.
    async fn run_each(&self, cluster: &Cluster, run: Run<'_>, deadline: Instant) -> Result<Taken, StoreError> {
        let one = |charge| async move {
            let run = Run { charges: std::slice::from_ref(charge), ..run };
            let outcome = cluster.call(script::slot_of(&charge.key), Request::Script(&run), deadline).await;
            let reply = outcome.map_err(|failure| self.told(&failure, cluster.url()))?;
            script::parse(&reply, 1)
        };
        let [charge] = run.charges else {
            let answers = futures_util::future::join_all(run.charges.iter().map(one)).await;
            return self.settle(cluster, run, answers);
        };
        one(charge).await
    }

    /// Puts the answers of several servers together.
    fn settle(
        &self,
        cluster: &Cluster,
        run: Run<'_>,
        answers: Vec<Result<Taken, StoreError>>,
    ) -> Result<Taken, StoreError> {
        let all = answers.iter().all(|answer| answer.as_ref().is_ok_and(|taken| taken.admitted));
        let took = std::ptr::eq(run.script, &self.take) && !all;
        let mut whole = Ok(Taken { admitted: all, levels: Levels::new(), source: Source::Store });
        for (charge, answer) in run.charges.iter().zip(answers) {
            match (answer, &mut whole) {
                (Ok(taken), whole) => {
                    let refunded = took && taken.admitted;
                    if refunded {
                        cluster.refund(self.refund.clone(), charge.clone(), run.now);
                    }
                    if let Ok(whole) = whole {
                        whole.levels.extend(taken.levels.into_iter().map(|mut level| {
                            level.tokens += if refunded { charge.cost } else { 0.0 };
                            level
                        }));
                    }
                }
                (Err(error), whole) => *whole = Err(error),
            }
        }
        whole
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
            let told = |url: &RedisUrl, outcome: Result<Value, Failure>| match outcome {
                Ok(_) => Ok(()),
                Err(failure) => Err(self.told(&failure, url)),
            };
            match &self.servers {
                Servers::One(node) => told(node.url(), node.probe().await),
                Servers::Sentinel(sentinel) => match sentinel.master(self.deadline()).await {
                    Ok(node) => told(node.url(), node.probe().await),
                    Err(failure) => told(sentinel.url(), Err(failure)),
                },
                Servers::Cluster(cluster) => told(cluster.url(), cluster.probe(self.deadline()).await),
            }
        })
    }
}
