//! The real Envoy, on the shipped configuration with free ports, a real upstream and a test's own changes.

use super::child::{self, Child};
use super::client::{Answer, Caller};
use super::{eventually, repository, shipped, upstream};
use http::Method;
use serde_json::{Value, json};
use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// Long enough for a busy machine: by default no test is to meet the timeout of a Check.
const PATIENCE: &str = "20s";

/// Envoy's configuration: the shipped file, and what a test changes in it.
#[derive(Clone, Debug)]
pub struct Config(Value);

impl Config {
    /// `envoy/envoy.yaml` as it is, but for ports, the upstream in place of direct responses, the Check's timeout, and
    /// a faster health check.
    pub fn new(limiters: &[&str]) -> Self {
        let mut config = Self(shipped("envoy/envoy.yaml"));
        config.at("/admin/address/socket_address")["port_value"] = json!(0);
        config.at("/static_resources/listeners/0/address/socket_address")["port_value"] = json!(0);
        config.route_to_upstream();
        let service = config.ext_authz().get_mut("grpc_service").unwrap();
        service["timeout"] = json!(PATIENCE);
        service["retry_policy"]["retry_back_off"]["max_interval"] = json!(PATIENCE);
        let limiter = config.limiter();
        let endpoints: Vec<Value> = limiters.iter().map(|listen| endpoint(listen)).collect();
        limiter["load_assignment"]["endpoints"] = json!([{"lb_endpoints": endpoints}]);
        limiter["type"] = json!("STATIC");
        limiter["health_checks"][0]["interval"] = json!("0.2s");
        limiter["health_checks"][0]["no_traffic_interval"] = json!("0.2s");
        config
    }

    /// Sends Envoy's own spans to a collector, as docs/tracing.md shows it.
    pub fn trace_to(&mut self, collector: &str) {
        let text = std::fs::read_to_string(repository().join("docs/tracing.md")).unwrap();
        let shown = |place: usize| text.split("```yaml\n# envoy: ").nth(place).unwrap().split_once("\n").unwrap().1;
        let block = |place| -> Value { serde_yaml::from_str(shown(place).split("```").next().unwrap()).unwrap() };
        self.connection_manager()["tracing"] = block(1)["tracing"].clone();
        let mut cluster = block(2)["clusters"][0].clone();
        cluster["type"] = json!("STATIC");
        cluster["load_assignment"]["endpoints"] = json!([{"lb_endpoints": [endpoint(collector)]}]);
        self.at("/static_resources/clusters").as_array_mut().unwrap().push(cluster);
    }

    /// Connects to the limiters as docs/tls.md shows it, with certificates in another folder.
    pub fn connect_by_tls(&mut self, folder: &Path) {
        let text = std::fs::read_to_string(repository().join("docs/tls.md")).unwrap();
        let shown = text.split("```yaml\n# envoy: in the cluster\n").nth(1).unwrap().split("```").next().unwrap();
        let block: Value = serde_yaml::from_str(&shown.replace("/etc/envoy/tls", folder.to_str().unwrap())).unwrap();
        self.limiter()["transport_socket"] = block["transport_socket"].clone();
    }

    fn route_to_upstream(&mut self) {
        for route in self.connection_manager()["route_config"]["virtual_hosts"][0]["routes"].as_array_mut().unwrap() {
            let fields = route.as_object_mut().unwrap();
            if fields.remove("direct_response").is_some() {
                fields.remove("response_headers_to_add");
                fields.insert("route".to_owned(), json!({"cluster": "upstream"}));
            }
        }
        let address = upstream::address().to_string();
        let cluster = json!({
            "name": "upstream",
            "type": "STATIC",
            "connect_timeout": PATIENCE,
            "load_assignment": {"cluster_name": "upstream", "endpoints": [{"lb_endpoints": [endpoint(&address)]}]},
            // HTTP/1.1 to HTTP/1.1, gRPC to HTTP/2.
            "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "use_downstream_protocol_config": {"http_protocol_options": {}, "http2_protocol_options": {}},
            }},
        });
        self.at("/static_resources/clusters").as_array_mut().unwrap().push(cluster);
    }

    fn at(&mut self, pointer: &str) -> &mut Value {
        self.0.pointer_mut(pointer).unwrap_or_else(|| panic!("envoy.yaml has no {pointer}"))
    }

    fn connection_manager(&mut self) -> &mut Value {
        self.at("/static_resources/listeners/0/filter_chains/0/filters/0/typed_config")
    }

    /// The settings of the ext_authz filter.
    pub fn ext_authz(&mut self) -> &mut Value {
        let filters = self.connection_manager()["http_filters"].as_array_mut().unwrap();
        let filter = filters.iter_mut().find(|filter| filter["name"] == "envoy.filters.http.ext_authz").unwrap();
        &mut filter["typed_config"]
    }

    /// The cluster of tidegate's replicas.
    pub fn limiter(&mut self) -> &mut Value {
        let clusters = self.at("/static_resources/clusters").as_array_mut().unwrap();
        clusters.iter_mut().find(|cluster| cluster["name"] == "limiter").unwrap()
    }
}

