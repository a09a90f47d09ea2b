//! `tidegate hash-key`: an API key on standard input -> its digest. The key is never shown.

use super::{Failure, note, print};
use crate::config::{self, Environment, Flags};
use clap::Args;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::PathBuf;

/// The longest key that is read, in bytes: far above what fits into a request's headers.
const MAX_KEY: usize = 64 << 10;

#[derive(Debug, Args)]
pub(super) struct HashKey {
    /// The config file, for its key_pepper [env: TIDEGATE_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) fn run(arguments: HashKey) -> Result<(), Failure> {
    let flags = Flags { config: arguments.config, ..Flags::default() };
    let config = config::load(&flags, &Environment::of_process())?;
    let key = key_on_stdin()?;
    print(&format!("{}\n", config.policy.sources.digester.digest(&key)))
}

/// Reads an API key; one line end at the end is not part of it.
pub(super) fn key_on_stdin() -> Result<Vec<u8>, Failure> {
    let stdin = io::stdin().lock();
    if stdin.is_terminal() {
        note("type the API key, then Enter and Ctrl-D");
    }
    let mut key = Vec::new();
    stdin.take(MAX_KEY as u64 + 1).read_to_end(&mut key)?;
    if key.len() > MAX_KEY {
        return Err(Failure::Other(format!("the key on standard input is longer than {MAX_KEY} bytes")));
    }
    let key = without_line_end(&key);
    if key.is_empty() {
        return Err(Failure::Other("there is no API key on standard input".into()));
    }
    Ok(key.to_vec())
}

fn without_line_end(key: &[u8]) -> &[u8] {
    key.strip_suffix(b"\n").map_or(key, |line| line.strip_suffix(b"\r").unwrap_or(line))
}
