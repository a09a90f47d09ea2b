//! Every metric, once: its name, its labels, and how to count in it.
//!
//! Labels are words of this file or names of tiers, never an identity: nobody's requests make a series. Series whose
//! labels are known stand at 0 from the start, and counting in them is an index and an atomic addition. Knows nothing
//! of what is counted.

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::borrow::Cow;
use std::fmt;

/// The content type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A label that takes the given words.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident: $($(#[$word_doc:meta])* $variant:ident = $word:literal),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$word_doc])* $variant),+ }

        impl $name {
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The label's value.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }
    };
}

label! {
    /// What was decided, in the words of the dynamic metadata, whether or not it is carried out.
    Decision:
    Allowed = "allowed",
    Denied = "denied",
    NeverFits = "never_fits",
    Exempt = "exempt",
    Unlimited = "unlimited",
    Suspended = "suspended",
    Degraded = "degraded",
    Unavailable = "unavailable"
}

label! {
    /// Whose bucket.
    Dimension: User = "user", Key = "key", Ip = "ip"
}

label! {
    /// Who knew that a bucket is exhausted.
    Source:
    Store = "store",
    /// This process, which had been told by the store.
    DenyCache = "deny_cache",
    /// Buckets in this process's memory while the store is away.
    Local = "local"
}

label! {
    /// What was done for want of a store.
    Policy: Allow = "allow", Deny = "deny", Local = "local"
}

/// Whether the store is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaker {
    Closed,
    Open,
}

type Labels<const N: usize> = [(&'static str, Cow<'static, str>); N];
type Counters<const N: usize> = Family<Labels<N>, Counter>;

/// The metrics of one process.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    checks: Counters<2>,
    denials: Counters<3>,
    store_errors: Counters<1>,
    degraded: [Counter; Policy::ALL.len()],
    traces: TraceCounters,
}

/// What became of spans.
#[derive(Clone, Debug, Default)]
pub struct TraceCounters {
    /// The collector took them.
    pub exported: Counter,
    /// The queue was full, or the collector did not take them.
    pub dropped: Counter,
}

impl TraceCounters {
    fn register(&self, registry: &mut Registry) {
        registry.register("trace_spans_exported", "Spans that the collector took", self.exported.clone());
        let help = "Spans that were lost, since the queue was full or the collector did not take them";
        registry.register("trace_spans_dropped", help, self.dropped.clone());
    }
}

/// The series of one tier.
#[derive(Debug)]
struct Tier {
    name: String,
    checks: [Counter; Decision::ALL.len()],
    denials: [[Counter; Source::ALL.len()]; Dimension::ALL.len()],
}

impl Tier {
    fn new(name: String, checks: &Counters<2>, denials: &Counters<3>) -> Self {
        let tier = || ("tier", Cow::from(name.clone()));
        let checks =
            Decision::ALL.map(|decision| checks.get_or_create_owned(&[("decision", decision.word().into()), tier()]));
        let denials = Dimension::ALL.map(|dimension| {
            Source::ALL.map(|source| {
                let labels = [tier(), ("dimension", dimension.word().into()), ("source", source.word().into())];
                denials.get_or_create_owned(&labels)
            })
        });
        Self { name, checks, denials }
    }
}

impl Metrics {
    /// All metrics at 0, without the series of tiers.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("tidegate");
        let (checks, denials) = (Counters::<2>::default(), Counters::<3>::default());
        let (store_errors, degraded) = (Counters::<1>::default(), Counters::<1>::default());
        // Counters are named without the `_total` that they are told with, as `build_info` is without its `_info`.
        registry.register("checks", "Checks, by what was decided and the caller's tier", checks.clone());
        registry.register("denials", "Buckets that were exhausted when a check was denied", denials.clone());
        registry.register("store_errors", "Calls to the store that failed, by what failed", store_errors.clone());
        registry.register("degraded", "Checks decided without the store, by what was done", degraded.clone());
        registry.register("build", "What runs", Info::new([("version", env!("CARGO_PKG_VERSION"))]));

