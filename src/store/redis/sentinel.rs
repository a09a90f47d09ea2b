//! Follows the master that Redis Sentinel names, and leaves it as soon as it is no master any more.
//!
//! Each Sentinel is asked several times a second and listened to. What one says is believed when it is newer than what is
//! known, and when the server named says itself that it is a master. It may be older when the present master says that it
//! is a replica now; or when that is silent and most Sentinels say it, as when they were told to watch another server
//! (SENTINEL REMOVE and MONITOR), which begins anew with the epochs. Takes the Sentinels' addresses and gives a [`Node`];
//! knows no buckets.
//!
//! Sentinel tells of a graceful failover when it is over, a second and more after the replica became a master; what is
//! written to the old one meanwhile is lost. So the promotion is watched from the moment it is announced, and calls are
//! held for some milliseconds then, until they can go to the new master.

use super::connect::{Dial, Link, Role, says_master};
use super::fault::{Failure, one_line};
use super::node::{CallLimits, Manner, Node, Request};
use super::script::Probe;
use super::url::Address;
use super::{SEARCH, jittered};
use crate::complaint::Complaint;
use crate::store::StoreError;
use deadpool_redis::redis::{self, ErrorKind, FromRedisValue as _, Msg, RedisError};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// How often each Sentinel is asked who is master.
const POLL: Duration = Duration::from_millis(250);
/// How long after its last answer the master is asked whether it still is one.
const ROLE_POLL: Duration = Duration::from_millis(500);
/// How long an answer of a Sentinel, or that of a server about its role, may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a Sentinel that failed is left alone.
const RETRY: Duration = Duration::from_millis(500);
/// How long a replica that is to be promoted is watched, and how often it is asked.
const PROMOTION: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(1));
/// How long calls are held for a replica that was told to become a master. It does so within a millisecond or two; a
/// call has `redis.timeout` in all.
const HOLD: Duration = Duration::from_millis(20);

/// What a Sentinel says when it has told a replica to become master, when it sees that it did, and when all is over.
const EVENTS: [&str; 3] = ["+failover-state-wait-promotion", "+promoted-slave", "+switch-master"];

/// What is heard from a Sentinel.
#[derive(Debug, PartialEq, Eq)]
enum News {
    /// Its view: the master, and the epoch of the configuration that made it so. `from`: its number among the Sentinels.
    Master { from: usize, address: Address, epoch: u64 },
    /// A server that is, or is about to be, the new master.
    Promoted(Address),
}

/// Where calls go.
#[derive(Clone, Debug)]
enum Direction {
    Unknown,
    To(Arc<Node>),
    /// Nowhere for the moment, as this one is about to be left; and to it after all, when nothing came of that.
    Hold {
        leaving: Arc<Node>,
        until: Instant,
    },
}

impl Direction {
    /// The master, even if it is about to be left.
    fn node(&self) -> Option<&Arc<Node>> {
        match self {
            Self::Unknown => None,
            Self::To(node) | Self::Hold { leaving: node, .. } => Some(node),
        }
    }
}

/// The master that the Sentinels name.
#[derive(Debug)]
pub(super) struct Sentinel {
    direction: watch::Receiver<Direction>,
    timeout: Duration,
    why_unknown: Arc<Mutex<String>>,
    search_until: Instant,
    /// Ended with this.
    _tasks: JoinSet<()>,
}

