//! What the parts of this process keep count of themselves, for the metrics to ask for.

use crate::limiter::Limiter;
use crate::limiter::keys::KeyMemory;
use crate::metrics::catalogue::{self, Family};
use crate::server::health::Health;
use crate::store::deny_cache::DenyCache;
use crate::store::memory::MemoryStore;
use crate::store::redis::RedisStore;
use std::sync::Arc;

/// Has all of it asked for whenever the metrics are read.
pub(super) fn watch(
    limiter: &Arc<Limiter>,
    health: &Health,
    redis: Option<&Arc<RedisStore>>,
    deny_cache: Option<&Arc<DenyCache>>,
    memory: Option<&Arc<MemoryStore>>,
) {
    let metrics = limiter.metrics().clone();
    let serving = health.clone();
    metrics.watch_each(catalogue::HEALTH_SERVING, move || {
        let ready = f64::from(u8::from(serving.is_ready()));
        vec![("liveness".into(), 1.0), ("readiness".into(), ready)]
    });
    if limiter.dedupes() {
        of(catalogue::DEDUPE_REPEATS, limiter, limiter, |limiter| limiter.repeats());
    }
    match memory {
        Some(memory) => of(catalogue::MEMORY_BUCKETS, limiter, memory, |memory| memory.len() as u64),
        None => of(catalogue::MEMORY_BUCKETS, limiter, limiter, |limiter| limiter.local_buckets() as u64),
    }
    if let Some(redis) = redis {
        of(catalogue::BREAKER_STATE, limiter, redis, |redis| u64::from(redis.open_breakers() > 0));
        of(catalogue::STORE_IN_FLIGHT, limiter, redis, |redis| redis.in_flight() as u64);
        of(catalogue::STORE_CONNECTIONS, limiter, redis, |redis| redis.connections() as u64);
    }
    if let Some(deny_cache) = deny_cache {
        of(catalogue::DENY_CACHE_HITS, limiter, deny_cache, |cache| cache.hits());
        of(catalogue::DENY_CACHE_SIZE, limiter, deny_cache, |cache| cache.len() as u64);
    }
    super::jwt::watch(limiter);
    if let Some(keys) = limiter.keys() {
        for (family, value) in [
            (catalogue::KEY_METADATA_HITS, KeyMemory::hits as fn(&KeyMemory) -> u64),
            (catalogue::KEY_METADATA_READS, KeyMemory::reads),
            (catalogue::KEY_METADATA_SIZE, |keys| keys.len() as u64),
        ] {
            let keys = keys.clone();
            metrics.watch(family, move || value(&keys) as f64);
        }
    }
}

/// The metrics live in the limiter, so they must not keep it alive.
fn of<T: Send + Sync + 'static>(family: Family, limiter: &Limiter, of: &Arc<T>, value: fn(&T) -> u64) {
    let of = Arc::downgrade(of);
    limiter.metrics().watch(family, move || of.upgrade().map_or(0, |of| value(&of)) as f64);
}
