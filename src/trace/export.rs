//! Sends spans to the collector: a bounded queue, and a thread with a runtime of its own that empties it.
//!
//! Takes checks that are over and gives OTLP. Who pushes never waits; what does not fit, and what the collector does not
//! take, is dropped and counted. That it began to fail is said once, and that it works again with what was lost.

use super::span::Finished;
use super::{Tracer, Traces};
use crate::complaint::Complaint;
use crate::metrics::TraceCounters;
use opentelemetry::{InstrumentationScope, Key, KeyValue};
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator, SpanData, SpanExporter as _};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc as blocking;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::Notify;
use tokio::sync::mpsc;

/// Checks that wait to be exported, at most. Each has two spans at most, of some hundred bytes.
const CAPACITY: usize = 2048;

/// Checks in one batch, at most: OpenTelemetry's default for a batch is 512 spans, its collectors' for a message 4 MiB.
const BATCH: usize = 512;

/// How long the first check of a batch waits for others, so that a busy service sends few batches and is itself disturbed
/// by as few wake-ups.
const LINGER: Duration = Duration::from_millis(500);

/// How long the last spans may take when the process ends.
const FLUSH: Duration = Duration::from_secs(2);

/// What Linux shows of the thread's name has 15 bytes.
const THREAD: &str = "tidegate-traces";

