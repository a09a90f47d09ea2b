//! The configuration that a release gives to tidegate: that it is sound, and what a change of it does.

use crate::support::service::{Tidegate, block_on, check, client, program};
use crate::support::{Helm, ci_values, config_of, documents, eventually, name, redis, rendered, resource, written};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use tidegate::config::changes::{LOG_FILTER, restart_only};

#[test]
fn tidegate_takes_the_configuration_of_all_values_of_ci() {
    for values in ci_values() {
        let resources = documents(&Helm::four().print("t", &["--values", values.to_str().unwrap()]).unwrap());
        let file = written(&config_of(&resources));
        let output = program(&["validate", file.path().to_str().unwrap()]).output().unwrap();
        assert!(output.status.success(), "{}: {}", name(&values), String::from_utf8_lossy(&output.stderr));
    }
}

/// What `config` says goes before what the chart says by itself; numbers stay as they are.
#[test]
fn tidegates_own_keys_come_through_as_they_are_written() {
    let config = json!({
        "key_prefix": "mine:",
        "log": {"filter": "debug"},
        "memory": {"capacity": 123_456_789},
        "tiers": {"free": {"per_ip": {"max_tokens": 5, "refill_rate": 0.000_125}}},
    });
    let shown: Value = serde_yaml::from_str(&config_of(&rendered(&json!({"config": config})))).unwrap();
    assert_eq!(shown["key_prefix"], "mine:");
    assert_eq!(shown["log"], json!({"filter": "debug", "format": "json"}));
    assert_eq!(shown["memory"], config["memory"]);
    assert_eq!(shown["tiers"], config["tiers"]);
    assert_eq!(shown["listen"], "0.0.0.0:50051");
    assert_eq!(shown["admin"], json!({"listen": "0.0.0.0:8080"}));
}

/// With Redis, so that its keys mean something.
fn release(config: &Value) -> Vec<Value> {
    rendered(&json!({"replicaCount": 2, "redis": {"urls": ["redis://a:6379"]}, "config": config}))
}

fn pods(resources: &[Value]) -> &Value {
    &resource(resources, "Deployment", "t-tidegate")["spec"]["template"]
}

/// Whether a running process refuses to go from one configuration to another.
fn takes_restart(old: &[Value], new: &[Value]) -> bool {
    let [old, new] = [old, new].map(|resources| tidegate::config::parse(config_of(resources).as_bytes()).unwrap());
    let mut keys = restart_only(&old.settings, &old.policy.key_prefix, &new.settings, &new.policy.key_prefix);
    // A process follows it, as nothing else sets it there.
    keys.retain(|key| *key != LOG_FILTER);
    !keys.is_empty()
}

/// A change of each key that `config` may have.
fn changes() -> Vec<(&'static str, Value)> {
    let quota = json!({"max_tokens": 7, "refill_rate": 1});
    let tier = json!({"per_user": quota, "per_key": quota, "per_ip": quota});
    vec![
        ("allow_generous_default", json!(true)),
        ("api_keys", json!([{"digest": "0123456789abcdef0123456789abcdef", "name": "acme"}])),
        ("audit", json!({"sinks": ["stdout"]})),
        ("clock", json!("local")),
        ("dedupe", json!(true)),
        ("default_tier", json!("free")),
        ("deny_cache", json!({"size": 5})),
        ("drain", json!("7s")),
        ("error_answer", json!("grpc_status")),
        ("headers", json!(["ietf"])),
        ("identity", json!({"ip": {"from": {"header": "x-client-ip"}}})),
        ("key_metadata", json!({"max_age": "5s"})),
        ("key_prefix", json!("mine:")),
        ("log", json!({"format": "text"})),
        ("max_connection_age", json!("9m")),
        ("memory", json!({"capacity": 7})),
        ("mode", json!("shadow")),
        ("on_store_error", json!("deny")),
        ("readiness_requires_store", json!(false)),
        ("replicas_hint", json!(9)),
        ("rules", json!([{"name": "a", "match": {"path": {"prefix": "/a"}}, "cost": 2}])),
        ("shutdown", json!("20s")),
        ("strip_api_key", json!(true)),
        ("suspended_answer", json!(429)),
        ("tiers", json!({"free": tier})),
        ("traces", json!({"endpoint": "http://collector:4317"})),
        ("users", json!([{"id": "alice", "tier": "standard"}])),
    ]
}

