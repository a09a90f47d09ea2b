//! One Redis server as the store sees it: its connections, and all that keeps a bad one from hurting.
//!
//! Every call has a deadline, only so many calls are on their way at once, and a breaker keeps calls from a server that
//! failed several times in a row. Takes requests and gives replies; knows no buckets, and no other server.

use super::breaker::Breaker;
use super::connect::{self, Connector, Dial, Link, Pulse};
use super::fault::{Failure, is_no_script};
use super::jittered;
use super::script::{Probe, Run};
use super::url::RedisUrl;
use crate::complaint::Complaint;
use crate::store::StoreError;
use deadpool::managed::{Pool, PoolError};
use deadpool_redis::redis::{Cmd, ErrorKind, RedisError, Value};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// A process that comes so much later than asked to be woken has more to do than it can: what it did not see in time
/// tells nothing of others.
const OWN_DELAY: Duration = Duration::from_millis(5);

/// How calls to one server are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// Bounds a whole call, waiting for a connection included.
    pub timeout: Duration,
    /// Connections, at least 1. One is shared by all calls and is enough to saturate a server.
    pub pool_size: usize,
    /// Calls on their way at once, at least 1; others wait, for half of `timeout` at most. It bounds what a server that
    /// hangs may still carry out, and charge, when it wakes.
    pub max_in_flight: usize,
    /// Failures in a row after which a server is not asked any more, at least 1.
    pub breaker_failures: u32,
    /// How often such a server is probed.
    pub probe_interval: Duration,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(50),
            pool_size: 1,
            max_in_flight: 512,
            breaker_failures: 5,
            probe_interval: Duration::from_millis(250),
        }
    }
}

/// A call that waited so long when it was given up makes a server suspicious. Clients that come and go make none: an
/// answer takes less.
const SUSPICIOUS: Duration = Duration::from_millis(5);

/// What is asked of a server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request<'a> {
    Command(&'a Cmd),
    /// A script, by its digest, and by its text where the server does not know it.
    Script(&'a Run<'a>),
}

/// Whether a Cluster node is told that it is about to get the slot (see ASKING).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    Plain,
    Asking,
}

impl Request<'_> {
    async fn send(self, link: &mut Link, manner: Manner) -> Result<Value, RedisError> {
        let mut send = async |command: &Cmd| match manner {
            Manner::Plain => link.send(command).await,
            Manner::Asking => link.send_asking(command).await,
        };
        match self {
            Self::Command(command) => send(command).await,
            Self::Script(run) => match send(&run.by_digest()).await {
                Err(error) if is_no_script(&error) => send(&run.by_text()).await,
                reply => reply,
            },
        }
    }
}

/// One server.
#[derive(Debug)]
pub(super) struct Node {
    dial: Dial,
    links: Pool<Connector>,
    limits: CallLimits,
    /// One for each call that may be on its way.
    places: Semaphore,
    breaker: Breaker,
    /// A server that hangs and answers by turns opens the breaker many times a second.
    openings: Complaint,
    probe: Mutex<Probe>,
    /// Whether somebody is finding out what a call that was given up did not tell.
    asking_after: AtomicBool,
}

impl Node {
    /// A server that is connected to when it is first asked.
    pub(super) fn new(dial: Dial, limits: CallLimits, probe: Probe) -> Arc<Self> {
        let links = connect::links(dial.clone(), limits.pool_size);
        let breaker = Breaker::new(limits.breaker_failures);
        Arc::new(Self {
            dial,
            links,
            limits,
            places: Semaphore::new(limits.max_in_flight),
            breaker,
            openings: Complaint::default(),
            probe: Mutex::new(probe),
            asking_after: AtomicBool::new(false),
        })
    }

    /// Has the server probed in another slot, unless `owns` is true of the present one: in a slot of another's, all it
    /// says is that.
    pub(super) fn probe_in_slot(&self, key_prefix: &str, owns: impl Fn(u16) -> bool) {
        let mut probe = self.probe.lock();
        if !owns(probe.slot()) {
            *probe = probe.in_slot(key_prefix, owns);
        }
    }

    #[cfg(test)]
    pub(super) fn probe_slot(&self) -> u16 {
        self.probe.lock().slot()
    }

    pub(super) fn url(&self) -> &RedisUrl {
        &self.dial.url
    }

    pub(super) fn breaker_is_open(&self) -> bool {
        self.breaker.is_open()
    }

