//! tidegate: Envoy external authorization as a distributed token-bucket rate limiter.
//!
//! Modules in reading order. One request is: plan (pure), take (the only await), decide (pure).

pub mod bucket;
pub mod policy;

pub mod clock;
pub mod store;

pub mod app;
pub mod cli;
pub mod config;