/// The names of pods that are rolled are those that a process cannot follow: key by key.
#[test]
fn pods_are_rolled_by_those_keys_alone_that_tidegate_does_not_follow() {
    let before = release(&json!({}));
    for (key, value) in changes() {
        let after = release(&json!({key: value}));
        assert_ne!(config_of(&before), config_of(&after), "{key}");
        let rolled = pods(&before) != pods(&after);
        assert_eq!(rolled, takes_restart(&before, &after), "{key}: rolled (left), takes a restart (right)");
    }
    let schema =
        serde_json::from_str::<Value>(&fs::read_to_string(crate::support::chart().join("values.schema.json")).unwrap())
            .unwrap();
    let known = changes();
    for key in schema["$defs"]["Config"]["properties"].as_object().unwrap().keys() {
        assert!(known.iter().any(|(name, _)| name == key), "{key} is new: does a change of it roll the pods?");
    }
}

#[test]
fn pods_are_rolled_by_the_place_of_redis_and_not_by_how_it_is_signed_in_to() {
    let release = |redis: Value| rendered(&json!({"redis": redis}));
    let before = release(json!({"urls": ["rediss://a:6379"]}));
    for (redis, rolled) in [
        (json!({"urls": ["rediss://b:6379"]}), true),
        (json!({"urls": ["rediss://a:6379"], "settings": {"timeout": "30ms"}}), true),
        (json!({"urls": ["rediss://a:6379"], "username": "tidegate"}), false),
    ] {
        let after = release(redis.clone());
        assert_eq!(pods(&before) != pods(&after), rolled, "{redis}");
        assert_eq!(takes_restart(&before, &after), rolled, "{redis}");
    }
}

/// Byte for byte, as text.
#[test]
fn an_upgrade_that_changes_only_limits_leaves_everything_but_the_configmap_as_it_was() {
    let limit = |rate: f64| {
        let tier = json!({"per_ip": {"max_tokens": 10, "refill_rate": rate}});
        written(
            &json!({"replicaCount": 2, "redis": {"embedded": true}, "config": {"tiers": {"free": tier}}}).to_string(),
        )
    };
    for helm in Helm::both() {
        let [before, after] = [1.0, 2.0].map(|rate| {
            let file = limit(rate);
            helm.print("t", &["--values", file.path().to_str().unwrap()]).unwrap()
        });
        let parts = |text: &str| -> Vec<String> { text.split("\n---\n").map(str::to_owned).collect() };
        let (before, after) = (parts(&before), parts(&after));
        assert_eq!(before.len(), after.len());
        let changed: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
        assert_eq!(changed.len(), 1, "{changed:#?}");
        assert!(changed[0].0.contains("kind: ConfigMap"), "{changed:#?}");
    }
}

#[test]
fn a_pod_has_the_time_to_drain_before_it_is_killed() {
    let grace = |values: Value| pods(&rendered(&values))["spec"]["terminationGracePeriodSeconds"].clone();
    assert_eq!(grace(json!({})), 20);
    assert_eq!(grace(json!({"preStopSleepSeconds": 7})), 27);
    assert_eq!(grace(json!({"config": {"drain": "1m 30s", "shutdown": "700ms"}})), 96);
    assert_eq!(grace(json!({"config": {"drain": "0s", "shutdown": "2min"}})), 125);
    assert_eq!(grace(json!({"terminationGracePeriodSeconds": 90})), 90);
    let built_in = tidegate::config::parse(b"{}").unwrap().settings;
    assert_eq!((built_in.drain.as_secs(), built_in.shutdown.as_secs()), (5, 10), "the chart counts with these");
}

#[test]
fn the_kubelet_asks_over_grpc_for_the_services_that_tidegate_knows() {
    let resources = rendered(&json!({}));
    let container = &pods(&resources)["spec"]["containers"][0];
    let asked = |probe: &str| container[probe]["grpc"].clone();
    assert_eq!(asked("startupProbe"), json!({"port": 50051, "service": "liveness"}));
    assert_eq!(asked("livenessProbe"), json!({"port": 50051, "service": "liveness"}));
    assert_eq!(asked("readinessProbe"), json!({"port": 50051, "service": "readiness"}));
    assert_eq!(container["ports"][0], json!({"name": "grpc-ext-authz", "containerPort": 50051, "protocol": "TCP"}));
    let service = &resource(&resources, "Service", "t-tidegate")["spec"]["ports"][0];
    assert_eq!((&service["appProtocol"], &service["name"]), (&json!("grpc"), &json!("grpc-ext-authz")));
}

/// With TLS it cannot, and asks the admin port.
#[test]
fn the_kubelet_asks_the_admin_port_where_grpc_has_tls() {
    let tls = |admin: bool| json!({"tls": {"enabled": true, "existingSecret": "tls", "admin": admin}});
    for (admin, scheme) in [(false, "HTTP"), (true, "HTTPS")] {
        let resources = rendered(&tls(admin));
        let probe = &pods(&resources)["spec"]["containers"][0]["readinessProbe"];
        assert_eq!(probe["httpGet"], json!({"path": "/readyz", "port": "http-admin", "scheme": scheme}));
        assert!(probe["grpc"].is_null());
    }
}

