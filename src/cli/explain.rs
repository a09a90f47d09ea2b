//! `tidegate explain`: a CheckRequest in JSON -> who it is, what it costs, and what would be answered. Takes nothing.

use super::{Failure, Source, note, print};
use crate::app;
use crate::config::{self, Environment};
use crate::ext_authz::{self, json};
use clap::Args;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// The largest request that is read, in bytes.
const MAX_REQUEST: u64 = 1 << 20;

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// A CheckRequest in protobuf's JSON, as Envoy logs it; `-` for standard input
    file: PathBuf,
    #[command(flatten)]
    source: Source,
}

pub(super) fn run(explain: Explain) -> Result<(), Failure> {
    let config = config::load(&explain.source.flags(None), &Environment::of_process())?;
    let name = explain.file.display().to_string();
    let text = read(&explain.file).map_err(|error| Failure::Other(format!("{name}: {error}")))?;
    let check = json::parse(&text).map_err(|error| Failure::Other(format!("{name}: {error}")))?;
    if config.settings.redis.is_none() {
        note("no Redis is configured: every bucket is told as full (a service's own memory is asked at POST /explain)");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let told = runtime.block_on(async {
        let limiter = app::limiter_of(config);
        if let Some(jwt) = limiter.snapshot().jwt() {
            jwt.keys_tried().await;
        }
        ext_authz::explain(&limiter, &check).await
    });
    print(&format!("{told:#}\n"))
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let read = if file == Path::new("-") {
        io::stdin().lock().take(MAX_REQUEST + 1).read_to_end(&mut text)
    } else {
        std::fs::File::open(file)?.take(MAX_REQUEST + 1).read_to_end(&mut text)
    };
    read?;
    if text.len() as u64 > MAX_REQUEST {
        return Err(io::Error::other(format!("is larger than {MAX_REQUEST} bytes")));
    }
    Ok(text)
}
