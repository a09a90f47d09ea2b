//! What is counted of the audit trail: what happened, and what became of it at each sink.
//!
//! All counts are of what happened, and not of lines: a line that stands for five hundred denials counts as five hundred.
//! So what happened was written, was dropped, or still waits, at each sink.

use super::asked::sentence;
use super::catalogue::{self, Family};
use super::{AuditEvent, AuditSink, Counters};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;

/// The counters of the audit trail.
#[derive(Debug)]
pub struct Audit {
    events: [Counter; AuditEvent::ALL.len()],
    written: [Counter; AuditSink::ALL.len()],
    dropped: [Counter; AuditSink::ALL.len()],
}

impl Audit {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let [events, written, dropped] = [(); 3].map(|()| Counters::<1>::default());
        super::register(registry, catalogue::AUDIT_EVENTS, events.clone());
        super::register(registry, catalogue::AUDIT_WRITTEN, written.clone());
        super::register(registry, catalogue::AUDIT_DROPPED, dropped.clone());
        let of = |family: &Counters<1>, sink: AuditSink| family.get_or_create_owned(&[("sink", sink.word().into())]);
        Self {
            events: AuditEvent::ALL.map(|event| events.get_or_create_owned(&[("event", event.word().into())])),
            written: AuditSink::ALL.map(|sink| of(&written, sink)),
            dropped: AuditSink::ALL.map(|sink| of(&dropped, sink)),
        }
    }

    /// Counts something that is to be told of.
    pub fn happened(&self, event: AuditEvent) {
        self.events[event as usize].inc();
    }

    /// Counts what a sink has.
    pub fn written(&self, sink: AuditSink, times: u64) {
        self.written[sink as usize].inc_by(times);
    }

    /// Counts what a sink will never have.
    pub fn dropped(&self, sink: AuditSink, times: u64) {
        self.dropped[sink as usize].inc_by(times);
    }

    /// What was counted by [`Audit::dropped`].
    pub fn dropped_so_far(&self, sink: AuditSink) -> u64 {
        self.dropped[sink as usize].get()
    }
}

/// Gauges that are asked for.
struct Queues<F> {
    capacity: usize,
    lengths: F,
}

pub(super) fn queues(
    capacity: usize,
    lengths: impl Fn() -> Vec<(AuditSink, usize)> + Send + Sync + 'static,
) -> Box<dyn Collector> {
    Box::new(Queues { capacity, lengths })
}

impl<F> fmt::Debug for Queues<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queues").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl<F: Fn() -> Vec<(AuditSink, usize)> + Send + Sync + 'static> Collector for Queues<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let gauge = |number: usize| ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX));
        let Family { name, help, .. } = catalogue::AUDIT_QUEUE_LENGTH;
        let mut lengths = encoder.encode_descriptor(name, &sentence(help), None, MetricType::Gauge)?;
        for (sink, length) in (self.lengths)() {
            gauge(length).encode(lengths.encode_family(&[("sink", sink.word())])?)?;
        }
        let Family { name, help, .. } = catalogue::AUDIT_QUEUE_CAPACITY;
        gauge(self.capacity).encode(encoder.encode_descriptor(name, &sentence(help), None, MetricType::Gauge)?)
    }
}
