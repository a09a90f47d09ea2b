//! Durations, counted by upper bound. To observe one is two atomic additions, without a lock.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::catalogue::Family;

/// Upper bounds, as nanoseconds and as seconds: three a decade between a round trip on loopback, 50 µs, and five times the
/// default timeout.
pub const BOUNDS: [(u64, f64); 12] = [
    (50_000, 0.000_05),
    (100_000, 0.000_1),
    (250_000, 0.000_25),
    (500_000, 0.000_5),
    (1_000_000, 0.001),
    (2_500_000, 0.002_5),
    (5_000_000, 0.005),
    (10_000_000, 0.01),
    (25_000_000, 0.025),
    (50_000_000, 0.05),
    (100_000_000, 0.1),
    (250_000_000, 0.25),
];

/// A histogram of durations.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    /// Of each bound those that are not above it, but above the one before; the last are above all.
    counts: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl Histogram {
    pub(super) fn observe(&self, took: Duration) {
        let nanos = took.as_nanos() as u64;
        let place = BOUNDS.iter().position(|(bound, _)| nanos <= *bound).unwrap_or(BOUNDS.len());
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Each bound with the number of those above the one before.
    fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS.iter().map(|(_, seconds)| *seconds).chain([f64::INFINITY]);
        bounds.zip(&self.counts).map(|(bound, count)| (bound, count.load(Ordering::Relaxed))).collect()
    }
}

/// A histogram as a family of its own.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) family: Family,
    pub(super) histogram: Arc<Histogram>,
}

impl Collector for Told {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (buckets, nanos) = (self.histogram.buckets(), self.histogram.nanos.load(Ordering::Relaxed));
        let count = buckets.iter().map(|(_, count)| count).sum();
        let mut metric = encoder.encode_descriptor(
            self.family.name,
            &super::asked::sentence(self.family.help),
            None,
            MetricType::Histogram,
        )?;
        metric.encode_histogram::<NoLabelSet>(nanos as f64 / 1e9, count, &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_at_the_first_bound_that_is_not_below_it() {
        let histogram = Histogram::default();
        for micros in [0, 50, 51, 250_000, 250_001, 10_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let counts: Vec<u64> = histogram.buckets().into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    }

    #[test]
    fn the_bounds_are_the_same_in_both_units_and_ascend() {
        for (nanos, seconds) in BOUNDS {
            assert_eq!((seconds * 1e9).round() as u64, nanos);
        }
        assert!(BOUNDS.is_sorted());
    }
}
