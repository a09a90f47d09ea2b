//! The wiring of meshes: plain files and templates say the same, and the real Envoy runs what the EnvoyFilter adds.

use crate::support::child::{self, Child};
use crate::support::client::Caller;
use crate::support::service::Tidegate;
use crate::support::token::token;
use crate::support::{Helm, config_of, documents, envoy, files, name, rendered, repository, resource, yaml};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const PATIENCE: &str = "20s";

/// The values that make each plain file of `envoy/`.
fn plain() -> Vec<(&'static str, Value)> {
    let gateway = |name: &str| json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": name}]);
    let policy = |policy: Value| json!({"istio": {"provider": {"name": "tidegate"}, "authorizationPolicy": policy}});
    let rules = json!([{"to": [{"operation": {"notPaths": ["/healthz"]}}]}]);
    let ingress = json!({"istio": "ingressgateway"});
    vec![
        (
            "istio/authorization-policy-gateway.yaml",
            policy(json!({"enabled": true, "namespace": "istio-ingress", "selector": ingress, "rules": rules})),
        ),
        (
            "istio/authorization-policy-sidecar.yaml",
            policy(json!({"enabled": true, "namespace": "shop", "selector": {"app": "shop"}})),
        ),
        (
            "istio/authorization-policy-waypoint.yaml",
            policy(json!({"enabled": true, "namespace": "shop", "targetRefs": gateway("waypoint")})),
        ),
        (
            "istio/envoy-filter.yaml",
            json!({"istio": {"envoyFilter": {"enabled": true, "namespace": "istio-ingress", "selector": ingress}}}),
        ),
        ("istio/destination-rule.yaml", json!({"istio": {"destinationRule": {"enabled": true}}})),
        (
            "gateway/security-policy.yaml",
            json!({"envoyGateway": {"securityPolicy": {"enabled": true, "namespace": "edge", "targetRefs": gateway("edge")}}}),
        ),
        ("gateway/envoy-proxy.yaml", json!({"envoyGateway": {"envoyProxy": {"enabled": true, "namespace": "edge"}}})),
    ]
}

#[test]
fn the_plain_files_are_what_the_chart_renders() {
    for (path, values) in plain() {
        let resources = Helm::four().render("tidegate", &values, &["--namespace", "tidegate"]);
        let text = fs::read_to_string(repository().join("envoy").join(path)).unwrap();
        for document in documents(&text) {
            let mut twin = resource(&resources, document["kind"].as_str().unwrap(), "tidegate").clone();
            twin["metadata"].as_object_mut().unwrap().remove("labels");
            assert_eq!(document, twin, "envoy/{path}");
        }
    }
    let known: BTreeSet<_> = plain().iter().map(|(path, _)| Path::new(path).file_name().unwrap().to_owned()).collect();
    for path in [files("envoy/istio", ".yaml"), files("envoy/gateway", ".yaml")].concat() {
        assert!(known.contains(path.file_name().unwrap()) || name(&path) == "mesh-config.yaml", "{}", path.display());
    }
}

#[test]
fn the_plain_provider_is_the_one_that_the_policies_name() {
    let config = yaml("envoy/istio/mesh-config.yaml");
    let provider = &config["meshConfig"]["extensionProviders"][0];
    assert_eq!(provider["name"], yaml("envoy/istio/authorization-policy-gateway.yaml")["spec"]["provider"]["name"]);
    let values = yaml("helm/tidegate/values.yaml");
    let grpc = &provider["envoyExtAuthzGrpc"];
    for key in ["timeout", "failOpen", "statusOnError"] {
        assert_eq!(grpc[key], values["istio"]["provider"][key], "{key}");
    }
    assert_eq!(grpc["service"], yaml("envoy/istio/destination-rule.yaml")["spec"]["host"]);
    assert_eq!(grpc["port"], values["service"]["port"]);
}

#[test]
fn nothing_of_a_mesh_is_rendered_unless_it_is_asked_for() {
    let foreign = |found: &Value| {
        let api = found["apiVersion"].as_str().unwrap();
        api.contains("istio") || api.contains("envoyproxy") || api.contains("monitoring") || api.contains("gateway")
    };
    assert!(!rendered(&json!({})).iter().any(foreign));
}

