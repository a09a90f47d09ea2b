//! The log on standard error, and what of it is written, which can be changed while the process runs.

use super::AppError;
use crate::config::{LogFormat, Settings};
use parking_lot::Mutex;
use std::fmt;
use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use tracing_appender::non_blocking::{ErrorCounter, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

type Follow = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// What is logged.
pub(super) struct Log {
    filter: Mutex<String>,
    follow: Follow,
    dropped: ErrorCounter,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("filter", &self.filter).finish_non_exhaustive()
    }
}

impl Log {
    /// Starts logging. The guard writes out the last lines when it is dropped.
    ///
    /// A thread of its own writes, and drops lines when the reader does not keep up: a full pipe must not stop checks. And
    /// a reader that is gone is nobody's to tell: the subscriber would print that, to the same place, and panic.
    pub(super) fn start(settings: &Settings) -> Result<(Arc<Self>, WorkerGuard), AppError> {
        let filter = EnvFilter::try_new(&settings.log.filter)?;
        let (writer, guard) = tracing_appender::non_blocking(io::stderr());
        let dropped = writer.error_counter();
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).log_internal_errors(false);
        let follow: Follow = match settings.log.format {
            LogFormat::Text => {
                let log = log.with_ansi(io::stderr().is_terminal()).with_filter_reloading();
                let handle = log.reload_handle();
                log.init();
                Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()))
            }
            LogFormat::Json => {
                let log = log.json().with_filter_reloading();
                let handle = log.reload_handle();
                log.init();
                Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()))
            }
        };
        let filter = Mutex::new(settings.log.filter.clone());
        Ok((Arc::new(Self { filter, follow, dropped }), guard))
    }

    /// What is logged now.
    pub(super) fn filter(&self) -> String {
        self.filter.lock().clone()
    }

    /// Has something else logged from now on. `filter` was proven.
    ///
    /// # Errors
    /// When it is no filter.
    pub(super) fn set_filter(&self, filter: &str) -> Result<(), ParseError> {
        let parsed = EnvFilter::try_new(filter)?;
        // It fails only where there is no log any more.
        let _ = (self.follow)(parsed);
        *self.filter.lock() = filter.to_owned();
        Ok(())
    }

    /// Lines that nobody took in time, ever.
    pub(super) fn dropped(&self) -> usize {
        self.dropped.dropped_lines()
    }
}
