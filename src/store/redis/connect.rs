//! Connections to one Redis server: made when needed, shared by many calls, replaced when spoilt.
//!
//! Takes a URL and gives a pool of [`Link`]s. Knows nothing of buckets. `deadpool_redis`'s own manager asks PING each
//! time a connection is handed out, which halves the throughput; this one trusts a connection until a call fails on it.

use super::RedisUrl;
use super::url::Address;
use arc_swap::ArcSwap;
use deadpool::managed::{Manager, Metrics, Pool, RecycleError, RecycleResult};
use deadpool_redis::redis::aio::{ConnectionLike as _, MultiplexedConnection, PubSub};
use deadpool_redis::redis::{
    self, AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value,
};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// How long connecting and signing in may take. It is longer than a call may take, since it goes on when the call that
/// wanted the connection has given up: a server that is slow to connect to is reached all the same.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How a connection does, known to all who hold a clone of it.
#[derive(Clone, Debug)]
pub(super) struct Pulse(Arc<Beats>);

#[derive(Debug)]
struct Beats {
    made: Instant,
    /// When a reply last came in while it was waited for, in microseconds since `made`.
    replied: AtomicU64,
    /// How long that one had been waited for, in microseconds.
    took: AtomicU64,
    spoilt: AtomicBool,
}

impl Pulse {
    /// Of a connection that has just been made.
    pub(super) fn new() -> Self {
        let (replied, took) = (AtomicU64::new(0), AtomicU64::new(0));
        Self(Arc::new(Beats { made: Instant::now(), replied, took, spoilt: AtomicBool::new(false) }))
    }

    /// Whether a reply has come in after this time.
    pub(super) fn replied_after(&self, time: Instant) -> bool {
        self.0.made + Duration::from_micros(self.0.replied.load(Ordering::Relaxed)) > time
    }

    /// How long the last reply was waited for. Replies come in the order of their commands, so the next will take about
    /// as long: what is in the way of one is in the way of the other.
    pub(super) fn last_took(&self) -> Duration {
        Duration::from_micros(self.0.took.load(Ordering::Relaxed))
    }

    /// Notes a reply to what was sent then.
    pub(super) fn replied(&self, sent: Instant) {
        let (now, micros) = (Instant::now(), |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        self.0.replied.store(micros(now - self.0.made), Ordering::Relaxed);
        self.0.took.store(micros(now - sent), Ordering::Relaxed);
    }

    /// Has the connection not be used again.
    pub(super) fn spoil(&self) {
        self.0.spoilt.store(true, Ordering::Relaxed);
    }

    fn is_spoilt(&self) -> bool {
        self.0.spoilt.load(Ordering::Relaxed)
    }
}

/// One connection, which many calls share: a clone sends on the same socket.
#[derive(Clone, Debug)]
pub(super) struct Link {
    connection: MultiplexedConnection,
    pulse: Pulse,
}

impl Link {
    pub(super) fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Sends a command and waits for its answer, without a time limit of its own.
    pub(super) async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let sent = Instant::now();
        let reply: Result<_, RedisError> = command.query_async(&mut self.connection).await;
        if reply.as_ref().err().is_none_or(|error| !error.is_io_error()) {
            self.pulse.replied(sent);
        }
        reply
    }

    /// Sends a command to a Cluster node that is about to get its slot from another.
    pub(super) async fn send_asking(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        // Both in one write, so that nobody else's command comes between.
        let mut both = Pipeline::with_capacity(2);
        both.cmd("ASKING").add_command(command.clone());
        let sent = Instant::now();
        let mut replies = self.connection.req_packed_commands(&both, 1, 1).await?;
        self.pulse.replied(sent);
        let missing = || RedisError::from((ErrorKind::UnexpectedReturnType, "no reply after ASKING"));
        replies.pop().ok_or_else(missing)?.extract_error()
    }
}

/// What a server must be to be of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Any,
    /// By its own word. What stands at the address of a former master may be a replica now.
    Master,
}

/// How servers are signed in to: user, password and certificates of a URL of which nothing else is used. It may change
/// while the process runs, and connections that stand go on.
#[derive(Clone, Debug)]
pub(super) struct Access(Arc<ArcSwap<RedisUrl>>);

impl Access {
    /// As this URL says.
    pub(super) fn of(url: &RedisUrl) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(url.clone())))
    }

    /// Has connections that are made from now on signed in as this URL says.
    pub(super) fn change(&self, url: &RedisUrl) {
        self.0.store(Arc::new(url.clone()));
    }
}

/// How a server is connected to.
#[derive(Clone, Debug)]
pub(super) struct Dial {
    /// Where it is.
    pub(super) url: RedisUrl,
    pub(super) access: Access,
    /// What CLIENT LIST on the server shows.
    pub(super) client_name: Arc<str>,
    pub(super) role: Role,
}

impl Dial {
    /// The same for another server.
    pub(super) fn at(&self, address: &Address) -> Self {
        Self { url: self.url.at(address), ..self.clone() }
    }

