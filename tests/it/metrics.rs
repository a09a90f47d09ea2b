//! Metrics of the running service: what there is, and that clients cannot make more of it.

use crate::support::admin::{get, until};
use crate::support::redis::Server;
use crate::support::service::{Tidegate, block_on, check, client};
use crate::support::tls::{Authority, Files};
use std::collections::BTreeSet;
use std::sync::Arc;
use tidegate::clock::SystemClock;
use tidegate::config;
use tidegate::limiter::Limiter;
use tidegate::metrics::catalogue::{CATALOGUE, Family, Kind, There};
use tidegate::policy::request::Request;
use tidegate::store::memory::MemoryStore;

fn families(wanted: impl Fn(There) -> bool) -> impl Iterator<Item = &'static Family> {
    CATALOGUE.iter().flat_map(|(_, families)| *families).filter(move |family| wanted(family.there))
}

/// The families of an exposition, with their kinds and help.
fn told(text: &str) -> BTreeSet<(String, String, String)> {
    let helps = text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    helps
        .map(|(name, help)| {
            let kind = text.lines().find_map(|line| line.strip_prefix(&format!("# TYPE {name} ")));
            (name.to_owned(), kind.unwrap_or_else(|| panic!("{name} has no type")).to_owned(), help.to_owned())
        })
        .collect()
}

#[test]
fn all_of_the_catalogue_is_told_and_nothing_else() {
    let server = Server::start(&[]);
    let files = Files::new();
    let (cert, key) = files.write_pair("server", &Authority::new().server());
    let tls = format!("tls: {{cert: {cert}, key: {key}}}\n");
    let config = format!("redis: {{urls: ['{}'], timeout: 1s}}\ndedupe: true\n{tls}", server.url());
    let service = Tidegate::start(&config);
    let text = get(service.admin, "/metrics").body;
    let optional = ["audit", "traces"];
    let there = families(|there| !matches!(there, There::With(key) if optional.contains(&key)));
    let catalogue = there.map(|family| {
        // prometheus-client ends each help with a full stop.
        (format!("tidegate_{}", family.name), family.kind.word().to_owned(), format!("{}.", family.help))
    });
    assert_eq!(told(&text), catalogue.collect(), "{text}");
}

#[test]
fn what_is_counted_of_a_check_with_redis() {
    let server = Server::start(&[]);
    let quota = "{max_tokens: 1, refill_rate: 0.001}";
    let config = format!(
        "redis: {{urls: ['{}'], timeout: 1s}}
tiers: {{free: {{per_ip: {quota}}}}}
identity: {{user: [], key: [{{header: x-api-key}}], tier: []}}\n",
        server.url()
    );
    let service = Tidegate::start(&config);
    let metrics = until(service.admin, "/metrics", |metrics| {
        metrics.value(r#"tidegate_health_serving{service="readiness"}"#) == 1
    });
    assert_eq!(metrics.value("tidegate_store_connections"), 1);
    block_on(async {
        let mut client = client(&service).await;
        for _ in 0..4 {
            client.check(check(&[("x-api-key", "k")])).await.unwrap();
        }
    });
    let metrics = get(service.admin, "/metrics");
    for (series, value) in [
        ("tidegate_check_duration_seconds_count", 4),
        // One admitted, one denied; the others the deny cache knew.
        ("tidegate_store_duration_seconds_count", 2),
        ("tidegate_deny_cache_hits_total", 2),
        ("tidegate_deny_cache_size", 1),
        ("tidegate_key_metadata_reads_total", 1),
        ("tidegate_key_metadata_hits_total", 3),
        ("tidegate_key_metadata_size", 1),
        ("tidegate_in_flight_checks", 0),
        ("tidegate_abandoned_checks_total", 0),
        ("tidegate_breaker_state", 0),
        ("tidegate_store_in_flight", 0),
        ("tidegate_memory_buckets", 0),
        ("tidegate_log_lines_dropped_total", 0),
    ] {
        assert_eq!(metrics.value(series), value, "{series}");
    }
}

#[test]
fn a_hundred_thousand_users_make_no_series() {
    let config = config::parse(config::DEFAULT.as_bytes()).unwrap();
    let store = Arc::new(MemoryStore::new(Arc::new(SystemClock), 1_000_000));
    let limiter = Limiter::new(config.policy, store);
    let before = limiter.metrics().text().lines().count();
    let snapshot = limiter.snapshot();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for n in 0..100_000_u32 {
            let (key, peer, path) =
                (format!("key-{n}\n\"x"), format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255), format!("/{n}"));
            let (method, tier) = (format!("M{n}"), format!("tier{n}"));
            let mut request = Request {
                method: method.as_bytes(),
                path: path.as_bytes(),
                peer: Some(peer.as_bytes()),
                principal: key.as_bytes(),
                ..Request::default()
            };
            request.headers.extend([(&b"x-api-key"[..], key.as_bytes()), (b"x-tier", tier.as_bytes())]);
            limiter.check(&snapshot, &request).await;
        }
    });
    let text = limiter.metrics().text();
    assert!(text.contains("tidegate_check_duration_seconds_count 100000"), "{text}");
    assert_eq!(text.lines().count(), before, "{text}");
}

#[test]
fn every_family_says_what_it_is_and_in_what_unit() {
    for family in families(|_| true) {
        assert!(family.help.len() > 8 && !family.help.ends_with('.'), "{family:?}");
        assert!(!family.unit.is_empty() || family.kind == Kind::Info, "{family:?}");
        assert_eq!(family.name.ends_with("_seconds"), family.unit == "seconds", "{family:?}");
    }
}
