//! Follows the master that Redis Sentinel names, and leaves it as soon as it is no master any more.
//!
//! Each Sentinel is asked several times a second and listened to. What one says is believed when it is newer than what is
//! known, and when the server named says itself that it is a master. Takes the Sentinels' addresses and gives a [`Node`];
//! knows no buckets.
//!
//! Sentinel tells of a graceful failover when it is over, a second and more after the replica became a master; what is
//! written to the old one meanwhile is lost. So the replica that was selected is connected to beforehand, calls are held
//! for some milliseconds when it is told to become master, and go to it as soon as it says that it is one.

use super::RedisUrl;
use super::connect::{Dial, Link, Role, says_master};
use super::fault::{Failure, one_line};
use super::node::{CallLimits, Manner, Node, Request};
use super::script::Probe;
use crate::complaint::Complaint;
use deadpool_redis::redis::{self, ErrorKind, FromRedisValue as _, Msg, RedisError};
use futures_util::StreamExt as _;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// How often each Sentinel is asked who is master.
const POLL: Duration = Duration::from_millis(250);
/// How often the master is asked whether it still is one.
const ROLE_POLL: Duration = Duration::from_millis(500);
/// How long an answer of a Sentinel, or that of a server about its role, may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a Sentinel that failed is left alone.
const RETRY: Duration = Duration::from_millis(500);
/// How long calls are held for a replica that was told to become master, and how often it is asked meanwhile.
const HOLD: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(1));
/// How long it is asked after that, calls going to the old master again, and how often.
const PROMOTION: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(5));
/// How long after the start calls wait for the first master to be found, at least.
pub(super) const SEARCH: Duration = Duration::from_secs(1);

/// What a Sentinel says when it has chosen a replica, a tenth of a second before it tells it to become master.
const SELECTED: &str = "+selected-slave";
/// What a Sentinel says when it has told it, when it sees that it did, and when all is over.
const PROMOTED: [&str; 3] = ["+failover-state-wait-promotion", "+promoted-slave", "+switch-master"];

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    host: String,
    port: u16,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.host, self.port)
    }
}

/// What is heard from a Sentinel.
#[derive(Debug, PartialEq, Eq)]
enum News {
    /// Its view: the master, and the epoch of the configuration that made it so.
    Master(Place, u64),
    /// A replica that is to become the new master.
    Selected(Place),
    /// A server that is, or is about to be, the new master.
    Promoted(Place),
}

/// Where calls go.
#[derive(Clone, Debug)]
enum Direction {
    Unknown,
    To(Arc<Node>),
    /// Nowhere, for some milliseconds: this one is about to be left.
    Hold(Arc<Node>),
}

impl Direction {
    /// The master, even if it is about to be left.
    fn node(&self) -> Option<Arc<Node>> {
        match self {
            Self::Unknown => None,
            Self::To(node) | Self::Hold(node) => Some(node.clone()),
        }
    }
}

/// The master that the Sentinels name.
#[derive(Debug)]
pub(super) struct Sentinel {
    direction: watch::Receiver<Direction>,
    url: RedisUrl,
    why_unknown: Arc<Mutex<String>>,
    search_until: Instant,
    /// Ended with this.
    _tasks: JoinSet<()>,
}

impl Sentinel {
    /// Starts to follow. `access` is how masters are signed in to; its address is not used.
    pub(super) fn follow(sentinels: Vec<Dial>, name: String, access: Dial, limits: CallLimits, probe: Probe) -> Self {
        let (tell, hear) = mpsc::channel(16);
        let (direct, direction) = watch::channel(Direction::Unknown);
        let why_unknown = Arc::new(Mutex::new("none has answered yet".to_owned()));
        let url = sentinels.first().map_or_else(|| access.url.clone(), |sentinel| sentinel.url.clone());
        let mut tasks = JoinSet::new();
        for dial in sentinels {
            tasks.spawn(watch_sentinel(dial, name.clone(), tell.clone(), why_unknown.clone()));
        }
        let (why, complaint) = (why_unknown.clone(), Complaint::default());
        let follower =
            Follower { access, limits, probe, direct, current: None, demoted: false, selected: None, why, complaint };
        tasks.spawn(follower.run(hear));
        let search_until = Instant::now() + SEARCH.max(limits.timeout);
        Self { direction, url, why_unknown, search_until, _tasks: tasks }
    }

    /// The master if one is known.
    pub(super) fn known(&self) -> Option<Arc<Node>> {
        self.direction.borrow().node()
    }

    /// For messages, when no master is known.
    pub(super) fn url(&self) -> &RedisUrl {
        &self.url
    }

