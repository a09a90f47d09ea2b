//! What of a changed config takes a restart: two proven configs -> the paths of the keys that differ and cannot be
//! followed while the process runs.
//!
//! Every field of the settings is named here, so that a new one does not compile until somebody said which it is.

use super::settings::{DenyCache, KeyMetadata, Log, Redis, Settings};
use crate::store::redis::{CallLimits, RedisUrl, Topology};

/// The key that starts every bucket's name. Stores probe under it, and buckets of another name are others.
const KEY_PREFIX: &str = "key_prefix";

/// The key of what is logged. Whoever can change it while the process runs need not mind it here.
pub const LOG_FILTER: &str = "log.filter";

/// The keys that differ and take a restart. How servers are signed in to (`redis.username`, passwords, `redis.tls`) is
/// not among them, nor is what `tls` and `admin.tls` say; whether they are there is.
pub fn restart_only(old: &Settings, old_prefix: &str, new: &Settings, new_prefix: &str) -> Vec<&'static str> {
    let Settings {
        listen,
        // What they are made of is followed.
        tls,
        admin,
        admin_tls,
        // Followed: see the reload.
        admin_token: _,
        redis,
        memory_capacity,
        deny_cache,
        dedupe,
        clock,
        key_metadata,
        readiness_requires_store,
        drain,
        shutdown,
        max_connection_age,
        log,
        audit,
        traces,
        // Followed, as the sources of identities are.
        jwt: _,
    } = old;
    let mut changes = Changes::default();
    changes.add("listen", *listen != new.listen);
    changes.add("tls", tls.is_some() != new.tls.is_some());
    changes.add("admin.listen", *admin != new.admin);
    changes.add("admin.tls", admin_tls.is_some() != new.admin_tls.is_some());
    changes.add(KEY_PREFIX, old_prefix != new_prefix);
    changes.redis(redis.as_ref(), new.redis.as_ref());
    changes.add("memory.capacity", *memory_capacity != new.memory_capacity);
    changes.deny_cache(*deny_cache, new.deny_cache);
    changes.add("dedupe", *dedupe != new.dedupe);
    changes.add("clock", *clock != new.clock);
    changes.key_metadata(*key_metadata, new.key_metadata);
    changes.add("readiness_requires_store", *readiness_requires_store != new.readiness_requires_store);
    changes.add("drain", *drain != new.drain);
    changes.add("shutdown", *shutdown != new.shutdown);
    changes.add("max_connection_age", *max_connection_age != new.max_connection_age);
    changes.log(log, &new.log);
    changes.add("audit", *audit != new.audit);
    changes.add("traces", *traces != new.traces);
    changes.0
}

#[derive(Default)]
struct Changes(Vec<&'static str>);

impl Changes {
    fn add(&mut self, path: &'static str, differs: bool) {
        if differs && !self.0.contains(&path) {
            self.0.push(path);
        }
    }

    fn deny_cache(&mut self, old: Option<DenyCache>, new: Option<DenyCache>) {
        let parts =
            |cache: Option<DenyCache>| cache.map_or((0, None), |DenyCache { size, max_age }| (size, Some(max_age)));
        let ((old_size, old_age), (size, age)) = (parts(old), parts(new));
        self.add("deny_cache.size", old_size != size);
        self.add("deny_cache.max_age", old_age.zip(age).is_some_and(|(old, new)| old != new));
    }

    fn key_metadata(&mut self, old: KeyMetadata, new: KeyMetadata) {
        let KeyMetadata { size, max_age } = old;
        self.add("key_metadata.size", size != new.size);
        self.add("key_metadata.max_age", max_age != new.max_age);
    }

    fn log(&mut self, old: &Log, new: &Log) {
        let Log { filter, format } = old;
        self.add(LOG_FILTER, *filter != new.filter);
        self.add("log.format", *format != new.format);
    }

    fn redis(&mut self, old: Option<&Redis>, new: Option<&Redis>) {
        let (Some(old), Some(new)) = (old, new) else {
            return self.add("redis", old.is_some() != new.is_some());
        };
        let Redis { topology, limits, client_name } = old;
        self.topology(topology, &new.topology);
        let CallLimits { timeout, pool_size, max_in_flight, breaker_failures, probe_interval } = *limits;
        self.add("redis.timeout", timeout != new.limits.timeout);
        self.add("redis.pool_size", pool_size != new.limits.pool_size);
        self.add("redis.max_in_flight", max_in_flight != new.limits.max_in_flight);
        self.add("redis.breaker.failures", breaker_failures != new.limits.breaker_failures);
        self.add("redis.breaker.probe_interval", probe_interval != new.limits.probe_interval);
        self.add("redis.client_name", *client_name != new.client_name);
    }

    fn topology(&mut self, old: &Topology, new: &Topology) {
        match (old, new) {
            (Topology::Standalone(old), Topology::Standalone(new)) => {
                self.urls(std::slice::from_ref(old), std::slice::from_ref(new));
            }
            (
                Topology::Sentinel { sentinels: old, master: old_master, access: old_access },
                Topology::Sentinel { sentinels, master, access },
            ) => {
                self.urls(old, sentinels);
                self.add("redis.sentinel_master", old_master != master);
                // Its address is nobody's.
                self.add("redis.database", old_access.database() != access.database());
            }
            (Topology::Cluster(old), Topology::Cluster(new)) => self.urls(old, new),
            (Topology::Standalone(_) | Topology::Sentinel { .. } | Topology::Cluster(_), _) => {
                self.add("redis.topology", true);
            }
        }
    }

    fn urls(&mut self, old: &[RedisUrl], new: &[RedisUrl]) {
        let same_servers = old.len() == new.len() && old.iter().zip(new).all(|(old, new)| old.is_at_same_place(new));
        self.add("redis.urls", !same_servers);
        let same_databases = old.iter().zip(new).all(|(old, new)| old.database() == new.database());
        self.add("redis.database", same_servers && !same_databases);
    }
}
