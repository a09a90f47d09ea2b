//! The trail on standard output, for whoever collects what a container prints.

use super::lines::Lines;
use super::sink::{Outcome, Sink};
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;

/// Standard output without the buffer that the standard library puts before it.
#[derive(Debug)]
pub(super) struct Stdout {
    out: File,
    lines: Lines,
}

impl Stdout {
    /// # Errors
    /// When no file descriptor is left.
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self { out: io::stdout().as_fd().try_clone_to_owned()?.into(), lines: Lines::default() })
    }
}

impl Sink for Stdout {
    async fn write(&mut self, lines: &[String]) -> Outcome {
        self.lines.write(&mut self.out, lines)
    }
}
