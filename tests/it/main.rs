//! Everything that is tested from outside the crate, in one binary.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    unreachable_pub,
    missing_debug_implementations,
    reason = "a test fails by panicking, and its helpers are no interface"
)]

mod admin;
mod admin_page;
mod agreement;
mod audit;
mod check;
mod cli;
mod config;
mod connections;
mod dashboards;
mod dedupe;
mod deny_cache;
mod docs;
mod fleet;
mod jwt;
mod keys;
mod metrics;
mod modules;
mod operate;
mod outage;
mod policy;
mod probe;
mod redis_cluster;
mod redis_sentinel;
mod redis_store;
mod redis_tls;
mod reload;
mod serve;
mod server_tls;
mod store;
mod storms;
mod support;
mod traces;
mod wire;
