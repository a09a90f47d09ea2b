//! End-to-end tests: the shipped configurations in a real Envoy before a real tidegate.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    unreachable_pub,
    reason = "a test fails by panicking, and says why; its modules are nobody else's"
)]

mod answers;
mod failures;
mod grpc;
mod identities;
mod shipped;
mod store;
mod support;
mod tls;
mod traces;
