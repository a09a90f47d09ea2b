//! One sink of the trail: its queue, the thread that writes, and what is said of one that does not keep up or fails.

use super::event::Event;
use super::queue::Queue;
use crate::complaint::Complaint;
use crate::metrics::{AuditSink, Metrics};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Events that are written together.
const BATCH: usize = 256;

/// How long a writer rests after each batch, so that what comes meanwhile is one batch, and none of it has to wake it.
const REST: Duration = Duration::from_millis(2);

/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Writes lines to where they are to go.
pub(super) trait Sink {
    /// Writes lines from the first on. Says how many are there as a whole, and why not all if so: those that are not are
    /// written again.
    async fn write(&mut self, lines: &[String]) -> Outcome;

    /// Opens anew what was opened by name, as somebody may have moved it.
    fn reopen(&mut self) -> Result<(), String> {
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) written: usize,
    pub(super) failure: Option<String>,
}

/// What all who push and the one who writes share.
#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) kind: AuditSink,
    pub(super) queue: Queue,
    metrics: Arc<Metrics>,
    failing: AtomicBool,
    /// Why what was tried last was not written.
    failure: Mutex<Option<String>>,
    reopening: AtomicBool,
    drops: Complaint,
}

impl Outlet {
    pub(super) fn new(kind: AuditSink, capacity: usize, metrics: Arc<Metrics>) -> Self {
        let (failing, reopening) = (AtomicBool::new(false), AtomicBool::new(false));
        let (queue, failure, drops) = (Queue::new(capacity), Mutex::default(), Complaint::default());
        Self { kind, queue, metrics, failing, failure, reopening, drops }
    }

    /// Leaves an event to the writer, or drops it. Never waits.
    pub(super) fn push(&self, event: &Arc<Event>) {
        if self.queue.push(event).is_err() {
            self.metrics.audit.dropped(self.kind, event.times());
            // Of one that fails it was said, and how much was lost is said when it is over.
            if !self.failing.load(Ordering::Relaxed) {
                self.complain();
            }
        }
    }

    #[cold]
    fn complain(&self) {
        let sink = self.kind.word();
        self.drops.say(|more| tracing::warn!(sink, more, "the audit trail is not written as fast: events are dropped"));
    }

    pub(super) fn reopen(&self) {
        self.reopening.store(true, Ordering::Relaxed);
        self.queue.nudge();
    }

    /// Why it fails, while it does.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Gives up what is not written, and says how much that was.
    pub(super) fn abandon(&self) -> u64 {
        let lost = self.queue.abandon();
        self.metrics.audit.dropped(self.kind, lost);
        lost
    }
}

/// Writes until the queue is closed and all is written, or cannot be.
pub(super) async fn write(outlet: Arc<Outlet>, mut sink: impl Sink, replica: Arc<str>) {
    let mut writer = Writer { outlet: &outlet, failed: None };
    let mut batch = Vec::with_capacity(BATCH);
    while outlet.queue.next(&mut batch, BATCH).await {
        if outlet.reopening.swap(false, Ordering::Relaxed)
            && let Err(why) = sink.reopen()
        {
            writer.fails(&why);
        }
        if !writer.write_all(&mut sink, &batch, &replica).await {
            return;
        }
        batch.clear();
        if !outlet.queue.is_closed() {
            tokio::time::sleep(REST).await;
        }
    }
}

struct Writer<'a> {
    outlet: &'a Outlet,
    /// While the sink fails: what had been dropped when it began to.
    failed: Option<u64>,
}

impl Writer<'_> {
    /// Tries until all is written. False when it gave up, since no more is to be tried.
    async fn write_all(&mut self, sink: &mut impl Sink, batch: &[Arc<Event>], replica: &str) -> bool {
        let lines: Vec<String> = batch.iter().map(|event| event.line(replica)).collect();
        let mut done = 0;
        while done < batch.len() {
            let Outcome { written, failure } = sink.write(&lines[done..]).await;
            self.settle(&batch[done..done + written]);
            done += written;
            match failure {
                None => self.works(),
                Some(why) => {
                    self.fails(&why);
                    if self.outlet.queue.is_closed() {
                        return false;
                    }
                    self.outlet.queue.pause(RETRY).await;
                    if self.outlet.reopening.swap(false, Ordering::Relaxed) {
                        // Why it cannot be is said already, or is what the next attempt fails of.
                        let _ = sink.reopen();
                    }
                }
            }
        }
        true
    }

    fn settle(&self, events: &[Arc<Event>]) {
        let times = events.iter().map(|event| event.times()).sum();
        self.outlet.queue.settle(events.len(), times);
        self.outlet.metrics.audit.written(self.outlet.kind, times);
    }

    fn dropped(&self) -> u64 {
        self.outlet.metrics.audit.dropped_so_far(self.outlet.kind)
    }

    /// Said once, when it begins.
    fn fails(&mut self, error: &str) {
        *self.outlet.failure.lock() = Some(error.to_owned());
        if self.failed.is_none() {
            self.failed = Some(self.dropped());
            self.outlet.failing.store(true, Ordering::Relaxed);
            let sink = self.outlet.kind.word();
            tracing::error!(
                sink,
                error,
                "the audit trail cannot be written: checks go on, it is tried again each second"
            );
        }
    }

    fn works(&mut self) {
        if let Some(before) = self.failed.take() {
            self.outlet.failing.store(false, Ordering::Relaxed);
            *self.outlet.failure.lock() = None;
            let (sink, lost) = (self.outlet.kind.word(), self.dropped() - before);
            tracing::warn!(sink, lost, "the audit trail is written again");
        }
    }
}
