//! What is told of a check: the spans `check` and `store.take`, their attributes and their status.
//!
//! Takes what the limiter says, gives the SDK's spans. All words are constants or names of the operator's: of rules and
//! of tiers. What a store says of its failure may name a bucket, so only the kind of it is told.

use super::Open;
use crate::limiter::Checked;
use crate::metrics;
use crate::policy::Step;
use crate::policy::decision::Outcome;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use std::time::{Duration, SystemTime};

/// A check that is over, as it waits to be exported.
#[derive(Debug)]
pub(super) struct Finished {
    trace: TraceId,
    span: SpanId,
    /// Invalid: there is none.
    parent: SpanId,
    begun: SystemTime,
    took: Duration,
    attributes: Vec<KeyValue>,
    failed: Option<&'static str>,
    call: Option<Call>,
}

/// A call to the store.
#[derive(Debug)]
struct Call {
    name: &'static str,
    begun: SystemTime,
    took: Duration,
    /// The kind of its failure.
    failed: Option<&'static str>,
}

impl Finished {
    pub(super) fn answered(open: Open, checked: &Checked<'_>) -> Self {
        let unavailable = checked.decided() == metrics::Decision::Unavailable;
        let failed = checked.decision.store_error.filter(|_| unavailable);
        let call = checked.asked.map(|asked| Call {
            name: if checked.plan.step() == Step::Peek { "store.peek" } else { "store.take" },
            begun: open.at + asked.at.saturating_duration_since(open.since),
            took: asked.took,
            failed: checked.decision.store_error,
        });
        Self { attributes: attributes(checked), failed, call, ..Self::of(open) }
    }

    pub(super) fn given_up(open: Open) -> Self {
        Self { failed: Some("given_up"), ..Self::of(open) }
    }

    fn of(open: Open) -> Self {
        let Open { trace, span, parent, at, since } = open;
        let took = since.elapsed();
        Self { trace, span, parent, begun: at, took, attributes: Vec::new(), failed: None, call: None }
    }

    /// How many spans it is.
    pub(super) fn spans(&self) -> u64 {
        1 + u64::from(self.call.is_some())
    }

    /// Makes the spans. `system` is what the store is, in the words of `db.system.name`; `child` the id of a new span.
    pub(super) fn write(
        self,
        scope: &InstrumentationScope,
        system: &'static str,
        child: impl FnOnce() -> SpanId,
        spans: &mut Vec<SpanData>,
    ) {
        let Self { trace, span, parent, begun, took, attributes, failed, call } = self;
        let data = |id, parent, kind, name: &'static str, (begun, took), attributes, failed| SpanData {
            span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: parent,
            parent_span_is_remote: id == span && parent != SpanId::INVALID,
            span_kind: kind,
            name: name.into(),
            start_time: begun,
            end_time: begun + took,
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: status(failed),
            instrumentation_scope: scope.clone(),
        };
        spans.push(data(
            span,
            parent,
            SpanKind::Server,
            "check",
            (begun, took),
            with_error(attributes, failed),
            failed,
        ));
        if let Some(Call { name, begun, took, failed }) = call {
            let attributes = with_error(vec![KeyValue::new("db.system.name", system)], failed);
            spans.push(data(child(), span, SpanKind::Client, name, (begun, took), attributes, failed));
        }
    }
}

fn status(failed: Option<&'static str>) -> Status {
    failed.map_or(Status::Unset, Status::error)
}

fn with_error(mut attributes: Vec<KeyValue>, failed: Option<&'static str>) -> Vec<KeyValue> {
    attributes.extend(failed.map(|kind| KeyValue::new("error.type", kind)));
    attributes
}

fn attributes(checked: &Checked<'_>) -> Vec<KeyValue> {
    let Checked { plan, decision, source, .. } = checked;
    let mut told = Vec::with_capacity(11);
    told.push(KeyValue::new("tidegate.decision", checked.decided().word()));
    told.push(KeyValue::new("tidegate.tier", plan.tier.to_owned()));
    told.push(KeyValue::new("tidegate.mode", decision.mode.word()));
    told.push(KeyValue::new("tidegate.degraded", decision.degraded()));
    told.extend(plan.rule.map(|rule| KeyValue::new("tidegate.rule", rule.to_owned())));
    told.extend(decision.store_error.map(|kind| KeyValue::new("tidegate.store_error", kind)));
    let never_fits = || plan.never_fits().next().map(|charge| charge.key.dimension);
    let dimension = decision.binding.map(|(_, standing)| standing.dimension).or_else(never_fits);
    told.extend(dimension.map(|dimension| KeyValue::new("tidegate.dimension", dimension.name())));
    if let Some((_, standing)) = &decision.binding {
        told.push(KeyValue::new("tidegate.remaining", whole(standing.remaining)));
        told.push(KeyValue::new("tidegate.source", source.word()));
    }
    if let Outcome::Denied { retry_after, .. } = decision.outcome {
        told.push(KeyValue::new("tidegate.retry_after", whole(retry_after)));
    }
    told
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
