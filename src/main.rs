//! argv -> `cli::run` -> exit code.

use std::process::ExitCode;

/// Measured: a fifth more checks per second than with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tidegate::cli::run(std::env::args_os())
}