/// Why traces cannot be exported at all.
#[derive(Debug, Error)]
pub enum TraceError {
    #[error("cannot start the thread that exports traces: {0}")]
    Thread(#[source] io::Error),
    #[error("cannot start the runtime that exports traces: {0}")]
    Runtime(#[source] io::Error),
    #[error("cannot set up the export of traces: {0}")]
    Exporter(#[source] ExporterBuildError),
    #[error("the thread that exports traces ended before it began")]
    Lost,
}

/// Begins to export. `system` is what the store is, in the words of `db.system.name`.
///
/// # Errors
/// When what it needs cannot be had. That the collector is away is none.
pub fn start(
    traces: &Traces,
    system: &'static str,
    counters: TraceCounters,
) -> Result<(Tracer, Exporting), TraceError> {
    let (sender, receiver) = mpsc::channel(CAPACITY);
    let signals = Arc::new(Signals::default());
    let (ready, started) = blocking::sync_channel(1);
    let (done, ended) = blocking::sync_channel(1);
    let (queue, settings) = (Inbox { receiver, signals: signals.clone() }, traces.clone());
    let counted = counters.clone();
    let thread = std::thread::Builder::new().name(THREAD.to_owned());
    // A runtime must be neither made nor dropped where another runs, so it lives and ends in the thread.
    let work = move || run(settings, system, queue, counted, &ready, &done);
    thread.spawn(work).map_err(TraceError::Thread)?;
    started.recv().unwrap_or(Err(TraceError::Lost))?;
    let queue = Queue { sender, signals: signals.clone(), counters };
    Ok((Tracer::new(traces.sample_ratio, queue), Exporting { signals, ended }))
}

fn run(
    traces: Traces,
    system: &'static str,
    inbox: Inbox,
    counters: TraceCounters,
    ready: &blocking::SyncSender<Result<(), TraceError>>,
    done: &blocking::SyncSender<()>,
) {
    // Who waits for these is gone only with the process.
    let tell = |outcome| {
        let _ = ready.send(outcome);
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tell(Err(TraceError::Runtime(error))),
    };
    runtime.block_on(async {
        match exporter(&traces) {
            Ok(exporter) => {
                tell(Ok(()));
                Exporter::new(traces, system, exporter, counters).serve(inbox).await;
            }
            Err(error) => tell(Err(TraceError::Exporter(error))),
        }
    });
    let _ = done.send(());
}

/// Panics outside a runtime.
fn exporter(traces: &Traces) -> Result<SpanExporter, ExporterBuildError> {
    let builder = SpanExporter::builder().with_tonic().with_endpoint(&traces.endpoint).with_timeout(traces.timeout);
    let tls = traces.endpoint.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("https:"));
    let builder = if tls { builder.with_tls_config(ClientTlsConfig::new().with_webpki_roots()) } else { builder };
    let mut exporter = builder.build()?;
    exporter.set_resource(&resource());
    Ok(exporter)
}

/// Who exports: this, and what OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME say.
fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let stated = Resource::builder().build().get(&Key::new("service.name"));
    let builder = Resource::builder().with_attribute(version);
    match stated.filter(|name| !name.as_str().starts_with("unknown_service")) {
        Some(_) => builder.build(),
        None => builder.with_service_name("tidegate").build(),
    }
}

/// What the thread is told besides spans.
#[derive(Debug, Default)]
struct Signals {
    /// Not to wait for more.
    hurry: Notify,
    stop: AtomicBool,
}

/// Where checks that are over are put.
#[derive(Debug)]
pub(super) struct Queue {
    sender: mpsc::Sender<Finished>,
    signals: Arc<Signals>,
    counters: TraceCounters,
}

impl Queue {
    /// Puts one in, or drops and counts it. Never waits.
    pub(super) fn push(&self, finished: Finished) {
        match self.sender.try_send(finished) {
            Ok(()) if self.sender.capacity() > CAPACITY / 2 => {}
            Ok(()) => self.signals.hurry.notify_one(),
            Err(mpsc::error::TrySendError::Full(lost) | mpsc::error::TrySendError::Closed(lost)) => {
                self.counters.dropped.inc_by(lost.spans());
            }
        }
    }
}

/// The export, for as long as this is held. Dropped, it has the last spans sent, and waits 2 seconds for that at most.
#[derive(Debug)]
pub struct Exporting {
    signals: Arc<Signals>,
    ended: blocking::Receiver<()>,
}

impl Drop for Exporting {
    fn drop(&mut self) {
        self.signals.stop.store(true, Ordering::Release);
        self.signals.hurry.notify_one();
        if self.ended.recv_timeout(FLUSH) == Err(blocking::RecvTimeoutError::Timeout) {
            tracing::warn!(waited = ?FLUSH, "the collector did not take the last spans in time: they are lost");
        }
    }
}

/// The other end of the queue.
struct Inbox {
    receiver: mpsc::Receiver<Finished>,
    signals: Arc<Signals>,
}

impl Inbox {
    /// Waits for something to export. `None`: there will be nothing any more.
    async fn batch(&mut self) -> Option<Vec<Finished>> {
        let mut batch = Vec::new();
        while batch.is_empty() && !self.stopping() {
            tokio::select! {
                received = self.receiver.recv_many(&mut batch, 1) => {
                    if received == 0 {
                        return None;
                    }
                }
                () = self.signals.hurry.notified() => {}
            }
        }
        if self.stopping() {
            // What comes from now on is refused, so that there is an end.
            self.receiver.close();
        } else if self.receiver.len() < BATCH {
            // It is up after that time, or there is no time to wait.
            let _ = tokio::time::timeout(LINGER, self.signals.hurry.notified()).await;
        }
        while batch.len() < BATCH
            && let Ok(next) = self.receiver.try_recv()
        {
            batch.push(next);
        }
        (!batch.is_empty()).then_some(batch)
    }

    fn stopping(&self) -> bool {
        self.signals.stop.load(Ordering::Acquire)
    }
}

/// What makes spans of checks and sends them.
struct Exporter {
    traces: Traces,
    system: &'static str,
    exporter: SpanExporter,
    counters: TraceCounters,
    ids: RandomIdGenerator,
    scope: InstrumentationScope,
    /// While the collector does not take spans.
    failing: Option<Failing>,
    /// A collector that takes spans and does not by turns begins to fail with every other batch.
    failures: Complaint,
    /// Spans lost that were spoken of.
    told: u64,
    overflow: Complaint,
}

/// A time in which the collector does not take spans.
struct Failing {
    /// How many had been lost before.
    before: u64,
    /// Whether its beginning was said. If so, its end is.
    said: bool,
}

impl Exporter {
    fn new(traces: Traces, system: &'static str, exporter: SpanExporter, counters: TraceCounters) -> Self {
        let scope = InstrumentationScope::builder("tidegate").with_version(env!("CARGO_PKG_VERSION")).build();
        let (ids, failures, overflow) = (RandomIdGenerator::default(), Complaint::default(), Complaint::default());
        Self { traces, system, exporter, counters, ids, scope, failing: None, failures, told: 0, overflow }
    }

