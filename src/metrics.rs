//! Every metric, once: its name, its labels, and how to count in it.
//!
//! Labels are words of this file or names of tiers, never an identity: nobody's requests make a series. Series whose
//! labels are known stand at 0 from the start, and counting in them is an index and an atomic addition. Knows nothing
//! of what is counted.

mod asked;
mod audit;
pub mod catalogue;
mod histogram;
mod jwt;
mod reloads;
mod tls;

pub use asked::Values;
pub use audit::Audit;
pub use histogram::BOUNDS;
pub use jwt::Jwt;
pub use reloads::Reloads;
pub use tls::{HandshakeCounters, Tls};

use asked::Asked;
use catalogue::Family;
use histogram::Histogram;
use parking_lot::Mutex;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Series;
use prometheus_client::registry::{Metric, Registry};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Whether anything is observed. Not in a build with `--cfg unobserved`, which is there to measure what that costs.
pub const OBSERVED: bool = cfg!(not(unobserved));

/// The content type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A label that takes the given words.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident: $($(#[$word_doc:meta])* $variant:ident = $word:literal),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

label! {
    /// What the audit trail tells of.
    AuditEvent:
    Denied = "denied",
    /// Would have been denied, had denials been carried out.
    ShadowDenied = "shadow_denied",
    /// Let pass without the store.
    Degraded = "degraded",
    ConfigReloaded = "config_reloaded",
    ConfigRefused = "config_refused",
    BucketReset = "bucket_reset",
    KeySet = "key_set",
    KeyDeleted = "key_deleted",
    LogFilterSet = "log_filter_set"
}

label! {
    /// Where the audit trail is written.
    AuditSink: Stdout = "stdout", File = "file", RedisStream = "redis_stream"
}

label! {
    /// What listens.
    Listener: Grpc = "grpc", Admin = "admin"
}

label! {
    /// How a TLS handshake ended.
    Handshake:
    Ok = "ok",
    /// It took too long.
    Timeout = "timeout",
    /// Too many went on at once, and it was the oldest.
    Crowded = "crowded",
    /// The client went away.
    Left = "left",
    /// The client speaks plain text, or something else.
    NotTls = "not_tls",
    NoCertificate = "no_certificate",
    BadCertificate = "bad_certificate",
    /// The client's certificate is good, and has none of the ids that are let in.
    NotAllowed = "not_allowed",
    /// The client does not trust the listener's certificate.
    RefusedByClient = "refused_by_client",
    /// Both have no version, cipher or protocol in common, or the client broke the rules.
    Protocol = "protocol"
}

label! {
    /// What came of a request's token, where tokens are verified here.
    JwtVerdict:
    Verified = "verified",
    /// Verified before, and still good.
    Cached = "cached",
    /// There is none.
    Missing = "missing",
    Malformed = "malformed",
    TooLong = "too_long",
    /// An algorithm that is not allowed, such as `none`, or not for that key; or a header that must be understood.
    Unsupported = "unsupported",
    UnknownKey = "unknown_key",
    BadSignature = "bad_signature",
    Expired = "expired",
    NotYetValid = "not_yet_valid",
    /// It does not say until when it is good.
    NoExpiry = "no_expiry",
    WrongIssuer = "wrong_issuer",
    WrongAudience = "wrong_audience"
}

label! {
    /// What came of an attempt to fetch the keys that verify tokens.
    JwksRefresh:
    Success = "success",
    /// No connection, no TLS, or no whole answer in time.
    Unreachable = "unreachable",
    /// Answered with another status than 200.
    BadStatus = "bad_status",
    /// Answered with something else than keys, or with too much.
    BadBody = "bad_body"
}

type Labels<const N: usize> = [(&'static str, Cow<'static, str>); N];
type Counters<const N: usize> = Series<Labels<N>, Counter>;

