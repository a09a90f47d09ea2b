//! Redis misbehaves in every way we know, under a steady load, and each check must still come out right.
//!
//! Real servers, real tidegate processes, black box. What takes minutes is ignored: `make test-faults` runs all of it
//! and writes the table that docs/reliability.md shows.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    unreachable_pub,
    missing_debug_implementations,
    reason = "a test fails by panicking, and its helpers are no interface"
)]

#[allow(dead_code, reason = "shared with benches/check, which uses more of it")]
#[path = "../../benches/check/load.rs"]
mod bench_load;
mod cluster;
mod figures;
mod harness;
#[path = "../../benches/check/http2.rs"]
mod http2;
mod network;
mod policies;
mod sentinel;
mod standalone;
mod support;
