//! The composition root: builds the parts and runs them. A placeholder until the server is in the tree.

use crate::config::{Config, Settings};
use crate::store::Store;
use std::sync::Arc;
use thiserror::Error;

/// Why the service did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AppError {
    #[error("this build of tidegate has no {0} yet")]
    NotBuilt(&'static str),
}

/// Runs the service until it is told to end.
///
/// # Errors
/// When it cannot start.
pub fn serve(_config: Config) -> Result<(), AppError> {
    Err(AppError::NotBuilt("server"))
}

/// The store that the settings ask for. To be called inside a tokio runtime.
///
/// # Errors
/// When it cannot be built. It need not answer yet.
pub fn store(_settings: &Settings) -> Result<Arc<dyn Store>, AppError> {
    Err(AppError::NotBuilt("store"))
}