/// The metrics of one process.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    checks: Counters<2>,
    denials: Counters<3>,
    store_errors: Counters<1>,
    degraded: [Counter; Policy::ALL.len()],
    check_duration: Arc<Histogram>,
    store_duration: Arc<Histogram>,
    in_flight: Arc<AtomicI64>,
    abandoned: Counter,
    /// Reloads of the configuration.
    pub reloads: Reloads,
    /// What becomes of the audit trail.
    pub audit: Audit,
    /// How TLS handshakes end.
    pub tls: Tls,
    /// What becomes of spans.
    pub traces: TraceCounters,
    /// What becomes of tokens.
    pub jwt: Jwt,
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
        register(registry, catalogue::TRACE_SPANS_EXPORTED, self.exported.clone());
        register(registry, catalogue::TRACE_SPANS_DROPPED, self.dropped.clone());
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
        let (checks, denials, store_errors) = (Series::default(), Series::default(), Series::default());
        let degraded = Counters::<1>::default();
        let abandoned = Counter::default();
        register(&mut registry, catalogue::CHECKS, Counters::clone(&checks));
        register(&mut registry, catalogue::DENIALS, Counters::clone(&denials));
        register(&mut registry, catalogue::STORE_ERRORS, Counters::clone(&store_errors));
        register(&mut registry, catalogue::DEGRADED, degraded.clone());
        let (reloads, audit) = (Reloads::register(&mut registry), Audit::register(&mut registry));
        register(&mut registry, catalogue::ABANDONED_CHECKS, abandoned.clone());
        let tls = Tls::register(&mut registry);
        let traces = TraceCounters::default();
        traces.register(&mut registry);
        let jwt = Jwt::register(&mut registry);
        let metrics = Self {
            registry: Mutex::new(registry),
            checks,
            denials,
            store_errors,
            degraded: Policy::ALL.map(|policy| degraded.get_or_create_owned(&[("policy", policy.word().into())])),
            reloads,
            audit,
            tls,
            traces,
            jwt,
            check_duration: Arc::default(),
            store_duration: Arc::default(),
            in_flight: Arc::default(),
            abandoned,
        };
        metrics.watch_itself();
        metrics
    }

    fn watch_itself(&self) {
        for (family, histogram) in
            [(catalogue::CHECK_DURATION, &self.check_duration), (catalogue::STORE_DURATION, &self.store_duration)]
        {
            let told = histogram::Told { family, histogram: histogram.clone() };
            self.registry.lock().register_collector(Box::new(told));
        }
        let in_flight = self.in_flight.clone();
        self.watch(catalogue::IN_FLIGHT_CHECKS, move || in_flight.load(Ordering::Relaxed) as f64);
        let version = env!("CARGO_PKG_VERSION");
        self.watch_each(catalogue::BUILD, move || vec![(version.into(), 1.0)]);
        let (began_at, began) = (SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), Instant::now());
        self.watch(catalogue::START_TIME, move || began_at.as_secs_f64());
        self.watch(catalogue::UPTIME, move || began.elapsed().as_secs_f64());
    }

    /// The series of these tiers: new ones at 0, those that were there before where they stand.
    pub fn tiers<'t>(&self, names: impl IntoIterator<Item = &'t str>) -> TierSeries {
        let mut tiers: Vec<Tier> =
            names.into_iter().map(|name| Tier::new(name.into(), &self.checks, &self.denials)).collect();
        tiers.sort_by(|a, b| a.name.cmp(&b.name));
        TierSeries { tiers }
    }

    /// Has the series of these kinds of failures stand at 0.
    pub fn store_may_fail(&self, kinds: impl IntoIterator<Item = &'static str>) {
        for kind in kinds {
            self.store_errors.get_or_create_owned(&[("kind", kind.into())]);
        }
    }

    /// Counts a call to the store that failed. `kind` is one of a few words.
    pub fn store_failed(&self, kind: &'static str) {
        self.store_errors.get_or_create(&[("kind", kind.into())]).inc();
    }

    /// Counts a check that was decided without the store.
    pub fn degraded(&self, policy: Policy) {
        self.degraded[policy as usize].inc();
    }

    /// Notes that a check begins.
    pub fn begin(&self) -> InFlight<'_> {
        if OBSERVED {
            self.in_flight.fetch_add(1, Ordering::Relaxed);
        }
        InFlight { metrics: self, begun: if OBSERVED { Some(Instant::now()) } else { None } }
    }

    /// Notes how long a call to the store took.
    pub fn asked(&self, took: Duration) {
        if OBSERVED {
            self.store_duration.observe(took);
        }
    }

    /// Has the value of a family without labels asked for whenever the metrics are read.
    pub fn watch(&self, family: Family, value: impl Fn() -> f64 + Send + Sync + 'static) {
        self.watch_each(family, move || vec![("".into(), value())]);
    }

    /// Has the values of a family with one label asked for whenever the metrics are read.
    pub fn watch_each(&self, family: Family, values: impl Fn() -> Values + Send + Sync + 'static) {
        self.registry.lock().register_collector(Box::new(Asked { family, values: Box::new(values) }));
    }

    /// All of them, as OpenMetrics text.
    pub fn text(&self) -> String {
        let mut told = String::with_capacity(8 << 10);
        // Writing into a String cannot fail.
        let _ = text::encode(&mut told, &self.registry.lock());
        told
    }
}

