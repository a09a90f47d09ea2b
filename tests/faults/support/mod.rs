//! What the scenarios are made of: servers, sentinels, a cluster, a wire to cut, a steady load, a report.

pub mod load;
pub mod proxy;
pub mod report;
#[path = "../../it/support/mod.rs"]
mod shared;
pub mod trial;

pub use shared::redis::PATIENCE;
pub use shared::{cluster, eventually, field, redis, sentinel, service, told};