    /// Calls on their way.
    pub(super) fn in_flight(&self) -> usize {
        self.limits.max_in_flight.saturating_sub(self.places.available_permits())
    }

    /// Connections that stand.
    pub(super) fn connections(&self) -> usize {
        self.links.status().size
    }

    /// Asks, unless the breaker is open. Ends by `deadline`.
    pub(super) async fn call(
        self: &Arc<Self>,
        request: Request<'_>,
        manner: Manner,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        self.unless_open()?;
        let place = self.take_place(deadline).await?;
        // Of those that waited for a place, some were overtaken by the failures of others.
        self.unless_open()?;
        let call = Call { node: self, deadline, judged: false, _place: place };
        let outcome = self.attempt(request, manner, deadline).await;
        call.end(&outcome);
        outcome
    }

    /// As [`Node::call`], in the words of the port.
    pub(super) async fn ask(self: &Arc<Self>, request: Request<'_>, deadline: Instant) -> Result<Value, StoreError> {
        self.call(request, Manner::Plain, deadline).await.map_err(|failure| self.told(&failure))
    }

    /// A failure of a call, in the words of the port.
    pub(super) fn told(&self, failure: &Failure) -> StoreError {
        match failure {
            // What the server says is searched for the password of now.
            Failure::Redis(_) => failure.told(&self.dial.current(), self.limits.timeout),
            _ => failure.told(self.url(), self.limits.timeout),
        }
    }

    /// Asks, whatever the breaker says, and tells the breaker nothing.
    ///
    /// A connection that failed, or did not answer in time, is not handed out again: Redis may have closed it, hung, or
    /// moved to another address. It is kept when it answered others within such a time, or when this process was late
    /// itself and may have left the answer unread: then there are more calls than are answered in time.
    pub(super) async fn attempt(
        &self,
        request: Request<'_>,
        manner: Manner,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let mut used = None;
        let answer = async {
            let mut link = self.links.get().await.map_err(connecting)?.clone();
            let pulse = link.pulse();
            if self.comes_too_late(&pulse, deadline) {
                return Err(Failure::Overloaded);
            }
            used = Some(pulse);
            request.send(&mut link, manner).await.map_err(Failure::from)
        };
        let answer = tokio::time::timeout_at(deadline, answer).await;
        let Some(pulse) = used else {
            return answer.unwrap_or(Err(Failure::Timeout));
        };
        // A call that waited for its place had less time than the server is allowed to be silent for.
        let answers_others = || deadline.checked_sub(self.limits.timeout).is_none_or(|sent| pulse.replied_after(sent));
        let outcome = answer.unwrap_or_else(|_elapsed| {
            let late = answers_others() || Instant::now() > deadline + OWN_DELAY;
            Err(if late { Failure::Late } else { Failure::Timeout })
        });
        if outcome.as_ref().is_err_and(Failure::spoils_connection) {
            pulse.spoil();
        }
        outcome
    }

    /// Whether a command that is sent now is likely to be answered after the deadline, and so to be carried out, and
    /// charged, for nobody. Sent all the same, such commands would make all that follow late as well, and a Redis that is
    /// asked for somewhat more than it can do would do nothing of use.
    fn comes_too_late(&self, pulse: &Pulse, deadline: Instant) -> bool {
        let now = Instant::now();
        // What was seen longer ago tells nothing of now.
        let recent = now.checked_sub(self.limits.timeout).is_none_or(|earliest| pulse.replied_after(earliest));
        recent && now + pulse.last_took() > deadline
    }

    fn unless_open(&self) -> Result<(), Failure> {
        if self.breaker.is_open() { Err(Failure::BreakerOpen) } else { Ok(()) }
    }