/// An Envoy such as Istio makes: tokens are verified and their claims put under `payload`; then the router.
pub fn base() -> Value {
    let shipped = yaml("envoy/envoy.yaml");
    let manager = &shipped["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"];
    let filters = manager["http_filters"].as_array().unwrap();
    let mut jwt = filters.iter().find(|filter| filter["name"] == "envoy.filters.http.jwt_authn").unwrap().clone();
    jwt["typed_config"]["providers"]["demo"]["payload_in_metadata"] = json!("payload");
    let local = json!({"socket_address": {"address": "127.0.0.1", "port_value": 0}});
    let api = "type.googleapis.com/envoy.extensions.filters";
    json!({
        "admin": {"address": local},
        "static_resources": {
            "listeners": [{"name": "edge", "address": local, "filter_chains": [{"filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": {
                    "@type": format!("{api}.network.http_connection_manager.v3.HttpConnectionManager"),
                    "stat_prefix": "edge",
                    "use_remote_address": true,
                    "http_filters": [jwt, {
                        "name": "envoy.filters.http.router",
                        "typed_config": {"@type": format!("{api}.http.router.v3.Router")},
                    }],
                    "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{
                        "match": {"prefix": "/"},
                        "direct_response": {"status": 200},
                    }]}]},
                },
            }]}]}],
            "clusters": [],
        },
    })
}

/// Does to an Envoy's configuration what Istio does with an EnvoyFilter's patches, as far as ours go.
fn apply(filter: &Value, config: &mut Value) {
    for patch in filter["spec"]["configPatches"].as_array().unwrap() {
        let (matched, patch, kind) = (&patch["match"], &patch["patch"], patch["applyTo"].as_str().unwrap());
        let value = patch["value"].clone();
        match (kind, patch["operation"].as_str().unwrap()) {
            ("HTTP_FILTER", "INSERT_BEFORE") => {
                let network = &mut config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0];
                let wanted = &matched["listener"]["filterChain"]["filter"];
                assert_eq!(wanted["name"], network["name"]);
                let filters = network["typed_config"]["http_filters"].as_array_mut().unwrap();
                let place = filters.iter().position(|filter| filter["name"] == wanted["subFilter"]["name"]).unwrap();
                filters.insert(place, value);
            }
            ("CLUSTER", "ADD") => config["static_resources"]["clusters"].as_array_mut().unwrap().push(value),
            other => panic!("no idea of {other:?}"),
        }
    }
}

/// What Istio's bootstrap has: where certificates come from.
fn secret_discovery() -> Value {
    json!({
        "name": "sds-grpc",
        "type": "STATIC",
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }},
        "load_assignment": {"cluster_name": "sds-grpc", "endpoints": [{"lb_endpoints": [{
            "endpoint": {"address": {"pipe": {"path": "/var/run/secrets/workload-spiffe-uds/socket"}}},
        }]}]},
    })
}

