//! What the scenarios are made of: servers, sentinels, a cluster, a wire to cut, a steady load, a report.

pub mod load;
pub mod proxy;
pub mod report;
#[path = "../../it/support/mod.rs"]
mod shared;
pub mod trial;

pub use shared::redis::PATIENCE;
pub use shared::{cluster, eventually, field, redis, sentinel, service, told};

use self::redis::Server;

/// How many scripts a server has run, or refused to.
pub fn scripts_run(server: &Server) -> u64 {
    let told: String = server.run(&["INFO", "commandstats"]);
    let calls = |name| field(&told, name).and_then(|line| line.split([',', '=']).nth(1)?.parse::<u64>().ok());
    ["cmdstat_evalsha", "cmdstat_eval"].into_iter().filter_map(calls).sum()
}