fn register(registry: &mut Registry, family: Family, metric: impl Metric) {
    registry.register(family.name, family.help, metric);
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
        if OBSERVED && let Some(tier) = self.tier(tier) {
            tier.checks[decision as usize].inc();
        }
    }

    /// Counts an exhausted bucket.
    pub fn denied(&self, tier: &str, dimension: Dimension, source: Source) {
        if OBSERVED && let Some(tier) = self.tier(tier) {
            tier.denials[dimension as usize][source as usize].inc();
        }
    }

    fn tier(&self, name: &str) -> Option<&Tier> {
        let place = self.tiers.binary_search_by(|tier| tier.name.as_str().cmp(name)).ok()?;
        self.tiers.get(place)
    }
}

/// A check that is being decided. Dropping it before its end means that nobody waits for it any more.
#[derive(Debug)]
pub struct InFlight<'m> {
    metrics: &'m Metrics,
    /// `None` when it has ended, or nothing is observed.
    begun: Option<Instant>,
}

impl InFlight<'_> {
    /// Notes that the check is decided.
    pub fn end(mut self) {
        if let Some(begun) = self.begun.take() {
            self.metrics.check_duration.observe(begun.elapsed());
            self.metrics.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.begun.is_some() {
            self.metrics.in_flight.fetch_sub(1, Ordering::Relaxed);
            self.metrics.abandoned.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

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
    fn what_somebody_else_keeps_is_asked_for_each_time() {
        let metrics = Metrics::new();
        assert!(!metrics.text().contains("breaker"), "memory has none");
        let open = Arc::new(AtomicBool::new(false));
        let asked = open.clone();
        metrics.watch(catalogue::BREAKER_STATE, move || f64::from(u8::from(asked.load(Ordering::Relaxed))));
        assert!(has(&metrics, "tidegate_breaker_state 0"), "{}", metrics.text());
        open.store(true, Ordering::Relaxed);
        assert!(has(&metrics, "tidegate_breaker_state 1"));
        metrics.watch_each(catalogue::CONFIG, || vec![("a\"b\n".into(), 1.0)]);
        assert!(has(&metrics, r#"tidegate_config_info{hash="a\"b\n"} 1"#), "{}", metrics.text());
    }

    #[test]
    fn a_check_is_in_flight_until_it_ends_or_is_given_up() {
        let metrics = Metrics::new();
        let (first, second) = (metrics.begin(), metrics.begin());
        assert!(has(&metrics, "tidegate_in_flight_checks 2"), "{}", metrics.text());
        first.end();
        drop(second);
        metrics.asked(Duration::from_micros(60));
        for line in [
            "tidegate_in_flight_checks 0",
            "tidegate_abandoned_checks_total 1",
            "tidegate_check_duration_seconds_count 1",
            "tidegate_check_duration_seconds_bucket{le=\"+Inf\"} 1",
            "tidegate_store_duration_seconds_sum 0.00006",
            "tidegate_store_duration_seconds_bucket{le=\"0.00005\"} 0",
            "tidegate_store_duration_seconds_bucket{le=\"0.0001\"} 1",
        ] {
            assert!(has(&metrics, line), "{line} is not in\n{}", metrics.text());
        }
    }

    #[test]
    fn the_name_of_a_tier_cannot_break_the_text() {
        let metrics = Metrics::new();
        metrics.tiers(["a\"} 1\nb"]);
        assert!(!metrics.text().lines().any(|line| line.starts_with('b')), "{}", metrics.text());
    }
}
