//! Tests of the Helm chart and of the files for meshes in `envoy/`: rendered by the real helm, of both generations, and
//! proven on schemas of Kubernetes and of others, on promtool, tidegate, Redis and Envoy themselves.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    unreachable_pub,
    missing_debug_implementations,
    reason = "a test fails by panicking, and says why; its helpers are no interface"
)]

mod config;
mod manifests;
mod mesh;
mod names;
mod pod;
mod readme;
mod refused;
mod rolling;
mod schema;
mod secrets;
mod support;
