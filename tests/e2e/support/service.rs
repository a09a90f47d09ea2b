//! The real service, on the shipped configuration with limits that a test can reach and predict.

use super::child::{self, Child};
use super::{repository, shipped};
use serde_json::{Value, json};
use std::path::PathBuf;
use tempfile::TempDir;

/// Tokens a second at which no test sees one flow in.
const SLOWLY: f64 = 0.001;

/// `envoy/tidegate.yaml` with other tiers: free 3, standard 10, enterprise 50, none of them refilled in a test's time;
/// fast has 3 and gets one a second. Only free limits addresses.
pub fn config() -> Value {
    let quota = |max_tokens: u32, refill_rate: f64| json!({"max_tokens": max_tokens, "refill_rate": refill_rate});
    let tier = |max_tokens, rate| json!({"per_user": quota(max_tokens, rate), "per_key": quota(max_tokens, rate)});
    let mut config = shipped("envoy/tidegate.yaml");
    config["tiers"] = json!({
        "free": {"per_user": quota(3, SLOWLY), "per_key": quota(3, SLOWLY), "per_ip": quota(3, SLOWLY)},
        "standard": tier(10, SLOWLY),
        "enterprise": tier(50, SLOWLY),
        "fast": tier(3, 1.0),
    });
    config["drain"] = json!("2s");
    config
}

/// A running tidegate.
#[derive(Debug)]
pub struct Tidegate {
    child: Child,
    listen: String,
    _directory: TempDir,
}

impl Tidegate {
    pub fn start(config: &Value) -> Self {
        Self::start_with(config, "127.0.0.1:0", &[])
    }

    pub fn start_with(config: &Value, listen: &str, env: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tidegate.yaml");
        child::write(&file, &config.to_string());
        let arguments = ["serve", "--config", file.to_str().unwrap(), "--listen", listen];
        let env = [&[("TIDEGATE_LOG_FORMAT", "json"), ("TIDEGATE_ADMIN_LISTEN", "off")], env].concat();
        let mut child = Child::start("tidegate", &binary(), &arguments, &env, directory.path());
        let err = directory.path().join("tidegate.err");
        let listen = child.wait_until("serves", || {
            let log = std::fs::read_to_string(&err).unwrap_or_default();
            log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|line| {
                let serving = line["fields"]["message"] == "serving";
                serving.then(|| line["fields"]["listen"].as_str().unwrap().to_owned())
            })
        });
        Self { child, listen, _directory: directory }
    }

    /// Where it listens: `address:port` or `unix:/path`.
    pub fn listen(&self) -> &str {
        &self.listen
    }

    pub fn child(&self) -> &Child {
        &self.child
    }

    pub fn child_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

pub fn binary() -> PathBuf {
    repository().join(env!("CARGO_BIN_EXE_tidegate"))
}