    /// The master. Calls wait for it, until their deadline, while it changes, and soon after the start.
    pub(super) async fn master(&self, deadline: Instant) -> Result<Arc<Node>, Failure> {
        let until = match &*self.direction.borrow() {
            Direction::To(node) => return Ok(node.clone()),
            Direction::Hold(_) => deadline,
            Direction::Unknown => deadline.min(self.search_until),
        };
        let mut direction = self.direction.clone();
        let directed = direction.wait_for(|direction| matches!(direction, Direction::To(_)));
        let directed = tokio::time::timeout_at(until, directed).await.ok().and_then(Result::ok);
        match directed.as_deref() {
            Some(Direction::To(node)) => Ok(node.clone()),
            _ if self.known().is_some() => Err(Failure::Timeout),
            _ => {
                let why = self.why_unknown.lock().unwrap_or_else(PoisonError::into_inner);
                Err(Failure::Nowhere(format!("no master is known from the sentinels: {why}")))
            }
        }
    }
}

/// Asks and listens to one Sentinel for ever.
async fn watch_sentinel(dial: Dial, name: String, tell: mpsc::Sender<News>, why: Arc<Mutex<String>>) {
    let complaint = Complaint::default();
    loop {
        let Err(error) = listen_to(&dial, &name, &tell).await;
        let error = dial.url.redact(one_line(&error));
        note(&why, format!("{}: {error}", dial.url));
        complaint.say(|more| tracing::warn!(sentinel = %dial.url, error, more, "a sentinel does not answer"));
        sleep(RETRY.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
    }
}

fn note(why: &Mutex<String>, text: String) {
    *why.lock().unwrap_or_else(PoisonError::into_inner) = text;
}

async fn listen_to(dial: &Dial, name: &str, tell: &mpsc::Sender<News>) -> Result<std::convert::Infallible, RedisError> {
    let mut link = dial.clone().connect().await?;
    let mut channels = dial.listen().await?;
    within(channels.subscribe(&[&PROMOTED[..], &[SELECTED]].concat())).await?;
    let mut events = channels.into_on_message();
    loop {
        let news = within(ask(&mut link, name)).await?;
        // The follower is gone only when this task is about to be.
        let _ = tell.send(news).await;
        tokio::select! {
            event = events.next() => {
                let event = event.ok_or_else(|| RedisError::from((ErrorKind::Io, "the sentinel closed the connection")))?;
                if let Some(news) = read_event(&event, name) {
                    let _ = tell.send(news).await;
                }
            }
            () = sleep(POLL) => {}
        }
    }
}

async fn within<T>(answer: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    let late = |_| RedisError::from((ErrorKind::Io, "no answer in time"));
    timeout(PATIENCE, answer).await.map_err(late)?
}

async fn ask(link: &mut Link, name: &str) -> Result<News, RedisError> {
    let reply = link.send(redis::cmd("SENTINEL").arg("MASTER").arg(name)).await?;
    let fields = HashMap::<String, String>::from_redis_value(reply)?;
    let odd = || RedisError::from((ErrorKind::UnexpectedReturnType, "no ip and port in the sentinel's answer"));
    let (host, port) = fields.get("ip").zip(fields.get("port")).ok_or_else(odd)?;
    let place = Place { host: host.clone(), port: port.parse().map_err(|_| odd())? };
    let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default();
    Ok(News::Master(place, epoch))
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
    let place = Place { host: (*host).to_owned(), port: port.parse().ok()? };
    let news = if channel == SELECTED { News::Selected(place) } else { News::Promoted(place) };
    (*master == name).then_some(news)
}

/// Decides which server is the master.
struct Follower {
    access: Dial,
    limits: CallLimits,
    probe: Probe,
    direct: watch::Sender<Direction>,
    current: Option<(Place, u64)>,
    /// Whether the current one said that it is no master any more.
    demoted: bool,
    /// A connection to the replica that was chosen to be the next.
    selected: Option<(Place, Link)>,
    why: Arc<Mutex<String>>,
    complaint: Complaint,
}

impl Follower {
    async fn run(mut self, mut hear: mpsc::Receiver<News>) {
        let mut role = tokio::time::interval(ROLE_POLL);
        role.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                news = hear.recv() => match news {
                    Some(news) => self.consider(news).await,
                    None => return,
                },
                _ = role.tick() => self.check_role().await,
            }
        }
    }

    async fn consider(&mut self, news: News) {
        let epoch = self.current.as_ref().map_or(0, |(_, epoch)| *epoch);
        let is_current = |place: &Place| self.current.as_ref().is_some_and(|(current, _)| current == place);
        match news {
            News::Master(place, newer) if is_current(&place) => self.current = Some((place, epoch.max(newer))),
            News::Master(place, newer) if newer > epoch || self.demoted || self.current.is_none() => {
                if let Some(node) = self.master_at(&place).await {
                    self.adopt(node, place, newer);
                }
            }
            News::Selected(place) if !is_current(&place) => {
                let link = self.any_at(&place).connect().await.ok();
                self.selected = link.map(|link| (place, link));
            }
            News::Promoted(place) if !is_current(&place) => {
                if let Some(node) = self.promoted(&place).await {
                    // Sentinels that have not heard yet name the old one, under an older epoch.
                    self.adopt(node, place, epoch + 1);
                }
            }
            News::Master(..) | News::Selected(_) | News::Promoted(_) => {}
        }
    }

    fn adopt(&mut self, node: Arc<Node>, place: Place, epoch: u64) {
        let old = self.current.replace((place, epoch));
        let was = old.map_or("none".to_owned(), |(place, _)| place.to_string());
        tracing::info!(master = %node.url(), was, epoch, "following the master that the sentinels name");
        self.demoted = false;
        self.direct.send_replace(Direction::To(node));
    }

    /// The server at a place, connected to, if it says that it is a master.
    async fn master_at(&self, place: &Place) -> Option<Arc<Node>> {
        let node = Node::new(self.access.at(&place.host, place.port), self.limits, self.probe.clone());
        let why = match ask_role(&node).await {
            Ok(role) if says_master(&role) => return Some(node),
            Ok(_) => format!("{place} is named, and says itself that it is a replica"),
            Err(failure) => format!("{place} is named: {}", failure.told(node.url(), PATIENCE)),
        };
        self.complaint.say(|more| tracing::warn!(why, more, "the master that the sentinels name cannot be used"));
        note(&self.why, why);
        None
    }

    /// The server at a place, in whatever role.
    fn any_at(&self, place: &Place) -> Dial {
        Dial { role: Role::Any, ..self.access.at(&place.host, place.port) }
    }

    /// Waits until a replica that was told to become a master is one. At first calls are held: what they write to the
    /// old master from now on would be lost.
    async fn promoted(&mut self, place: &Place) -> Option<Arc<Node>> {
        let known = match self.selected.take() {
            Some((selected, link)) if selected == *place => Some(link),
            _ => self.any_at(place).connect().await.ok(),
        };
        let mut link = known?;
        let old = self.direct.borrow().node().filter(|old| !old.breaker_is_open());
        if let Some(old) = &old {
            self.direct.send_replace(Direction::Hold(old.clone()));
        }
        let mut node = None;
        if becomes_master(&mut link, HOLD).await {
            node = timeout(HOLD.0, self.master_at(place)).await.ok().flatten();
        }
        // Whoever was held must not wait for longer, whatever became of it.
        if let Some(old) = old.filter(|_| node.is_none()) {
            self.direct.send_replace(Direction::To(old));
        }
        if node.is_none() && becomes_master(&mut link, PROMOTION).await {
            node = self.master_at(place).await;
        }
        node
    }

    /// A server that was demoted may be followed by one of any epoch.
    async fn check_role(&mut self) {
        let Some(node) = self.direct.borrow().node() else { return };
        let demoted = match ask_role(&node).await {
            Ok(role) => !says_master(&role),
            // It does not answer, which the breaker deals with; or it was connected to anew and said that it is a replica.
            Err(failure) => failure.is_read_only(),
        };
        if demoted && !self.demoted {
            tracing::warn!(master = %node.url(), "the master is a replica now: looking for its successor");
        }
        self.demoted = demoted;
    }
}