    async fn serve(mut self, mut inbox: Inbox) {
        while let Some(batch) = inbox.batch().await {
            self.export(batch).await;
        }
    }

    async fn export(&mut self, batch: Vec<Finished>) {
        let mut spans: Vec<SpanData> = Vec::with_capacity(2 * batch.len());
        for finished in batch {
            finished.write(&self.scope, self.system, || self.ids.new_span_id(), &mut spans);
        }
        let count = spans.len() as u64;
        // The exporter's own timeout is one attempt's.
        let exported = tokio::time::timeout(self.traces.timeout, self.exporter.export(spans)).await;
        match exported {
            Ok(Ok(())) => self.succeeded(count),
            Ok(Err(error)) => self.failed(count, &error.to_string()),
            Err(_elapsed) => self.failed(count, &format!("no answer within {:?}", self.traces.timeout)),
        }
    }

    fn succeeded(&mut self, count: u64) {
        self.counters.exported.inc_by(count);
        let lost = self.counters.dropped.get();
        let endpoint = &self.traces.endpoint;
        if let Some(Failing { before, said }) = self.failing.take() {
            if said {
                tracing::info!(%endpoint, dropped = lost - before, "traces are exported again");
            }
        } else if lost > self.told {
            let dropped = lost - self.told;
            self.overflow.say(|more| {
                tracing::warn!(%endpoint, dropped, more, "more spans come than are exported: some were dropped");
            });
        }
        self.told = lost;
    }

    fn failed(&mut self, count: u64, error: &str) {
        let endpoint = &self.traces.endpoint;
        let line = |more: u64| {
            tracing::warn!(%endpoint, error, more, "traces cannot be exported: spans are dropped until they can");
        };
        match &mut self.failing {
            None => self.failing = Some(Failing { before: self.told, said: self.failures.say(line) }),
            Some(failing) if !failing.said => failing.said = self.failures.say_late(line),
            Some(_) => {}
        }
        self.counters.dropped.inc_by(count);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn traces(endpoint: &str) -> Traces {
        Traces { endpoint: endpoint.into(), sample_ratio: 1.0, timeout: Duration::from_secs(1) }
    }

    #[tokio::test]
    async fn an_exporter_is_made_with_tls_and_without() {
        for endpoint in ["http://127.0.0.1:1", "https://localhost:1", "HTTPS://[::1]:1"] {
            exporter(&traces(endpoint)).unwrap();
        }
    }

    #[tokio::test]
    async fn it_is_begun_and_ended_where_a_runtime_runs() {
        let counters = TraceCounters::default();
        let (tracer, exporting) = start(&traces("http://127.0.0.1:1"), "memory", counters.clone()).unwrap();
        drop(exporting);
        drop(tracer.begin(None));
        assert_eq!(counters.dropped.get(), 1, "what comes after the end is lost");
    }

    #[tokio::test]
    async fn it_ends_when_nobody_can_push_any_more() {
        let (tracer, exporting) = start(&traces("http://127.0.0.1:1"), "memory", TraceCounters::default()).unwrap();
        drop(tracer);
        assert_eq!(exporting.ended.recv_timeout(Duration::from_secs(20)), Ok(()));
    }

    #[test]
    fn what_cannot_be_exported_is_said_where_it_is_begun() {
        let begun = start(&traces("not an address"), "memory", TraceCounters::default());
        assert!(matches!(begun, Err(TraceError::Exporter(_))), "{begun:?}");
    }
    #[tokio::test]
    async fn of_a_collector_that_fails_by_turns_few_beginnings_are_said_and_all_losses_counted() {
        let (traces, counters) = (traces("http://127.0.0.1:1"), TraceCounters::default());
        let sender = exporter(&traces).unwrap();
        let mut exporter = Exporter::new(traces, "memory", sender, counters.clone());
        let said = [(); 20].map(|()| {
            exporter.failed(2, "no answer");
            exporter.failed(1, "no answer");
            let said = exporter.failing.as_ref().unwrap().said;
            exporter.succeeded(4);
            said
        });
        let begun = said.iter().filter(|said| **said).count();
        assert!(said[0] && begun <= 2, "a busy machine may take more than a second: {said:?}");
        assert_eq!((counters.dropped.get(), counters.exported.get()), (60, 80));
    }
}