impl Sentinel {
    /// Starts to follow. `access` is how masters are signed in to; its address is not used.
    pub(super) fn follow(sentinels: Vec<Dial>, name: String, access: Dial, limits: CallLimits, probe: Probe) -> Self {
        // What a Sentinel says while the follower is busy waits with that Sentinel, so that nothing old queues up.
        let (tell, hear) = mpsc::channel(1);
        let (direct, direction) = watch::channel(Direction::Unknown);
        let why_unknown = Arc::new(Mutex::new("none has answered yet".to_owned()));
        let follower = Follower {
            access,
            limits,
            probe,
            direct,
            current: None,
            standing: Standing::Master,
            named: vec![None; sentinels.len()],
            errands: JoinSet::new(),
            why: why_unknown.clone(),
            complaint: Complaint::default(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(follower.run(hear));
        for (number, dial) in sentinels.into_iter().enumerate() {
            let watcher = Watcher { number, dial, master: name.clone(), tell: tell.clone() };
            tasks.spawn(watcher.run(why_unknown.clone()));
        }
        let search_until = Instant::now() + SEARCH.max(limits.timeout);
        Self { direction, timeout: limits.timeout, why_unknown, search_until, _tasks: tasks }
    }

    /// The master if one is known.
    pub(super) fn known(&self) -> Option<Arc<Node>> {
        self.direction.borrow().node().cloned()
    }

    /// The master. Calls wait for it, until their deadline, while it changes, and soon after the start.
    pub(super) async fn master(&self, deadline: Instant) -> Result<Arc<Node>, StoreError> {
        let (until, otherwise) = match &*self.direction.borrow() {
            Direction::To(node) => return Ok(node.clone()),
            Direction::Hold { leaving, until } if *until <= Instant::now() => return Ok(leaving.clone()),
            Direction::Hold { leaving, until } => (*until, Some(leaving.clone())),
            Direction::Unknown => (self.search_until, None),
        };
        let mut direction = self.direction.clone();
        let directed = direction.wait_for(|direction| matches!(direction, Direction::To(_)));
        let directed = tokio::time::timeout_at(until.min(deadline), directed).await.ok().and_then(Result::ok);
        match directed.as_ref().and_then(|direction| direction.node()).cloned().or(otherwise) {
            // Sent with no time left, it could only be carried out too late.
            Some(_) if Instant::now() >= deadline => Err(StoreError::Timeout(self.timeout)),
            Some(node) => Ok(node),
            None => {
                let why = self.why_unknown.lock();
                Err(StoreError::Connection(format!("no master is known from the sentinels: {why}")))
            }
        }
    }
}

/// Asks and listens to one Sentinel.
struct Watcher {
    /// Its number among the Sentinels.
    number: usize,
    dial: Dial,
    /// The name under which it knows the master.
    master: String,
    tell: mpsc::Sender<News>,
}

impl Watcher {
    /// For ever. Why the Sentinel cannot be asked is told in `why`.
    async fn run(self, why: Arc<Mutex<String>>) {
        let complaint = Complaint::default();
        loop {
            let Err(error) = self.listen().await;
            let error = self.dial.current().redact(one_line(&error));
            *why.lock() = format!("{}: {error}", self.dial.url);
            complaint.say(|more| tracing::warn!(sentinel = %self.dial.url, error, more, "a sentinel does not answer"));
            sleep(jittered(RETRY)).await;
        }
    }

    async fn listen(&self) -> Result<std::convert::Infallible, RedisError> {
        let mut link = self.dial.clone().connect().await?;
        let mut channels = self.dial.listen().await?;
        within(channels.subscribe(&EVENTS[..])).await?;
        let mut events = channels.into_on_message();
        loop {
            let (address, epoch) = within(ask(&mut link, &self.master)).await?;
            // The follower is gone only when this task is about to be.
            let _ = self.tell.send(News::Master { from: self.number, address, epoch }).await;
            tokio::select! {
                event = events.next() => {
                    let closed = || RedisError::from((ErrorKind::Io, "the sentinel closed the connection"));
                    if let Some(news) = read_event(&event.ok_or_else(closed)?, &self.master) {
                        let _ = self.tell.send(news).await;
                    }
                }
                () = sleep(POLL) => {}
            }
        }
    }
}

async fn within<T>(answer: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    let late = |_| RedisError::from((ErrorKind::Io, "no answer in time"));
    timeout(PATIENCE, answer).await.map_err(late)?
}

/// The master, and the epoch of the configuration that made it so.
async fn ask(link: &mut Link, name: &str) -> Result<(Address, u64), RedisError> {
    let reply = link.send(redis::cmd("SENTINEL").arg("MASTER").arg(name)).await?;
    let fields = HashMap::<String, String>::from_redis_value(reply)?;
    let odd = || RedisError::from((ErrorKind::UnexpectedReturnType, "no ip and port in the sentinel's answer"));
    let (host, port) = fields.get("ip").zip(fields.get("port")).ok_or_else(odd)?;
    let address = Address { host: host.clone(), port: port.parse().map_err(|_| odd())? };
    let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default();
    Ok((address, epoch))
}

fn read_event(event: &Msg, name: &str) -> Option<News> {
    let payload = event.get_payload::<String>().ok()?;
    read_payload(event.get_channel_name(), &payload, name)
}

/// Reads `<master> <old ip> <old port> <ip> <port>`, or `slave <name> <ip> <port> @ <master> <ip> <port>`.
fn read_payload(channel: &str, payload: &str, name: &str) -> Option<News> {
    let words: Vec<&str> = payload.split(' ').collect();
    let (master, host, port) = match (channel, words.as_slice()) {
        ("+switch-master", [master, _, _, host, port]) => (master, host, port),
        (_, ["slave", _, host, port, "@", master, ..]) => (master, host, port),
        _ => return None,
    };
    let address = Address { host: (*host).to_owned(), port: port.parse().ok()? };
    (*master == name).then_some(News::Promoted(address))
}

/// What the server that is followed said last of its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Master,
    /// It is no master any more.
    Demoted,
    /// Nothing: it did not answer.
    Silent,
}

/// What was found out while the Sentinels were listened to.
enum Seen {
    Role(Arc<Node>, Standing),
    Promoted(Address),
    /// Not in the time that it was watched.
    NotPromoted,
}

/// Decides which server is the master.
struct Follower {
    access: Dial,
    limits: CallLimits,
    probe: Probe,
    direct: watch::Sender<Direction>,
    current: Option<(Address, u64)>,
    standing: Standing,
    /// What each Sentinel named last.
    named: Vec<Option<Address>>,
    /// Whatever takes its time: no news wait for it.
    errands: JoinSet<Seen>,
    why: Arc<Mutex<String>>,
    complaint: Complaint,
}

impl Follower {
    async fn run(mut self, mut hear: mpsc::Receiver<News>) {
        loop {
            tokio::select! {
                // What was found out is seldom, and newer than what waits to be heard.
                biased;
                Some(Ok(seen)) = self.errands.join_next() => self.learn(seen).await,
                news = hear.recv() => match news {
                    Some(news) => self.consider(news).await,
                    None => return,
                },
            }
        }
    }

