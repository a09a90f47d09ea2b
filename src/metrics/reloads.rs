//! The metrics of reloads: how many, what came of the last, and what is in force.

use super::asked::Asked;
use super::catalogue;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Series;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What is told of reloads.
#[derive(Debug)]
pub struct Reloads {
    success: Counter,
    refused: Counter,
    successful: Gauge,
    succeeded_at: Gauge,
    hash: Hash,
}

/// The hash of the config in force; none before there is one.
type Hash = Arc<Mutex<Option<String>>>;

impl Reloads {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let reloads = Series::<[(&'static str, &'static str); 1], Counter>::default();
        let (successful, succeeded_at, hash) = (Gauge::default(), Gauge::default(), Hash::default());
        super::register(registry, catalogue::CONFIG_RELOADS, reloads.clone());
        super::register(registry, catalogue::CONFIG_LAST_RELOAD_SUCCESSFUL, successful.clone());
        super::register(registry, catalogue::CONFIG_LAST_RELOAD_SUCCESS, succeeded_at.clone());
        let in_force = hash.clone();
        // One series at a time.
        let values = move || in_force.lock().clone().map(|hash| (hash.into(), 1.0)).into_iter().collect();
        registry.register_collector(Box::new(Asked { family: catalogue::CONFIG, values: Box::new(values) }));
        let counter = |result| reloads.get_or_create_owned(&[("result", result)]);
        Self { success: counter("success"), refused: counter("refused"), successful, succeeded_at, hash }
    }

    /// Notes what the process starts with.
    pub fn started(&self, hash: &str, at: SystemTime) {
        self.successful.set(1);
        let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.succeeded_at.set(i64::try_from(seconds).unwrap_or(i64::MAX));
        *self.hash.lock() = Some(hash.to_owned());
    }

    /// Counts a reload after which another configuration is in force.
    pub fn succeeded(&self, hash: &str, at: SystemTime) {
        self.success.inc();
        self.started(hash, at);
    }

    /// Counts one after which what was in force still is.
    pub fn refused(&self) {
        self.refused.inc();
        self.successful.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn what_came_of_reloads_is_told_and_only_one_hash_at_a_time() {
        let metrics = Metrics::new();
        let has = |line: &str| metrics.text().lines().any(|told| told == line);
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        metrics.reloads.started("aa", at(10));
        assert!(has("tidegate_config_reloads_total{result=\"success\"} 0"), "{}", metrics.text());
        assert!(has("tidegate_config_reloads_total{result=\"refused\"} 0"));
        assert!(has("tidegate_config_info{hash=\"aa\"} 1") && has("tidegate_config_last_reload_successful 1"));
        metrics.reloads.refused();
        assert!(has("tidegate_config_info{hash=\"aa\"} 1") && has("tidegate_config_last_reload_successful 0"));
        metrics.reloads.succeeded("bb", at(20));
        assert!(has("tidegate_config_info{hash=\"bb\"} 1") && has("tidegate_config_last_reload_successful 1"));
        assert!(has("tidegate_config_last_reload_success_timestamp_seconds 20"));
        assert!(has("tidegate_config_reloads_total{result=\"success\"} 1"));
        assert!(!metrics.text().contains("aa"));
    }
}
