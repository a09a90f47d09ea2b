//! Every family of metrics: its name, kind, unit, labels and meaning, once. docs/metrics.md is made of it.

use std::fmt::Write as _;

/// How a family's values move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only up, from 0 when the process starts. Told with `_total` behind its name.
    Counter,
    /// Up and down.
    Gauge,
    /// Counts of durations by upper bound, told as `_bucket`, `_sum` and `_count`.
    Histogram,
    /// Always 1: what matters are the labels. Told with `_info` behind its name.
    Info,
}

impl Kind {
    /// OpenMetrics's word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }
}

/// Series of one name.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Without the prefix `tidegate_`, and without what the kind appends.
    pub name: &'static str,
    pub kind: Kind,
    pub unit: &'static str,
    /// Names of the labels, and what their values may be.
    pub labels: &'static [(&'static str, &'static str)],
    pub help: &'static str,
    /// When there is such a thing to measure.
    pub there: There,
}

/// When a family is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum There {
    Always,
    /// Where buckets are kept in Redis.
    WithRedis,
    /// Where the configuration switches that on.
    With(&'static str),
}

impl Family {
    /// The name under which Prometheus stores it; of a histogram, that of its parts without their endings.
    pub fn series(&self) -> String {
        let ending = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        format!("tidegate_{}{ending}", self.name)
    }
}

const fn family(name: &'static str, kind: Kind, unit: &'static str, help: &'static str) -> Family {
    Family { name, kind, unit, labels: &[], help, there: There::Always }
}

const fn counter(name: &'static str, unit: &'static str, help: &'static str) -> Family {
    family(name, Kind::Counter, unit, help)
}

const fn gauge(name: &'static str, unit: &'static str, help: &'static str) -> Family {
    family(name, Kind::Gauge, unit, help)
}

impl Family {
    const fn by(self, labels: &'static [(&'static str, &'static str)]) -> Self {
        Self { labels, ..self }
    }

    const fn with_redis(self) -> Self {
        Self { there: There::WithRedis, ..self }
    }

    const fn with(self, key: &'static str) -> Self {
        Self { there: There::With(key), ..self }
    }
}

const TIER: (&str, &str) = ("tier", "a tier of the configuration");
const LISTENER: (&str, &str) = ("listener", "grpc, admin");
const SINK: (&str, &str) = ("sink", "stdout, file, redis_stream");

