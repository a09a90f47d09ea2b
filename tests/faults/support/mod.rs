//! What the scenarios are made of: servers, sentinels, a cluster, a wire to cut, a steady load, a report.

pub mod cluster;
pub mod load;
pub mod proxy;
#[allow(dead_code, reason = "shared with tests/it, which uses more of it")]
#[path = "../../it/support/redis.rs"]
pub mod redis;
pub mod report;
pub mod sentinel;
#[allow(dead_code, reason = "shared with tests/it, which uses more of it")]
#[path = "../../it/support/service.rs"]
pub mod service;
pub mod trial;

use self::redis::Server;
use ::redis as redis_client;
use std::time::{Duration, Instant};

/// Long enough for a busy machine; only a broken one waits that long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again and again until there is something. What is awaited here happens in other processes, which tell nobody.
pub fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A line of a server's INFO, such as `master_link_status` of `replication`; nothing of a server that is down.
pub fn told(server: &Server, section: &str, name: &str) -> Option<String> {
    field(&server.try_run::<String>(&["INFO", section]).ok()?, name)
}

/// Runs a command until it is not refused any more: what it needs to know spreads among servers in its own time.
pub fn insist(server: &Server, words: &[&str]) {
    eventually(&format!("{words:?} is taken"), || server.try_run::<redis_client::Value>(words).ok());
}

/// The value of `name:value` among lines.
pub fn field(lines: &str, name: &str) -> Option<String> {
    lines.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}

/// How many scripts a server has run, or refused to.
pub fn scripts_run(server: &Server) -> u64 {
    let told: String = server.run(&["INFO", "commandstats"]);
    let calls = |name| field(&told, name).and_then(|line| line.split([',', '=']).nth(1)?.parse::<u64>().ok());
    ["cmdstat_evalsha", "cmdstat_eval"].into_iter().filter_map(calls).sum()
}