    /// Waits, if need be, until one of the calls on their way has ended: for half the time at most, as the other half is
    /// needed for the answer.
    async fn take_place(&self, deadline: Instant) -> Result<SemaphorePermit<'_>, Failure> {
        if let Ok(place) = self.places.try_acquire() {
            return Ok(place);
        }
        let latest = deadline.checked_sub(self.limits.timeout / 2).unwrap_or(deadline);
        let waiting = tokio::time::timeout_at(latest, self.places.acquire()).await;
        // A place that becomes free as the time runs out is for those who came later.
        let in_time = |_: &SemaphorePermit<'_>| Instant::now() < latest;
        waiting.ok().and_then(Result::ok).filter(in_time).ok_or(Failure::Overloaded)
    }

    fn judge(self: &Arc<Self>, outcome: &Result<Value, Failure>) {
        match outcome {
            Err(failure) if failure.tells_against_server() => {
                if self.breaker.failed() {
                    let (redis, why) = (self.url(), self.told(failure));
                    let said = self.openings.say(|more| {
                        tracing::warn!(%redis, %why, more, "the breaker opened: not asked until a probe succeeds");
                    });
                    self.watch(said, why);
                }
            }
            _ => self.breaker.answered(),
        }
    }

    /// Probes, at once and then again and again, until the server does what a check needs; then closes the breaker. Its
    /// end is said if its beginning was, and that is said late if it lasts.
    fn watch(self: &Arc<Self>, mut said: bool, why: StoreError) {
        let (node, interval) = (Arc::downgrade(self), self.limits.probe_interval);
        tokio::spawn(async move {
            // A node that nobody holds any more was replaced by another.
            while let Some(node) = node.upgrade() {
                let redis = node.url();
                if node.is_well().await {
                    node.breaker.close();
                    if said {
                        tracing::info!(%redis, "the breaker closed: a probe succeeded");
                    }
                    return;
                }
                said = said || node.openings.say_late(|more| {
                    tracing::warn!(%redis, %why, more, "the breaker is open again: not asked until a probe succeeds");
                });
                drop(node);
                tokio::time::sleep(jittered(interval)).await;
            }
        });
    }

    /// Whether a take of nothing works. A Cluster node that sends the probe elsewhere is well too.
    async fn is_well(&self) -> bool {
        let (probe, deadline) = (self.probe.lock().clone(), Instant::now() + self.limits.timeout);
        match self.attempt(Request::Script(&probe.run()), Manner::Plain, deadline).await {
            Ok(_) => true,
            Err(failure) => !failure.tells_against_server(),
        }
    }

    /// A take of nothing, as a check would make it.
    pub(super) async fn probe(self: &Arc<Self>) -> Result<(), Failure> {
        let (probe, deadline) = (self.probe.lock().clone(), Instant::now() + self.limits.timeout);
        self.call(Request::Script(&probe.run()), Manner::Plain, deadline).await.map(drop)
    }

    /// Asks, until the deadline, in place of a call that was given up before: callers that always give up sooner than a
    /// hung server is known to hang would else never have the breaker opened, and pile up on a connection for ever.
    fn ask_after(self: &Arc<Self>) {
        // There is no runtime any more when the calls that it ran are dropped with it.
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.breaker.is_open() && !self.asking_after.swap(true, Ordering::Relaxed) {
            let node = self.clone();
            runtime.spawn(async move {
                // What it says is the breaker's to hear.
                let _ = node.probe().await;
                node.asking_after.store(false, Ordering::Relaxed);
            });
        }
    }
}

fn connecting(error: PoolError<RedisError>) -> Failure {
    match error {
        PoolError::Backend(error) => error.into(),
        other => RedisError::from((ErrorKind::Client, "no connection", other.to_string())).into(),
    }
}

/// A call on its way.
struct Call<'a> {
    node: &'a Arc<Node>,
    deadline: Instant,
    judged: bool,
    _place: SemaphorePermit<'a>,
}

impl Call<'_> {
    fn end(mut self, outcome: &Result<Value, Failure>) {
        self.judged = true;
        self.node.judge(outcome);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.judged {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if self.node.limits.timeout.saturating_sub(left) >= SUSPICIOUS {
                self.node.ask_after();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::super::connect::{Access, Role};
    use super::*;

    #[tokio::test]
    async fn a_command_that_would_be_answered_after_the_deadline_is_not_sent() {
        let seconds = Duration::from_secs;
        let url: RedisUrl = "redis://127.0.0.1:1".parse().unwrap();
        let access = Access::of(&url);
        let dial = Dial { url, access, client_name: "tidegate".into(), role: Role::Any };
        let limits = CallLimits { timeout: seconds(100), ..CallLimits::default() };
        let node = Node::new(dial, limits, Probe::new("rl:"));
        let (pulse, now) = (Pulse::new(), Instant::now());
        assert!(!node.comes_too_late(&pulse, now + seconds(1)), "nothing is known of the connection yet");
        pulse.replied(now.checked_sub(seconds(20)).unwrap());
        assert!(node.comes_too_late(&pulse, now + seconds(10)), "the last reply took 20 seconds");
        assert!(!node.comes_too_late(&pulse, now + seconds(100)));
    }
}
