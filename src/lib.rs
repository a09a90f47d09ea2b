//! tidegate: Envoy external authorization as a distributed token-bucket rate limiter.
//!
//! Modules in reading order. One request is: plan (pure), take (the only await), decide (pure).

pub mod bucket;
pub mod policy;

pub mod clock;
pub mod complaint;
pub mod metrics;
pub mod recent;
pub mod store;

pub mod audit;
pub mod jwt;

pub mod limiter;
pub mod trace;

pub mod ext_authz;
pub mod server;

pub mod config;

pub mod app;
pub mod cli;