fn endpoint(listen: &str) -> Value {
    let address = match listen.strip_prefix("unix:") {
        Some(path) => json!({"pipe": {"path": path}}),
        None => {
            let address: SocketAddr = listen.parse().unwrap();
            json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
        }
    };
    json!({"endpoint": {"address": address}})
}

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    child: Child,
    admin: SocketAddr,
    edge: SocketAddr,
    _directory: TempDir,
}

impl Envoy {
    /// Starts, and waits until requests pass through and the limiters are known to be well.
    pub fn start(config: &Config) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (file, admin) = (directory.path().join("envoy.json"), directory.path().join("admin"));
        child::write(&file, &config.0.to_string());
        let arguments = [
            "--config-path",
            file.to_str().unwrap(),
            "--admin-address-path",
            admin.to_str().unwrap(),
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "--file-flush-interval-msec",
            "20",
            "--log-level",
            "info",
        ];
        let mut child = Child::start("envoy", binary(), &arguments, &[], directory.path());
        let admin = child.wait_until("has an admin port", || std::fs::read_to_string(&admin).ok()?.parse().ok());
        let asked = Caller::new(admin);
        child.wait_until("is live", || asked.get("/ready").body.contains("LIVE").then_some(()));
        child.wait_until("finds the limiters well", || {
            let clusters = asked.get("/clusters?format=json").json();
            let mut clusters = clusters["cluster_statuses"].as_array().unwrap().iter();
            let limiter = clusters.find(|cluster| cluster["name"] == "limiter").unwrap();
            let well = |host: &Value| host["health_status"]["failed_active_health_check"] != true;
            limiter["host_statuses"].as_array().unwrap().iter().all(well).then_some(())
        });
        let listeners = asked.get("/listeners?format=json").json();
        let edge = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
        let edge = format!("{}:{}", edge["address"].as_str().unwrap(), edge["port_value"]).parse().unwrap();
        Self { child, admin, edge, _directory: directory }
    }

    /// Where requests go in.
    pub fn edge(&self) -> SocketAddr {
        self.edge
    }

    pub fn child(&self) -> &Child {
        &self.child
    }

    /// Asks the admin interface to do something.
    pub fn order(&self, path: &str) -> Answer {
        Caller::new(self.admin).send(Method::POST, path, &[])
    }

    /// One of the ext_authz filter's counters, such as `ok`; 0 when it was never counted up.
    pub fn counted(&self, name: &str) -> u64 {
        self.stat(&format!("http.edge.ext_authz.ratelimit.{name}"))
    }

    pub fn stat(&self, name: &str) -> u64 {
        let stats = Caller::new(self.admin).get(&format!("/stats?filter=^{name}$")).body;
        stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok()).unwrap_or(0)
    }

    /// The access log's entry of a path that was asked for once.
    pub fn logged(&self, path: &str) -> Value {
        eventually(&format!("{path} is in the access log"), || {
            let log = self.child.out();
            let mut entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            entries.find(|entry| entry["path"] == path)
        })
    }
}

/// Asks Envoy whether it accepts a configuration.
pub fn validate(file: &Path) -> Result<(), String> {
    let output = Command::new(binary())
        .args(["--mode", "validate", "--log-level", "warning", "--config-path"])
        .arg(file)
        .output()
        .unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let fetched = repository().join(".tools/venv/bin/envoy");
        let candidates = [env::var_os("ENVOY").map(PathBuf::from), Some("envoy".into()), Some(fetched)];
        let runs =
            |program: &PathBuf| Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
        candidates.into_iter().flatten().find(runs).unwrap_or_else(|| {
            panic!(
                "no Envoy: these tests need a real one. `scripts/tool envoy` fetches it; or set ENVOY=/path/to/envoy"
            )
        })
    })
}