    /// The server's address with what it is signed in to with now.
    pub(super) fn current(&self) -> RedisUrl {
        self.url.signed_in_as(&self.access.0.load())
    }

    /// Connects and signs in.
    pub(super) async fn connect(self) -> Result<Link, RedisError> {
        self.in_time(self.connect_and_greet()).await
    }

    /// Bounds connecting. That it took too long is said as that, and not as a call that was not answered.
    async fn in_time<T>(&self, connecting: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
        let late = || std::io::Error::other(format!("not connected and signed in within {CONNECT_TIMEOUT:?}")).into();
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Err(error)) if error.is_timeout() => Err(late()),
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(late()),
        }
    }

    async fn connect_and_greet(&self) -> Result<Link, RedisError> {
        let client = Client::open(self.current().reveal())?;
        // The callers bound connecting and each call, so neither is timed a second time here.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut link = Link { connection, pulse: Pulse::new() };
        self.greet(&mut link).await?;
        Ok(link)
    }

    async fn greet(&self, link: &mut Link) -> Result<(), RedisError> {
        let name = link.send(redis::cmd("CLIENT").arg("SETNAME").arg(&*self.client_name)).await;
        // A user who may not give the connection a name may still use it.
        name.map(drop).or_else(|error| if error.is_io_error() { Err(error) } else { Ok(()) })?;
        if self.role == Role::Master && !says_master(&link.send(&redis::cmd("ROLE")).await?) {
            return Err((ErrorKind::Server(ServerErrorKind::ReadOnly), "is a replica, and no master any more").into());
        }
        Ok(())
    }

    /// Connects to listen to channels.
    pub(super) async fn listen(&self) -> Result<PubSub, RedisError> {
        let client = Client::open(self.current().reveal())?;
        self.in_time(client.get_async_pubsub()).await
    }
}

/// Whether the answer to ROLE is that of a master.
pub(super) fn says_master(role: &Value) -> bool {
    let Value::Array(parts) = role else { return false };
    matches!(parts.first(), Some(Value::BulkString(name)) if name == b"master")
}

/// A connection that one caller may take.
type Made = Arc<Mutex<Option<Link>>>;
type Attempt = Shared<BoxFuture<'static, Result<Made, RedisError>>>;

/// Makes connections for the pool.
pub(super) struct Connector {
    dial: Dial,
    /// The attempt to connect that is under way, which goes on when those who wait for it give up. So a server that
    /// does not answer is knocked at once at a time, however many calls come.
    attempt: Mutex<Option<Attempt>>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("dial", &self.dial).finish_non_exhaustive()
    }
}

impl Connector {
    /// The attempt that is under way or whose connection nobody took, else a new one.
    fn attempt(&self) -> Attempt {
        let mut attempt = self.attempt.lock();
        let of_use = |attempt: &&Attempt| match attempt.peek() {
            None => true,
            Some(Ok(made)) => made.lock().is_some(),
            Some(Err(_)) => false,
        };
        if let Some(attempt) = attempt.as_ref().filter(of_use) {
            return attempt.clone();
        }
        let dial = self.dial.clone();
        let begun = async move { Ok(Arc::new(Mutex::new(Some(dial.connect().await?)))) }.boxed().shared();
        // So it goes on without those who wait for it, and is known to have failed when nobody waited to the end.
        tokio::spawn(begun.clone());
        attempt.insert(begun).clone()
    }
}

impl Manager for Connector {
    type Type = Link;
    type Error = RedisError;

    async fn create(&self) -> Result<Link, RedisError> {
        loop {
            let made = self.attempt().await?;
            // Several places of the pool may have waited for one connection.
            if let Some(link) = made.lock().take() {
                return Ok(link);
            }
        }
    }

    async fn recycle(&self, link: &mut Link, _: &Metrics) -> RecycleResult<RedisError> {
        if link.pulse.is_spoilt() { Err(RecycleError::message("a call failed on it")) } else { Ok(()) }
    }
}

/// A pool of up to `size` connections, none of them made yet. Whoever takes a [`Link`] out clones it and puts it back
/// at once, so that only connecting ever makes others wait.
pub(super) fn links(dial: Dial, size: usize) -> Pool<Connector> {
    Pool::builder(Connector { dial, attempt: Mutex::new(None) })
        .max_size(size.max(1))
        .build()
        .expect("only a pool with timeouts of its own can fail to be built, for want of a runtime")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn an_attempt_that_failed_unheard_is_not_told_to_those_who_come_later() {
        // Nobody listens there any more.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let url: RedisUrl = format!("redis://127.0.0.1:{port}").parse().unwrap();
        let access = Access::of(&url);
        let dial = Dial { url, access, client_name: "test".into(), role: Role::Any };
        let connector = Connector { dial, attempt: Mutex::new(None) };
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let attempt = connector.attempt();
            assert!(attempt.ptr_eq(&connector.attempt()), "while it goes on, all share it");
            while attempt.peek().is_none() {
                tokio::task::yield_now().await;
            }
            assert!(attempt.peek().unwrap().is_err());
            assert!(!attempt.ptr_eq(&connector.attempt()));
        });
    }
}
