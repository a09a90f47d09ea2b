//! What tests share: servers to run against, and short ways to say charges. tests/faults shares it too.
#![allow(dead_code, reason = "two test binaries share this, and neither uses all of it")]

pub mod admin;
pub mod cluster;
pub mod collector;
mod eventually;
pub mod issuer;
pub mod jwks_server;
pub mod redis;
pub mod sentinel;
pub mod service;
pub mod tls;

pub use self::eventually::eventually;
use self::redis::Server;
use std::sync::Arc;
use tidegate::bucket::{Charge, Dimension, Key, Quota, Timestamp};
use tidegate::clock::SetClock;
use tidegate::policy::Policy;
use tidegate::policy::api_key::ApiKeys;
use tidegate::policy::decision::{Answers, FailurePolicy, Mode};
use tidegate::policy::identity::Sources;
use tidegate::policy::limits::Users;
use tidegate::policy::tier::Tiers;

/// The time at which set clocks start: 2023-11-14, so that a stamp has as many digits as a real one.
pub const START: u64 = 1_700_000_000_000_000;

/// A refill rate at which no test sees a token flow in.
pub const NEVER: f64 = 1e-6;

pub fn quota(max_tokens: f64, refill_rate: f64) -> Quota {
    Quota::parse(max_tokens, refill_rate).unwrap()
}

pub fn charge(key: &Key, quota: Quota, cost: f64) -> Charge {
    Charge { key: key.clone(), quota, cost }
}

/// A policy of tiers and sources, and of nothing else.
pub fn policy(tiers: Tiers, sources: Sources) -> Policy {
    Policy {
        key_prefix: "rl:".into(),
        tiers,
        sources,
        api_keys: ApiKeys::default(),
        users: Users::default(),
        rules: Vec::new(),
        mode: Mode::Enforce,
        on_store_error: FailurePolicy::Allow,
        answers: Answers::default(),
    }
}

/// A prefix that no other test uses.
pub fn unique_prefix() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("t{}:", COUNT.fetch_add(1, Ordering::Relaxed))
}

pub fn user(prefix: &str, id: &str) -> Key {
    Key::new(prefix, Dimension::User, id)
}

/// A set clock that can be moved by seconds from [`START`].
#[derive(Clone, Debug)]
pub struct Hands(pub Arc<SetClock>);

impl Hands {
    pub fn new() -> Self {
        Self(Arc::new(SetClock::new(Timestamp { micros: START })))
    }

    pub fn set_micros(&self, since_start: i64) {
        self.0.set(Timestamp { micros: START.checked_add_signed(since_start).unwrap() });
    }

    pub fn set_seconds(&self, since_start: i64) {
        self.set_micros(since_start * 1_000_000);
    }
}

/// A line of a server's INFO, such as `master_link_status` of `replication`; nothing of a server that is down.
pub fn told(server: &Server, section: &str, name: &str) -> Option<String> {
    field(&server.try_run::<String>(&["INFO", section]).ok()?, name)
}

/// Runs a command until it is not refused any more: what it needs to know spreads among servers in its own time.
pub fn insist(server: &Server, words: &[&str]) {
    eventually(&format!("{words:?} is taken"), || server.try_run::<::redis::Value>(words).ok());
}

/// The value of `name:value` among lines.
pub fn field(lines: &str, name: &str) -> Option<String> {
    lines.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}