    async fn consider(&mut self, news: News) {
        match news {
            News::Master { from, address, epoch } => {
                self.named[from] = Some(address.clone());
                if let Some((_, known)) = self.current.as_mut().filter(|(current, _)| *current == address) {
                    *known = epoch.max(*known);
                } else if self.leaves_for(&address, epoch) {
                    self.try_to_follow(address, epoch).await;
                }
            }
            News::Promoted(address) if !self.is_current(&address) => {
                self.hold();
                let dial = Dial { role: Role::Any, ..self.access.at(&address) };
                self.errands.spawn(watch_promotion(dial, address));
            }
            News::Promoted(_) => {}
        }
    }

    async fn learn(&mut self, seen: Seen) {
        match seen {
            Seen::Role(node, standing)
                if self.direct.borrow().node().is_some_and(|known| Arc::ptr_eq(known, &node)) =>
            {
                if standing == Standing::Demoted && self.standing != Standing::Demoted {
                    tracing::warn!(master = %node.url(), "the master is a replica now: looking for its successor");
                }
                self.standing = standing;
                self.errands.spawn(watch_role(node));
            }
            Seen::Promoted(address) if !self.is_current(&address) => {
                // Sentinels that have not heard yet name the old one, under an older epoch.
                let epoch = self.current.as_ref().map_or(0, |(_, epoch)| epoch + 1);
                self.try_to_follow(address, epoch).await;
            }
            Seen::Role(..) | Seen::Promoted(_) | Seen::NotPromoted => {}
        }
    }

    /// Lets no call go to the present master for a moment: what it wrote there would be lost. One that does not answer
    /// holds up nobody.
    fn hold(&self) {
        let now = Instant::now();
        let leaving = match &*self.direct.borrow() {
            Direction::To(node) => node.clone(),
            Direction::Hold { leaving, until } if *until <= now => leaving.clone(),
            Direction::Hold { .. } | Direction::Unknown => return,
        };
        if !leaving.breaker_is_open() {
            self.direct.send_replace(Direction::Hold { leaving, until: now + HOLD });
        }
    }

