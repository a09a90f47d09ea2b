//! Integration tests: one binary.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test fails by panicking, and tells why")]

mod cli;
mod config;