macro_rules! catalogue {
    ($($title:literal: { $($(#[$doc:meta])* $name:ident = $family:expr;)+ })+) => {
        $($($(#[$doc])* pub const $name: Family = $family;)+)+

        /// All families, under the titles of what they tell of.
        pub const CATALOGUE: &[(&str, &[Family])] = &[$(($title, &[$($name),+])),+];
    };
}

catalogue! {
    "Checks": {
        CHECKS = counter("checks", "checks", "Checks, by what was decided and the caller's tier; in shadow mode too").by(&[
            ("decision", "allowed, denied, never_fits, suspended, exempt, unlimited, degraded, unavailable"),
            TIER,
        ]);
        DENIALS = counter("denials", "buckets", "Exhausted buckets of denied checks, by who knew that they are exhausted").by(&[
            TIER,
            ("dimension", "user, key, ip"),
            ("source", "store, deny_cache, local"),
        ]);
        DEGRADED = counter("degraded", "checks", "Checks decided without the store, by what was done")
            .by(&[("policy", "allow, deny, local")]);
        CHECK_DURATION = family("check_duration_seconds", Kind::Histogram, "seconds",
            "From a request that was read to the decision; without decoding, encoding and Envoy's way here");
        IN_FLIGHT_CHECKS = gauge("in_flight_checks", "checks", "Checks that are being decided");
        ABANDONED_CHECKS = counter("abandoned_checks", "checks",
            "Checks that Envoy gave up before they were decided: its timeout is shorter than the store takes");
        DEDUPE_REPEATS = counter("dedupe_repeats", "checks",
            "Checks answered as an earlier one, about which Envoy asked again").with("dedupe");
    }
    "Redis": {
        STORE_DURATION = family("store_duration_seconds", Kind::Histogram, "seconds",
            "Calls to the store that a check waited for, failed ones too; not those that were not sent");
        STORE_ERRORS = counter("store_errors", "checks", "Checks whose call to the store failed, by what failed").by(&[(
            "kind",
            "timeout, connection, auth, wrong_type, loading, read_only, out_of_memory, cluster_down, breaker_open, \
             overloaded, refused, protocol",
        )]);
        BREAKER_STATE = gauge("breaker_state", "0 or 1",
            "1 while a server that holds buckets is not asked, since it failed several times in a row").with_redis();
        STORE_IN_FLIGHT = gauge("store_in_flight", "calls", "Calls on their way to Redis, probes included").with_redis();
        STORE_CONNECTIONS = gauge("store_connections", "connections", "Connections to servers that hold buckets").with_redis();
        DENY_CACHE_HITS = counter("deny_cache_hits", "checks", "Denials answered without asking Redis").with_redis();
        DENY_CACHE_SIZE = gauge("deny_cache_size", "buckets", "Buckets that the deny cache remembers").with_redis();
        KEY_METADATA_HITS = counter("key_metadata_hits", "checks",
            "Checks whose API key's metadata was remembered").with_redis();
        KEY_METADATA_READS = counter("key_metadata_reads", "reads", "Reads of an API key's metadata from Redis").with_redis();
        KEY_METADATA_SIZE = gauge("key_metadata_size", "keys",
            "API keys of which it is remembered what Redis says, unknown ones included").with_redis();
    }
    "Memory": {
        MEMORY_BUCKETS = gauge("memory_buckets", "buckets",
            "Buckets in this process's memory: all of them without Redis, those of on_store_error: local with it");
    }
    "Health and configuration": {
        HEALTH_SERVING = gauge("health_serving", "0 or 1", "1 where grpc.health.v1 says SERVING")
            .by(&[("service", "liveness, readiness")]);
        CONFIG_RELOADS = counter("config_reloads", "reloads",
            "Configurations that were read anew, by whether they were put in force").by(&[("result", "success, refused")]);
        CONFIG_LAST_RELOAD_SUCCESSFUL = gauge("config_last_reload_successful", "0 or 1",
            "0 while the newest configuration is refused and an older one is in force");
        CONFIG_LAST_RELOAD_SUCCESS = gauge("config_last_reload_success_timestamp_seconds", "seconds",
            "When what is in force was loaded, in seconds since 1970");
        CONFIG = family("config", Kind::Info, "", "The configuration that is in force")
            .by(&[("hash", "SHA-256 of its file, in hex")]);
        BUILD = family("build", Kind::Info, "", "What runs").by(&[("version", "of tidegate")]);
        START_TIME = gauge("start_time_seconds", "seconds", "When the process started, in seconds since 1970");
        UPTIME = gauge("uptime_seconds", "seconds", "How long the process has run");
        LOG_LINES_DROPPED = counter("log_lines_dropped", "lines",
            "Lines of the log that nobody took in time: its reader is too slow, or gone");
    }
    "TLS": {
        TLS_HANDSHAKES = counter("tls_handshakes", "handshakes", "TLS handshakes of clients, by how they ended").by(&[
            LISTENER,
            ("result", "ok, timeout, crowded, left, not_tls, no_certificate, bad_certificate, not_allowed, \
             refused_by_client, protocol"),
        ]).with("tls");
        TLS_CERTIFICATE_EXPIRY = gauge("tls_certificate_expiry_timestamp_seconds", "seconds",
            "When the certificate that is shown to clients expires, in seconds since 1970").by(&[LISTENER]).with("tls");
    }
    "Tokens": {
        JWT_VERIFICATIONS = counter("jwt_verifications", "checks",
            "Checks by what came of their token, with identity.jwt; all but the first two have no claims").by(&[(
            "result",
            "verified, cached, missing, malformed, too_long, unsupported, unknown_key, bad_signature, expired, \
             not_yet_valid, no_expiry, wrong_issuer, wrong_audience",
        )]);
        JWKS_REFRESHES = counter("jwks_refreshes", "fetches", "Attempts to fetch the keys that verify tokens, by what came of them")
            .by(&[("result", "success, unreachable, bad_status, bad_body")]);
        JWKS_KEYS = gauge("jwks_keys", "keys", "Keys at hand that verify tokens").with("identity.jwt");
        JWKS_AGE = gauge("jwks_age_seconds", "seconds",
            "Since the keys were last fetched, or since they are asked for in vain").with("identity.jwt.jwks_url");
        JWT_CACHE_SIZE = gauge("jwt_cache_size", "tokens",
            "Tokens of which it is remembered, by digest, what came of them").by(&[("kind", "verified, refused")]).with("identity.jwt");
    }
    "Audit": {
        AUDIT_EVENTS = counter("audit_events", "events", "What happened and is to be audited, before folding")
            .by(&[("event", "see docs/audit.md")]);
        AUDIT_WRITTEN = counter("audit_written", "events", "Events written to a sink, folded ones counted singly")
            .by(&[SINK]);
        AUDIT_DROPPED = counter("audit_dropped", "events",
            "Events that a sink lost, folded ones counted singly: it failed, or was too slow").by(&[SINK]);
        AUDIT_QUEUE_LENGTH = gauge("audit_queue_length", "lines", "Lines that wait for a sink").by(&[SINK]).with("audit");
        AUDIT_QUEUE_CAPACITY = gauge("audit_queue_capacity", "lines", "Lines that may wait for one sink").with("audit");
    }
    "Traces": {
        TRACE_SPANS_EXPORTED = counter("trace_spans_exported", "spans", "Spans that the collector took");
        TRACE_SPANS_DROPPED = counter("trace_spans_dropped", "spans",
            "Spans that were lost: the collector is away, or too slow");
    }
}

/// docs/metrics.md.
pub fn page() -> String {
    let mut page = String::from(HEAD);
    // Writing into a String cannot fail.
    for (title, families) in CATALOGUE {
        let _ = write!(page, "\n## {title}\n\n| metric | kind | unit | labels | |\n|---|---|---|---|---|\n");
        for family in *families {
            let _ = writeln!(page, "{}", row(family));
        }
    }
    page.push_str(&tail());
    page
}

const HEAD: &str = "\
# Metrics

`GET /metrics` on the admin endpoint tells them as OpenMetrics text. This page is made from the code: \
`WRITE_DOCS=1 cargo test --test it the_page_of_metrics` writes it anew.

No label ever holds what a client sent, so no client can make series: their number depends on the configuration alone.
";

fn row(family: &Family) -> String {
    let labels: Vec<String> = family.labels.iter().map(|(name, values)| format!("`{name}`: {values}")).collect();
    let there = match family.there {
        There::Always => String::new(),
        There::WithRedis => " (with Redis)".to_owned(),
        There::With(key) => format!(" (with `{key}`)"),
    };
    let (name, kind, unit, help) = (family.series(), family.kind.word(), family.unit, family.help);
    format!("| `{name}` | {kind} | {unit} | {} | {help}{there} |", labels.join("; "))
}

fn tail() -> String {
    let bounds: Vec<String> = super::histogram::BOUNDS.iter().map(|(_, seconds)| seconds.to_string()).collect();
    format!("\nThe histograms' upper bounds, in seconds: {}.\n", bounds.join(", "))
}
