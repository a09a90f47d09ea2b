//! The audit trail: who was refused what, and why, and what operators did, one line of JSON each.
//!
//! Takes decisions as they are made and tells of those that somebody may ask about later. Whoever checks never waits: an
//! event goes into a bounded queue of each sink, or is dropped and counted there, and a thread for each sink writes.
//! `docs/audit.md` says what is told. Knows no protocol, and of Redis only how to append.

mod ending;
mod event;
mod file;
mod fold;
mod lines;
mod queue;
mod sink;
mod stdout;
mod stream;

pub use ending::{Ending, Unwritten};
pub use event::{Excerpt, VERSION};
pub use stream::StreamServers;

use crate::bucket::{Dimension, Key};
use crate::clock::{Clock as _, SystemClock};
use crate::metrics::{AuditEvent, AuditSink, Metrics, Source, catalogue};
use crate::policy::Plan;
use crate::policy::api_key::{Digest, Digester};
use crate::policy::decision::{Decision, FailurePolicy, Mode, Outcome};
use event::{Event, Kept, Numbers, Reason, Told, Who};
use fold::{Ended, Folds, Noted};
use parking_lot::Mutex;
use sink::Outlet;
use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Folds that are ended under one lock, for which checks may wait.
const FOLDS_AT_ONCE: usize = 64;

/// The longest text of an operator's, in bytes; a list of faults may be long.
const MAX_TEXT: usize = 16 << 10;

/// What is audited, and where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// At least one, each kind once.
    pub sinks: Vec<SinkSettings>,
    /// Whether users are told by a digest.
    pub hash_users: bool,
    /// Events at most that wait for each sink.
    pub queue: usize,
    /// How long denials of one caller are counted before they are told; zero: each is told.
    pub fold: Duration,
    /// What this process is called.
    pub replica: String,
}

/// Where events are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkSettings {
    Stdout,
    File(PathBuf),
    /// A stream in the Redis that holds the buckets.
    RedisStream {
        key: String,
        /// Entries that are kept, about.
        max_length: u64,
    },
}

impl SinkSettings {
    fn kind(&self) -> AuditSink {
        match self {
            Self::Stdout => AuditSink::Stdout,
            Self::File(_) => AuditSink::File,
            Self::RedisStream { .. } => AuditSink::RedisStream,
        }
    }
}

/// The trail of this process.
#[derive(Debug)]
pub struct Audit {
    outlets: Vec<Arc<Outlet>>,
    folds: Option<Mutex<Folds>>,
    hash_users: bool,
    metrics: Arc<Metrics>,
}

impl Audit {
    /// Begins a trail. `redis` is where the stream is, if one is among the sinks.
    ///
    /// # Errors
    /// When no thread is to be had, or standard output cannot be used.
    pub fn start(
        settings: &Settings,
        redis: Option<StreamServers>,
        metrics: Arc<Metrics>,
    ) -> io::Result<(Arc<Self>, Ending)> {
        let replica: Arc<str> = settings.replica.as_str().into();
        let mut writers = Vec::new();
        for sink in &settings.sinks {
            let outlet = Arc::new(Outlet::new(sink.kind(), settings.queue, metrics.clone()));
            writers.push((outlet.clone(), writer(sink.clone(), outlet, redis.clone(), replica.clone())?));
        }
        let outlets: Vec<Arc<Outlet>> = writers.iter().map(|(outlet, _)| outlet.clone()).collect();
        let (watched, capacity) = (outlets.clone(), settings.queue);
        metrics.watch_each(catalogue::AUDIT_QUEUE_LENGTH, move || {
            watched.iter().map(|outlet| (outlet.kind.word().into(), outlet.queue.len() as f64)).collect()
        });
        metrics.watch(catalogue::AUDIT_QUEUE_CAPACITY, move || capacity as f64);
        let folds = (!settings.fold.is_zero()).then(|| Mutex::new(Folds::new(settings.fold, fold::MOST)));
        let audit = Arc::new(Self { outlets, folds, hash_users: settings.hash_users, metrics });
        let _folding = folding(audit.clone(), settings.fold)?;
        Ok((audit.clone(), Ending { audit, _folding, writers }))
    }