    fn is_current(&self, address: &Address) -> bool {
        self.current.as_ref().is_some_and(|(current, _)| current == address)
    }

    /// Whether the word of a Sentinel for another server is to be believed.
    fn leaves_for(&self, address: &Address, epoch: u64) -> bool {
        let Some((_, known)) = &self.current else { return true };
        let named_by = || self.named.iter().flatten().filter(|named| *named == address).count();
        epoch > *known
            || match self.standing {
                Standing::Master => false,
                Standing::Demoted => true,
                Standing::Silent => 2 * named_by() > self.named.len(),
            }
    }

    /// Follows the server at a address, connected to, if it says that it is a master.
    async fn try_to_follow(&mut self, address: Address, epoch: u64) {
        let node = Node::new(self.access.at(&address), self.limits, self.probe.clone());
        let why = match ask_role(&node).await {
            Ok(role) if says_master(&role) => return self.adopt(node, address, epoch),
            Ok(_) => format!("{address} is named, and says itself that it is a replica"),
            Err(failure) => format!("{address} is named: {}", failure.told(node.url(), PATIENCE)),
        };
        self.complaint.say(|more| tracing::warn!(why, more, "the master that the sentinels name cannot be used"));
        *self.why.lock() = why;
    }

    fn adopt(&mut self, node: Arc<Node>, address: Address, epoch: u64) {
        let old = self.current.replace((address, epoch));
        let was = old.map_or("none".to_owned(), |(address, _)| address.to_string());
        tracing::info!(master = %node.url(), was, epoch, "following the master that the sentinels name");
        self.standing = Standing::Master;
        self.errands.spawn(watch_role(node.clone()));
        self.direct.send_replace(Direction::To(node));
    }
}

async fn ask_role(node: &Node) -> Result<redis::Value, Failure> {
    node.attempt(Request::Command(&redis::cmd("ROLE")), Manner::Plain, Instant::now() + PATIENCE).await
}

/// Asks the server that is followed, after a while, for its role.
async fn watch_role(node: Arc<Node>) -> Seen {
    sleep(ROLE_POLL).await;
    let standing = match ask_role(&node).await {
        Ok(role) if says_master(&role) => Standing::Master,
        Ok(_) => Standing::Demoted,
        // It was connected to anew, and said that it is a replica.
        Err(failure) if failure.is_read_only() => Standing::Demoted,
        // Calls to it are the breaker's affair.
        Err(_) => Standing::Silent,
    };
    Seen::Role(node, standing)
}

/// Waits until a replica that was told to become a master is one.
async fn watch_promotion(dial: Dial, address: Address) -> Seen {
    let (longest, step) = PROMOTION;
    let watching = async {
        // When a Sentinel promotes a server it has it close its connections, and this may be one of them.
        while until_master(&dial, step).await.is_err() {
            sleep(step).await;
        }
    };
    match timeout(longest, watching).await {
        Ok(()) => Seen::Promoted(address),
        Err(_) => Seen::NotPromoted,
    }
}

async fn until_master(dial: &Dial, step: Duration) -> Result<(), RedisError> {
    let mut link = dial.clone().connect().await?;
    while !says_master(&link.send(&redis::cmd("ROLE")).await?) {
        sleep(step).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_the_master_that_is_followed_are_read_and_others_are_not() {
        let promoted = |host: &str, port| Some(News::Promoted(Address { host: host.to_owned(), port }));
        let read = |channel, payload| read_payload(channel, payload, "mymaster");
        assert_eq!(read("+switch-master", "mymaster 10.0.0.1 6379 10.0.0.2 6380"), promoted("10.0.0.2", 6380));
        assert_eq!(read("+switch-master", "other 10.0.0.1 6379 10.0.0.2 6380"), None);
        let replica = "slave 10.0.0.2:6380 10.0.0.2 6380 @ mymaster 10.0.0.1 6379";
        assert_eq!(read("+promoted-slave", replica), promoted("10.0.0.2", 6380));
        assert_eq!(read("+promoted-slave", "slave a a x @ mymaster b 1"), None);
        assert_eq!(read("+failover-state-wait-promotion", "slave a fe80::1 7 @ mymaster b 1"), promoted("fe80::1", 7));
        assert_eq!(read("+switch-master", ""), None);
    }
}
