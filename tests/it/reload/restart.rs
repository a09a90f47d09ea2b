//! What takes a restart is refused by its name, and nothing else of such a file is followed.

use super::*;
use tidegate::config::{self, changes::restart_only};

#[test]
fn a_file_that_changes_what_takes_a_restart_is_refused_by_name_and_nothing_of_it_is_followed() {
    let folder = Folder::new();
    let file = folder.write("tidegate.yaml", &config(100, "drain: 1s\n"));
    let service = Tidegate::start_at(&file, &[]);
    folder.write("tidegate.yaml", &config(200, "drain: 2s\nkey_prefix: 'other:'\nmemory: {capacity: 7}\n"));
    until_reloads(&service, (0, 1));
    for key in ["drain", "key_prefix", "memory.capacity"] {
        service.wait_for_log(&format!("config: {key}: a change needs a restart"));
    }
    assert_eq!(limit(&service), "100");
    folder.write("tidegate.yaml", &config(200, "drain: 1s\n"));
    until_reloads(&service, (1, 1));
    assert_eq!(limit(&service), "200");
}

#[test]
fn each_key_that_takes_a_restart_is_named_and_no_other() {
    let redis = |more: &str| format!("redis: {{urls: ['redis://h:1/0']{more}}}");
    let sentinel =
        |urls: &str, more: &str| format!("redis: {{topology: sentinel, urls: [{urls}], sentinel_master: m{more}}}");
    let cases: Vec<(String, String, &[&str])> = vec![
        (String::new(), "listen: 127.0.0.1:1".into(), &["listen"]),
        (String::new(), "admin: {listen: off}".into(), &["admin.listen"]),
        (String::new(), "tls: {cert: a, key: b}".into(), &["tls"]),
        (String::new(), "admin: {tls: {cert: a, key: b}}".into(), &["admin.tls"]),
        (String::new(), "key_prefix: 'x:'".into(), &["key_prefix"]),
        (String::new(), "memory: {capacity: 1}".into(), &["memory.capacity"]),
        (String::new(), "deny_cache: {size: 1}".into(), &["deny_cache.size"]),
        (String::new(), "deny_cache: {size: 0}".into(), &["deny_cache.size"]),
        (String::new(), "deny_cache: {max_age: 2s}".into(), &["deny_cache.max_age"]),
        (String::new(), "dedupe: true".into(), &["dedupe"]),
        (String::new(), "clock: local".into(), &["clock"]),
        (String::new(), "key_metadata: {size: 1}".into(), &["key_metadata.size"]),
        (String::new(), "key_metadata: {max_age: 1s}".into(), &["key_metadata.max_age"]),
        (String::new(), "readiness_requires_store: false".into(), &["readiness_requires_store"]),
        (String::new(), "{drain: 1s, shutdown: 1s}".into(), &["drain", "shutdown"]),
        (String::new(), "max_connection_age: 0s".into(), &["max_connection_age"]),
        (String::new(), "log: {filter: debug}".into(), &["log.filter"]),
        (String::new(), "log: {format: json}".into(), &["log.format"]),
        (String::new(), redis(""), &["redis"]),
        (redis(""), redis(", timeout: 1s"), &["redis.timeout"]),
        (redis(""), redis(", pool_size: 2"), &["redis.pool_size"]),
        (redis(""), redis(", max_in_flight: 2"), &["redis.max_in_flight"]),
        (redis(""), redis(", breaker: {failures: 2}"), &["redis.breaker.failures"]),
        (redis(""), redis(", breaker: {probe_interval: 1s}"), &["redis.breaker.probe_interval"]),
        (redis(""), redis(", client_name: x"), &["redis.client_name"]),
        (redis(""), redis(", database: 3"), &["redis.database"]),
        (redis(""), "redis: {urls: ['redis://h:2/0']}".into(), &["redis.urls"]),
        (redis(""), "redis: {urls: ['redis://h:1/4']}".into(), &["redis.database"]),
        (redis(""), "redis: {urls: ['rediss://h:1/0']}".into(), &["redis.urls"]),
        (redis(""), "redis: {urls: ['redis://h:1'], topology: cluster}".into(), &["redis.topology"]),
        (sentinel("'redis://a:1'", ""), sentinel("'redis://a:1', 'redis://b:1'", ""), &["redis.urls"]),
        (sentinel("'redis://a:1'", ""), sentinel("'redis://a:1'", ", database: 1"), &["redis.database"]),
        // What may change while the process runs.
        ("tls: {cert: a, key: b}".into(), "tls: {cert: c, key: d, client_ca: e}".into(), &[]),
        (redis(""), redis(", username: alice"), &[]),
        (redis(""), "redis: {urls: ['redis://alice:secret@h:1/0']}".into(), &[]),
        (sentinel("'redis://:x@a:1'", ""), sentinel("'redis://:y@a:1'", ", username: alice"), &[]),
        (String::new(), "{mode: shadow, on_store_error: deny, headers: [ietf], suspended_answer: 429}".into(), &[]),
        (String::new(), "identity: {key: [bearer], key_pepper: new, key_pepper_previous: old}".into(), &[]),
    ];
    for (old, new, keys) in cases {
        let read = |text: &str| config::parse(if text.is_empty() { b"{}" } else { text.as_bytes() }).unwrap();
        let (old, new) = (read(&old), read(&new));
        let named = restart_only(&old.settings, &old.policy.key_prefix, &new.settings, &new.policy.key_prefix);
        assert_eq!(named, keys, "{:?}", new.settings);
        let none = restart_only(&new.settings, &new.policy.key_prefix, &new.settings, &new.policy.key_prefix);
        assert!(none.is_empty(), "{none:?}");
    }
}