    /// Tells of a check that was refused, would have been in shadow mode, or was let pass without the store.
    ///
    /// `source` is who said how the buckets stand, `digester` what hides users, and `excerpt` gives
    /// what is told of the request, where it is.
    pub fn checked(
        &self,
        plan: &Plan<'_>,
        decision: &Decision,
        source: Source,
        digester: &Digester,
        excerpt: impl FnOnce() -> Excerpt,
    ) {
        let Some((event, reason)) = verdict(decision) else { return };
        self.metrics.audit.happened(event);
        let subject = self.subject(plan, decision, reason, digester);
        let outage = decision.store_error.map(|error| (plan.on_store_error.word(), error));
        // What the store's absence decided concerns all alike: one line for all, whoever they are.
        let of_store = matches!(reason, None | Some(Reason::Unavailable));
        let who = Who {
            event,
            reason,
            tier: plan.tier,
            dimension: subject.as_ref().map(|(dimension, _)| *dimension),
            identity: subject.as_ref().map(|(_, identity)| &**identity),
            rule: plan.rule,
            outage: outage.filter(|_| of_store),
        };
        let numbers = numbers(plan, decision, source, outage.filter(|_| !of_store));
        let at = SystemClock.now();
        if let Some(folds) = &self.folds {
            let kind = if of_store { Who { rule: None, ..who } } else { who };
            if folds.lock().note(&kind, numbers, at, Instant::now()) == Noted::Counted {
                return;
            }
        }
        self.push(Event {
            at,
            told: Told::Answer { who: Kept::from(&who), numbers, excerpt: Some(excerpt()), repeats: None },
        });
    }

    /// Another configuration is in force. `hash` is that of its text, `cause` what asked for it.
    pub fn config_reloaded(&self, hash: &str, cause: &str) {
        self.act(AuditEvent::ConfigReloaded, vec![("config_hash", text(hash)), ("cause", text(cause))]);
    }

    /// A configuration was refused.
    pub fn config_refused(&self, faults: &str, cause: &str) {
        self.act(AuditEvent::ConfigRefused, vec![("faults", text(faults)), ("cause", text(cause))]);
    }

    /// Somebody made a bucket full. `digester` hides users.
    pub fn bucket_reset(&self, key: &Key, digester: &Digester, by: &str) {
        let (dimension, identity) = (key.dimension, self.shown(key, digester));
        let named = vec![("dimension", text(dimension.name())), ("identity", text(&identity)), ("by", text(by))];
        self.act(AuditEvent::BucketReset, named);
    }

    /// Somebody said something of an API key. `change` is what, such as `suspended=true`.
    pub fn key_set(&self, key: &Digest, change: &str, by: &str) {
        let mut named = key_named(key, by);
        named.push(("change", text(change)));
        self.act(AuditEvent::KeySet, named);
    }

    /// Somebody removed all that was said of an API key.
    pub fn key_deleted(&self, key: &Digest, by: &str) {
        self.act(AuditEvent::KeyDeleted, key_named(key, by));
    }

    /// Somebody changed what is logged.
    pub fn log_filter_set(&self, filter: &str, by: &str) {
        self.act(AuditEvent::LogFilterSet, vec![("filter", text(filter)), ("by", text(by))]);
    }

    /// Opens the file anew, as it may have been moved away.
    pub fn reopen(&self) {
        self.outlets.iter().for_each(|outlet| outlet.reopen());
    }

    fn act(&self, event: AuditEvent, named: Vec<(&'static str, String)>) {
        self.metrics.audit.happened(event);
        self.push(Event { at: SystemClock.now(), told: Told::Act(event, named) });
    }

    fn push(&self, event: Event) {
        let event = Arc::new(event);
        self.outlets.iter().for_each(|outlet| outlet.push(&event));
    }

    /// Whose bucket decided, or whose key is suspended. An outage has nobody's.
    fn subject<'p>(
        &self,
        plan: &'p Plan<'_>,
        decision: &Decision,
        reason: Option<Reason>,
        digester: &Digester,
    ) -> Option<(Dimension, Cow<'p, str>)> {
        let charge = match reason? {
            Reason::Exhausted => plan.charges.get(decision.binding?.0),
            Reason::NeverFits => plan.never_fits().next(),
            Reason::Suspended => return Some((Dimension::Key, plan.caller.id(Dimension::Key)?)),
            Reason::Unavailable => None,
        };
        charge.map(|charge| (charge.key.dimension, self.shown(&charge.key, digester)))
    }