/// Asks a server for its role until it is a master. False when it does not become one in time.
async fn becomes_master(link: &mut Link, (longest, step): (Duration, Duration)) -> bool {
    let watching = async {
        while !says_master(&link.send(&redis::cmd("ROLE")).await?) {
            sleep(step).await;
        }
        Ok::<_, RedisError>(())
    };
    timeout(longest, watching).await.is_ok_and(|watched| watched.is_ok())
}

async fn ask_role(node: &Node) -> Result<redis::Value, Failure> {
    node.attempt(Request::Command(&redis::cmd("ROLE")), Manner::Plain, Instant::now() + PATIENCE).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_the_master_that_is_followed_are_read_and_others_are_not() {
        let promoted = |host: &str, port| Some(News::Promoted(Place { host: host.to_owned(), port }));
        let read = |channel, payload| read_payload(channel, payload, "mymaster");
        assert_eq!(read("+switch-master", "mymaster 10.0.0.1 6379 10.0.0.2 6380"), promoted("10.0.0.2", 6380));
        assert_eq!(read("+switch-master", "other 10.0.0.1 6379 10.0.0.2 6380"), None);
        let replica = "slave 10.0.0.2:6380 10.0.0.2 6380 @ mymaster 10.0.0.1 6379";
        assert_eq!(read("+promoted-slave", replica), promoted("10.0.0.2", 6380));
        let selected = Place { host: "10.0.0.2".to_owned(), port: 6380 };
        assert_eq!(read("+selected-slave", replica), Some(News::Selected(selected)));
        assert_eq!(read("+promoted-slave", "slave a a x @ mymaster b 1"), None);
        assert_eq!(read("+failover-state-wait-promotion", "slave a fe80::1 7 @ mymaster b 1"), promoted("fe80::1", 7));
        assert_eq!(read("+switch-master", ""), None);
    }
}