#[test]
fn the_real_envoy_takes_what_every_envoy_filter_adds() {
    for values in ["istio-envoyfilter-values.yaml", "istio-envoyfilter-mtls-values.yaml"] {
        let resources = rendered(&yaml(&format!("helm/tidegate/ci/{values}")));
        let mut config = base();
        config["node"] = json!({"id": "test", "cluster": "test"});
        config["static_resources"]["clusters"].as_array_mut().unwrap().push(secret_discovery());
        apply(resource(&resources, "EnvoyFilter", "t-tidegate"), &mut config);
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("envoy.json");
        child::write(&file, &config.to_string());
        let arguments = ["--mode", "validate", "--log-level", "warning", "--config-path", file.to_str().unwrap()];
        let output = Command::new(envoy()).args(arguments).output().unwrap();
        assert!(output.status.success(), "{values}: {}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(!said.contains("deprecated"), "{values}: {said}");
    }
}

/// An Envoy, and where requests go in.
pub struct Gateway {
    envoy: std::sync::Mutex<Child>,
    admin: SocketAddr,
    pub edge: SocketAddr,
    _directory: TempDir,
}

impl Gateway {
    /// Starts it, and waits until it finds all of tidegate's replicas well.
    pub fn start(config: &Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (file, admin) = (directory.path().join("envoy.json"), directory.path().join("admin"));
        child::write(&file, &config.to_string());
        let mut arguments =
            vec!["--config-path", file.to_str().unwrap(), "--admin-address-path", admin.to_str().unwrap()];
        arguments.extend(["--disable-hot-restart", "--concurrency", "1"]);
        let mut envoy = Child::start("envoy", &envoy(), &arguments, &[], directory.path());
        let admin = envoy.wait_until("has an admin port", || fs::read_to_string(&admin).ok()?.parse().ok());
        let asked = Caller::new(admin);
        envoy.wait_until("is live", || asked.get("/ready").body.contains("LIVE").then_some(()));
        let listeners = asked.get("/listeners?format=json").json();
        let port = &listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"];
        let edge = SocketAddr::from(([127, 0, 0, 1], u16::try_from(port.as_u64().unwrap()).unwrap()));
        let started = Self { envoy: std::sync::Mutex::new(envoy), admin, edge, _directory: directory };
        started.wait_until_all_are_well();
        started
    }

    pub fn wait_until_all_are_well(&self) {
        let asked = Caller::new(self.admin);
        self.envoy.lock().unwrap().wait_until("finds tidegate well", || {
            let clusters = asked.get("/clusters?format=json").json();
            let hosts = clusters["cluster_statuses"][0]["host_statuses"].as_array()?.clone();
            let well = |host: &Value| host["health_status"]["failed_active_health_check"] != true;
            (!hosts.is_empty() && hosts.iter().all(well)).then_some(())
        });
    }
}

/// Puts the rendered EnvoyFilter into an Envoy's configuration, with tidegate's replicas where the Service's name would
/// lead, and patience for a busy machine.
pub fn filter_of(resources: &[Value], config: &mut Value, replicas: &[SocketAddr]) {
    apply(resource(resources, "EnvoyFilter", "t-tidegate"), config);
    let cluster = &mut config["static_resources"]["clusters"][0];
    cluster["type"] = json!("STATIC");
    let endpoint = |address: &SocketAddr| {
        let socket = json!({"address": address.ip().to_string(), "port_value": address.port()});
        json!({"endpoint": {"address": {"socket_address": socket}}})
    };
    let endpoints: Vec<Value> = replicas.iter().map(endpoint).collect();
    cluster["load_assignment"]["endpoints"] = json!([{"lb_endpoints": endpoints}]);
    let manager = &mut config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"];
    let mut filters = manager["http_filters"].as_array_mut().unwrap().iter_mut();
    let filter = filters.find(|filter| filter["name"] == "envoy.filters.http.ext_authz").unwrap();
    let service = &mut filter["typed_config"]["grpc_service"];
    service["timeout"] = json!(PATIENCE);
    service["retry_policy"]["retry_back_off"]["max_interval"] = json!(PATIENCE);
}

/// tidegate on the rendered ConfigMap, and Envoy with the rendered filters before it.
fn gateway() -> (Tidegate, Gateway) {
    let mut values = yaml("helm/tidegate/ci/istio-envoyfilter-values.yaml");
    values.as_object_mut().unwrap().remove("redis");
    values["replicaCount"] = json!(1);
    let quota = |max_tokens: u32| json!({"max_tokens": max_tokens, "refill_rate": 0.001});
    values["config"]["tiers"] =
        json!({"free": {"per_user": quota(2), "per_ip": quota(2)}, "standard": {"per_user": quota(4)}});
    let resources = rendered(&values);
    let tidegate = Tidegate::start(&config_of(&resources));
    let mut config = base();
    filter_of(&resources, &mut config, &[tidegate.address]);
    let gateway = Gateway::start(&config);
    (tidegate, gateway)
}

#[test]
fn behind_the_envoy_filter_users_are_limited_by_their_claims_and_strangers_by_an_address_they_cannot_forge() {
    let (tidegate, gateway) = gateway();
    let alice = Caller::new(gateway.edge).bearer(&token("alice", "standard"));
    assert_eq!(alice.statuses("/", 6), [200, 200, 200, 200, 429, 429], "{}", tidegate.log());
    let bob = Caller::new(gateway.edge).bearer(&token("bob", "standard"));
    let first = bob.get("/");
    assert_eq!((first.status, first.number("x-ratelimit-limit"), first.number("x-ratelimit-remaining")), (200, 4, 3));

    let stranger = Caller::new(gateway.edge);
    let forging = |address: &str| {
        let headers = [("x-client-ip", address), ("x-forwarded-for", address)];
        stranger.send(http::Method::GET, "/", &headers).status
    };
    let statuses = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(forging);
    assert_eq!(statuses, [200, 200, 429]);
    let denied = stranger.get("/");
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/json")));
    assert!(denied.number("retry-after") >= 1);
}