        let degraded = Policy::ALL.map(|policy| degraded.get_or_create_owned(&[("policy", policy.word().into())]));
        let traces = TraceCounters::default();
        traces.register(&mut registry);
        Self { registry: Mutex::new(registry), checks, denials, store_errors, degraded, traces }
    }

    /// The series of these tiers: new ones at 0, those that were there before where they stand.
    pub fn tiers<'t>(&self, names: impl IntoIterator<Item = &'t str>) -> TierSeries {
        let mut tiers: Vec<Tier> =
            names.into_iter().map(|name| Tier::new(name.into(), &self.checks, &self.denials)).collect();
        tiers.sort_by(|a, b| a.name.cmp(&b.name));
        TierSeries { tiers }
    }

    /// Counts a call to the store that failed. `kind` is one of a few words.
    pub fn store_failed(&self, kind: &'static str) {
        self.store_errors.get_or_create(&[("kind", kind.into())]).inc();
    }

    /// Counts a check that was decided without the store.
    pub fn degraded(&self, policy: Policy) {
        self.degraded[policy as usize].inc();
    }

    /// Where spans are counted.
    pub fn traces(&self) -> &TraceCounters {
        &self.traces
    }

    /// Has `state` asked whenever the metrics are read.
    pub fn watch_breaker(&self, state: impl Fn() -> Breaker + Send + Sync + 'static) {
        self.registry.lock().register_collector(Box::new(BreakerState(state)));
    }

    /// All of them, as OpenMetrics text.
    pub fn text(&self) -> String {
        let mut told = String::with_capacity(8 << 10);
        // Writing into a String cannot fail.
        let _ = text::encode(&mut told, &self.registry.lock());
        told
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// The series of the tiers of one policy, to be counted in without asking for their names' sake.
#[derive(Debug)]
pub struct TierSeries {
    /// By name.
    tiers: Vec<Tier>,
}

impl TierSeries {
    /// Counts a check.
    pub fn checked(&self, tier: &str, decision: Decision) {
        if let Some(tier) = self.tier(tier) {
            tier.checks[decision as usize].inc();
        }
    }

    /// Counts an exhausted bucket.
    pub fn denied(&self, tier: &str, dimension: Dimension, source: Source) {
        if let Some(tier) = self.tier(tier) {
            tier.denials[dimension as usize][source as usize].inc();
        }
    }

    fn tier(&self, name: &str) -> Option<&Tier> {
        let place = self.tiers.binary_search_by(|tier| tier.name.as_str().cmp(name)).ok()?;
        self.tiers.get(place)
    }
}

/// A gauge that is asked for.
struct BreakerState<F>(F);

impl<F> fmt::Debug for BreakerState<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakerState").finish_non_exhaustive()
    }
}

impl<F: Fn() -> Breaker + Send + Sync + 'static> Collector for BreakerState<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let gauge = ConstGauge::new(match self.0() {
            Breaker::Closed => 0_i64,
            Breaker::Open => 1,
        });
        let help = "Whether calls to the store are skipped: 0 closed (the store is asked), 1 open";
        gauge.encode(encoder.encode_descriptor("breaker_state", help, None, gauge.metric_type())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn has(metrics: &Metrics, line: &str) -> bool {
        metrics.text().lines().any(|told| told == line)
    }

    #[test]
    fn all_series_of_a_tier_stand_at_zero_from_the_start() {
        let metrics = Metrics::new();
        metrics.tiers(["free", "standard", "enterprise"]);
        let told = metrics.text();
        let count = |name: &str| told.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!(count("tidegate_checks_total{"), 3 * Decision::ALL.len(), "{told}");
        assert_eq!(count("tidegate_denials_total{"), 3 * Dimension::ALL.len() * Source::ALL.len());
        assert_eq!(count("tidegate_degraded_total{"), Policy::ALL.len());
        assert!(has(&metrics, concat!("tidegate_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1")), "{told}");
        assert!(told.ends_with("# EOF\n"));
    }

    #[test]
    fn each_count_goes_to_its_own_series() {
        let metrics = Metrics::new();
        let tiers = metrics.tiers(["free", "standard", "enterprise"]);
        tiers.checked("standard", Decision::NeverFits);
        tiers.checked("standard", Decision::NeverFits);
        tiers.denied("enterprise", Dimension::Ip, Source::DenyCache);
        metrics.store_failed("timeout");
        metrics.degraded(Policy::Local);
        tiers.checked("of nobody's", Decision::Allowed);
        for line in [
            r#"tidegate_checks_total{decision="never_fits",tier="standard"} 2"#,
            r#"tidegate_checks_total{decision="never_fits",tier="free"} 0"#,
            r#"tidegate_denials_total{tier="enterprise",dimension="ip",source="deny_cache"} 1"#,
            r#"tidegate_store_errors_total{kind="timeout"} 1"#,
            r#"tidegate_degraded_total{policy="local"} 1"#,
        ] {
            assert!(has(&metrics, line), "{line} is not in\n{}", metrics.text());
        }
        assert!(!metrics.text().contains("nobody"));
    }

    #[test]
    fn the_breaker_is_asked_each_time() {
        let metrics = Metrics::new();
        assert!(!metrics.text().contains("breaker"), "memory has none");
        let open = Arc::new(AtomicBool::new(false));
        let asked = open.clone();
        metrics.watch_breaker(move || if asked.load(Ordering::Relaxed) { Breaker::Open } else { Breaker::Closed });
        assert!(has(&metrics, "tidegate_breaker_state 0"), "{}", metrics.text());
        open.store(true, Ordering::Relaxed);
        assert!(has(&metrics, "tidegate_breaker_state 1"));
    }

    #[test]
    fn the_name_of_a_tier_cannot_break_the_text() {
        let metrics = Metrics::new();
        metrics.tiers(["a\"} 1\nb"]);
        assert!(!metrics.text().lines().any(|line| line.starts_with('b')), "{}", metrics.text());
    }
}
