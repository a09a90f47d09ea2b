//! What a running service exposes when all that can be switched on is.

use super::promql;
use crate::support::admin::get;
use crate::support::redis::Server;
use crate::support::service::{Tidegate, block_on, check, client};
use crate::support::tls::{Authority, Files};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

/// The labels of a metric and their values.
pub type Labels = BTreeMap<String, BTreeSet<String>>;

/// Each metric that is exposed, by its whole name, with all that its series say.
pub fn exposed() -> &'static BTreeMap<String, Labels> {
    static EXPOSED: OnceLock<BTreeMap<String, Labels>> = OnceLock::new();
    EXPOSED.get_or_init(|| {
        let mut exposed = BTreeMap::<String, Labels>::new();
        for line in metrics().lines().filter(|line| !line.starts_with('#')) {
            for selector in promql::read(line).selectors {
                let labels = exposed.entry(selector.metric).or_default();
                for (name, value) in selector.labels {
                    labels.entry(name).or_default().insert(value);
                }
            }
        }
        exposed
    })
}

/// The pages of one service after a check, and of one that serves TLS.
fn metrics() -> String {
    let files = Files::new();
    let (cert, key) = files.write_pair("server", &Authority::new().server());
    let serving_tls = Tidegate::start(&format!("tls: {{cert: {cert:?}, key: {key:?}}}\n"));
    plain() + &get(serving_tls.admin, "/metrics").body
}

fn plain() -> String {
    let server = Server::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    // Nobody collects the spans or has keys, and nobody need.
    let config = format!(
        "redis: {{urls: ['{}'], timeout: 10s}}\non_store_error: local\nreplicas_hint: 1\ndedupe: true\n\
         identity: {{jwt: {{jwks_url: 'http://127.0.0.1:1/keys', issuer: 'https://a', audiences: [a]}}}}\n\
         traces: {{endpoint: 'http://127.0.0.1:1'}}\n\
         audit: {{sinks: [{{file: {{path: {}}}}}, {{redis_stream: {{}}}}]}}\n",
        server.url(),
        folder.path().join("audit.jsonl").display()
    );
    let service = Tidegate::start(&config);
    block_on(async { client(&service).await.check(check(&[])).await.unwrap() });
    get(service.admin, "/metrics").body
}
