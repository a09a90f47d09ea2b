//! What is counted of the audit trail: what happened, and what became of it at each sink.
//!
//! All counts are of what happened, and not of lines: a line that stands for five hundred denials counts as five hundred.
//! So what happened was written, was dropped, or still waits, at each sink.

use super::catalogue;
use super::{AuditEvent, AuditSink, Counters};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

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