    /// A bucket's identity as it may be told: of a key it is a digest anyhow.
    fn shown<'k>(&self, key: &'k Key, digester: &Digester) -> Cow<'k, str> {
        if self.hash_users && key.dimension == Dimension::User {
            Cow::Owned(digester.digest(key.id().as_bytes()).to_string())
        } else {
            Cow::Borrowed(key.id())
        }
    }

    fn end_folds(&self, which: Ended) {
        let Some(folds) = &self.folds else { return };
        let mut told = Vec::with_capacity(FOLDS_AT_ONCE);
        loop {
            let more = folds.lock().end(which, FOLDS_AT_ONCE, SystemClock.now(), &mut told);
            told.drain(..).for_each(|event| self.push(event));
            if !more {
                return;
            }
        }
    }
}

/// What is told of a decision: nothing of one that let the request pass as it should.
fn verdict(decision: &Decision) -> Option<(AuditEvent, Option<Reason>)> {
    let reason = match &decision.outcome {
        Outcome::Denied { .. } => Reason::Exhausted,
        Outcome::NeverFits { .. } => Reason::NeverFits,
        Outcome::Suspended => Reason::Suspended,
        Outcome::Failed(FailurePolicy::Deny | FailurePolicy::Local { .. }) => Reason::Unavailable,
        Outcome::Exempt | Outcome::Unlimited | Outcome::Admitted | Outcome::Failed(FailurePolicy::Allow) => {
            return decision.degraded().then_some((AuditEvent::Degraded, None));
        }
    };
    let event = match decision.mode {
        Mode::Enforce => AuditEvent::Denied,
        Mode::Shadow => AuditEvent::ShadowDenied,
    };
    Some((event, Some(reason)))
}

fn numbers(
    plan: &Plan<'_>,
    decision: &Decision,
    source: Source,
    outage: Option<(&'static str, &'static str)>,
) -> Numbers {
    let never_fits = || plan.never_fits().next().map(|charge| (charge.quota.max_tokens() as u64, 0));
    let standing = decision.binding.map(|(_, standing)| (standing.limit, standing.remaining));
    let mut numbers = Numbers { cost: plan.cost, outage, ..Numbers::default() };
    match &decision.outcome {
        Outcome::Denied { retry_after, .. } => {
            numbers.bucket = standing;
            numbers.retry_after = Some(*retry_after);
            numbers.source = Some(source);
        }
        Outcome::NeverFits { .. } => numbers.bucket = never_fits(),
        _ => {}
    }
    numbers
}

fn key_named(key: &Digest, by: &str) -> Vec<(&'static str, String)> {
    vec![("dimension", text(Dimension::Key.name())), ("identity", key.to_string()), ("by", text(by))]
}

/// A text, cut short.
fn text(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}

/// Starts the thread of a sink. What is returned hangs up when it has ended.
fn writer(
    settings: SinkSettings,
    outlet: Arc<Outlet>,
    redis: Option<StreamServers>,
    replica: Arc<str>,
) -> io::Result<Receiver<()>> {
    let (running, done) = channel();
    // A runtime of its own, on one thread: for its timers, and for the stream's connections.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stdout = match settings {
        SinkSettings::Stdout => Some(stdout::Stdout::open()?),
        _ => None,
    };
    let name = format!("audit-{}", outlet.kind.word());
    thread::Builder::new().name(name).spawn(move || {
        let _running = running;
        runtime.block_on(async {
            match (settings, stdout, redis) {
                (SinkSettings::Stdout, Some(stdout), _) => sink::write(outlet, stdout, replica).await,
                (SinkSettings::File(path), ..) => sink::write(outlet, file::AppendedFile::new(path), replica).await,
                (SinkSettings::RedisStream { key, max_length }, _, Some(redis)) => {
                    sink::write(outlet, stream::Stream::new(redis, key, max_length), replica).await;
                }
                // `config` lets no stream be without Redis, and standard output was opened above.
                _ => {}
            }
        });
    })?;
    Ok(done)
}

/// Starts the thread that ends folds, which ends when what is returned is dropped.
fn folding(audit: Arc<Audit>, length: Duration) -> io::Result<Sender<()>> {
    let (running, stop) = channel();
    if audit.folds.is_some() {
        let tick = (length / 10).clamp(Duration::from_millis(10), Duration::from_millis(250));
        thread::Builder::new().name("audit-folds".to_owned()).spawn(move || {
            while stop.recv_timeout(tick) == Err(RecvTimeoutError::Timeout) {
                audit.end_folds(Ended::Due(Instant::now()));
            }
        })?;
    }
    Ok(running)
}