/// A ConfigMap as the kubelet mounts it: files are links into `..data`, which is a link itself.
struct Mounted(TempDir);

impl Mounted {
    fn new(text: &str) -> Self {
        let mounted = Self(tempfile::tempdir().unwrap());
        mounted.swap("..first", text);
        std::os::unix::fs::symlink("..data/tidegate.yaml", mounted.file()).unwrap();
        mounted
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.path().join("tidegate.yaml")
    }

    fn swap(&self, generation: &str, text: &str) {
        let at = |name: &str| self.0.path().join(name);
        fs::create_dir(at(generation)).unwrap();
        fs::write(at(generation).join("tidegate.yaml"), text).unwrap();
        std::os::unix::fs::symlink(Path::new(generation), at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
    }
}

#[test]
fn new_limits_of_an_upgrade_are_in_force_soon_after_the_configmap_is_swapped() {
    let text = |max_tokens: u32, refill_rate: f64| {
        let tier = json!({"per_ip": {"max_tokens": max_tokens, "refill_rate": refill_rate}});
        config_of(&rendered(&json!({"config": {"default_tier": "free", "tiers": {"free": tier}}})))
    };
    let mounted = Mounted::new(&text(2, 0.001));
    let service = Tidegate::start_at(&mounted.file(), &[]);
    let pid = service.pid();
    block_on(async {
        let mut client = client(&service).await;
        let mut denied =
            async || client.check(check(&[])).await.unwrap().into_inner().status.is_some_and(|s| s.code != 0);
        assert_eq!([denied().await, denied().await, denied().await], [false, false, true]);
    });
    mounted.swap("..second", &text(50, 1000.0));
    service.wait_for_log("the configuration was reloaded");
    eventually("the new limits are in force", || {
        block_on(async {
            let mut client = client(&service).await;
            let passed = async || client.check(check(&[])).await.unwrap().into_inner();
            let mut passed = passed;
            let answer = passed().await;
            (answer.status.is_none_or(|status| status.code == 0)).then_some(())
        })
    });
    assert_eq!(service.pid(), pid);
}

/// What the pod of the embedded Redis runs, with its directories elsewhere.
fn start_embedded(
    resources: &[Value],
    within: &Path,
    port: u16,
    password: Option<&str>,
) -> crate::support::child::Child {
    let pod = &resource(resources, "StatefulSet", "t-tidegate-redis")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(pod["command"], json!(["sh", "-ec"]));
    let script = pod["args"][0].as_str().unwrap();
    let server = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
    let at = |name: &str| within.join(name).to_str().unwrap().to_owned();
    for name in ["run", "data", "secret"] {
        fs::create_dir(within.join(name)).unwrap();
    }
    if let Some(password) = password {
        fs::write(within.join("secret/redis-password"), password).unwrap();
    }
    let script = script
        .replace("/run/redis", &at("run"))
        .replace("/data", &at("data"))
        .replace("/etc/redis-secret", &at("secret"))
        .replace("port 6379", &format!("port {port}"))
        .replace("bind * -::*", "bind 127.0.0.1")
        .replace("exec redis-server", &format!("exec {server}"));
    crate::support::child::Child::start("redis", Path::new("sh"), &["-ec", &script], &[], within)
}

#[test]
fn the_embedded_redis_starts_and_asks_for_its_password() {
    for password in [None, Some(r#"a "quoted" pass\word #1"#)] {
        let directory = tempfile::tempdir().unwrap();
        let mut values = json!({"redis": {"embedded": true}});
        if let Some(password) = password {
            values["redis"]["auth"]["password"] = json!(password);
        }
        let port = redis::free_port();
        let mut child = start_embedded(&rendered(&values), directory.path(), port, password);
        let answer = |words: &[&str]| {
            let client = ::redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
            let mut connection = client.get_connection().ok()?;
            let mut last = None;
            if let Some(password) = password.filter(|_| words.len() > 1) {
                ::redis::cmd("AUTH").arg(password).exec(&mut connection).unwrap();
            }
            let asked: Result<String, _> = ::redis::cmd("PING").query(&mut connection);
            last.replace(asked.map_err(|error| error.to_string()));
            last
        };
        let pong = child.wait_until("answers", || answer(&["PING", "with a password"]));
        assert_eq!(pong.as_deref(), Ok("PONG"));
        let without = answer(&["PING"]).unwrap();
        assert_eq!(without.is_ok(), password.is_none(), "{without:?}");
        let listed = Command::new("ps").args(["-eo", "args"]).output().map(|output| output.stdout).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&listed).contains("pass\\word"));
    }
}
