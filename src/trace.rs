//! Traces: one span of each check that is to be traced, and one of its call to the store, sent to an OpenTelemetry
//! collector.
//!
//! Takes the parent of a check and what came of it, gives spans to a thread of its own (`export`) and never waits: what
//! does not fit into the queue is dropped and counted. Knows no protocol of checks, and nobody who asks: no span holds an
//! identity, an address, a path or a name that a client chose.

mod context;
mod export;
mod span;

pub use context::Parent;
pub use export::{Exporting, TraceError, start};

use crate::limiter::Checked;
use export::Queue;
use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator};
use span::Finished;
use std::time::{Duration, Instant, SystemTime};

/// Where spans go, and of which checks.
#[derive(Clone, Debug, PartialEq)]
pub struct Traces {
    /// The collector's address, `http://host:port` or `https://host:port`: OTLP over gRPC.
    pub endpoint: String,
    /// The share of the checks without a parent that are traced: 0 to 1. Of those with one the parent decides.
    pub sample_ratio: f64,
    /// How long the collector may take for one batch, attempts that fail included.
    pub timeout: Duration,
}

/// Begins spans.
#[derive(Debug)]
pub struct Tracer {
    sampling: Sampling,
    ids: RandomIdGenerator,
    queue: Queue,
}

impl Tracer {
    fn new(sample_ratio: f64, queue: Queue) -> Self {
        Self { sampling: Sampling::of(sample_ratio), ids: RandomIdGenerator::default(), queue }
    }

    /// Begins the span of a check; `None` where it is not to be traced.
    pub fn begin(&self, parent: Option<Parent>) -> Option<Begun<'_>> {
        let trace = match parent {
            Some(parent) if !parent.sampled => return None,
            Some(parent) => parent.trace,
            None => self.sampling.draw(|| self.ids.new_trace_id())?,
        };
        let parent = parent.map_or(SpanId::INVALID, |parent| parent.span);
        let open = Open { trace, span: self.ids.new_span_id(), parent, at: SystemTime::now(), since: Instant::now() };
        Some(Begun { queue: &self.queue, open: Some(open) })
    }
}

/// Which checks without a parent are traced: by their trace's id, so that whoever samples that trace at the same ratio
/// decides alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sampling {
    Never,
    Always,
    /// Where the lower 63 bits of the id are below this.
    Below(u64),
}

impl Sampling {
    fn of(ratio: f64) -> Self {
        const ALL: f64 = (1_u64 << 63) as f64;
        match ratio {
            ratio if ratio >= 1.0 => Self::Always,
            ratio if ratio > 0.0 => Self::Below((ratio * ALL) as u64),
            _ => Self::Never,
        }
    }

    /// The id of a new trace, if it is one of those.
    fn draw(self, id: impl FnOnce() -> TraceId) -> Option<TraceId> {
        if self == Self::Never {
            return None;
        }
        let id = id();
        let low = u128::from_be_bytes(id.to_bytes()) as u64 & (u64::MAX >> 1);
        let sampled = match self {
            Self::Never => false,
            Self::Always => true,
            Self::Below(bound) => low < bound,
        };
        sampled.then_some(id)
    }
}

/// The span of a check that is on its way. Dropped without having been ended, it tells that its caller gave up.
#[derive(Debug)]
pub struct Begun<'t> {
    queue: &'t Queue,
    open: Option<Open>,
}

/// A span without its end.
#[derive(Debug)]
struct Open {
    trace: TraceId,
    span: SpanId,
    /// Invalid: there is none.
    parent: SpanId,
    at: SystemTime,
    since: Instant,
}

impl Begun<'_> {
    /// Ends it with what came of the check. Never waits.
    pub fn end(mut self, checked: &Checked<'_>) {
        if let Some(open) = self.open.take() {
            self.queue.push(Finished::answered(open, checked));
        }
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            self.queue.push(Finished::given_up(open));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(ratio: f64, id: u128) -> bool {
        Sampling::of(ratio).draw(|| TraceId::from(id)).is_some()
    }

    #[test]
    fn the_ratio_is_the_share_of_the_ids_that_are_traced() {
        let ids = RandomIdGenerator::default();
        for (ratio, least, most) in [(0.0, 0, 0), (0.25, 2_200, 2_800), (1.0, 10_000, 10_000)] {
            let sampling = Sampling::of(ratio);
            let traced = (0..10_000).filter(|_| sampling.draw(|| ids.new_trace_id()).is_some()).count();
            assert!((least..=most).contains(&traced), "{traced} of 10000 at {ratio}");
        }
    }

    #[test]
    fn the_lower_63_bits_of_the_id_decide() {
        let half = 1_u128 << 62;
        assert!(drawn(0.5, half - 1) && !drawn(0.5, half));
        assert!(drawn(0.5, u128::MAX << 63), "the bits above are not looked at");
    }

    #[test]
    fn whoever_is_never_traced_draws_no_id() {
        assert_eq!(Sampling::of(0.0).draw(|| unreachable!("no id is needed")), None);
        assert_eq!(Sampling::of(f64::NAN), Sampling::Never);
    }
}
