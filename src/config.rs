//! Configuration: YAML, environment and flags -> a proven [`Config`], or every fault at once with its path.
//!
//! The steps: `document` (text to tree), `structure` (tree to `raw`), `validate` (raw to proven), with `env` for what
//! overrides the file. What comes out holds no YAML, and no secret that `Debug` would show.

pub mod changes;

mod document;
mod env;
mod fault;
mod files;
mod raw;
mod settings;
mod shown;
mod structure;
mod validate;

pub use document::MAX_BYTES;
pub use env::{Environment, Flags, VARIABLES};
pub use fault::{Fault, Faults, MAX_FAULTS};
pub use files::FilesRead;
pub use settings::{ClockSource, DenyCache, KeyMetadata, Log, LogFormat, Redis, Settings, Token};

use crate::policy::Policy;
use env::Overrides;
use fault::Report;
use sha2::{Digest as _, Sha256};
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

/// The config that is used without a file, as `tidegate config default` prints it.
pub const DEFAULT: &str = include_str!("config/default.yaml");

/// A config that was proven to be sound.
#[derive(Debug)]
pub struct Config {
    /// May be swapped while the process runs.
    pub policy: Policy,
    /// What the process is built from; a change needs a restart.
    pub settings: Settings,
    /// Sound, but perhaps not meant. For the caller to tell.
    pub warnings: Vec<Fault>,
    /// The SHA-256 of the text that it was read from, in hex, as `sha256sum FILE` prints it. What flags and environment
    /// say is not in it.
    pub hash: String,
    /// All of it as it may be shown, without secrets.
    pub shown: serde_json::Value,
}

/// Where a process's config comes from, to be read as often as wanted.
#[derive(Clone, Debug)]
pub struct Source {
    pub flags: Flags,
    pub environment: Environment,
}

impl Source {
    /// As [`load`].
    ///
    /// # Errors
    /// Every fault of the file, the environment and the flags.
    pub fn load(&self) -> Result<Config, Faults> {
        load(&self.flags, &self.environment)
    }

    /// As [`load`], for who wants to know when to do it again.
    pub fn read(&self) -> (Result<Config, Faults>, FilesRead) {
        read(&self.flags, &self.environment)
    }

    /// The file that is read; `None`: the built-in config.
    pub fn path(&self) -> Option<PathBuf> {
        config_path(&self.flags, &self.environment)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            Some(path) => path.display().fmt(f),
            None => f.write_str("the built-in one"),
        }
    }
}

/// Loads what `flags`, `env` and the file that one of them names say; without a file, [`DEFAULT`].
///
/// # Errors
/// Every fault of the file, the environment and the flags.
pub fn load(flags: &Flags, env: &Environment) -> Result<Config, Faults> {
    read(flags, env).0
}

fn read(flags: &Flags, env: &Environment) -> (Result<Config, Faults>, FilesRead) {
    let mut report = Report::default();
    let overrides = Overrides::collect(flags, env, &mut report);
    let bytes = match config_path(flags, env) {
        Some(path) => read_file(&path, &mut report),
        None => Some(DEFAULT.as_bytes().to_vec()),
    };
    let config = finish(bytes.as_deref(), &overrides, &mut report);
    (config, report.files)
}

/// The file that [`load`] reads.
pub fn config_path(flags: &Flags, env: &Environment) -> Option<PathBuf> {
    flags.config.clone().or_else(|| env.config())
}

/// Reads a file's text, and nothing of environment and flags.
///
/// # Errors
/// Every fault of the text.
pub fn parse(yaml: &[u8]) -> Result<Config, Faults> {
    finish(Some(yaml), &Overrides::default(), &mut Report::default())
}

/// [`parse`], from a file.
///
/// # Errors
/// Every fault of the file.
pub fn parse_file(path: &Path) -> Result<Config, Faults> {
    let mut report = Report::default();
    let bytes = read_file(path, &mut report);
    finish(bytes.as_deref(), &Overrides::default(), &mut report)
}

/// The JSON Schema of the config file.
pub fn schema() -> serde_json::Value {
    let mut schema = schemars::schema_for!(raw::Raw).into();
    forbid_null(&mut schema);
    schema
}

/// A key may be left out, but not be without a value. schemars says both of an `Option`.
fn forbid_null(node: &mut serde_json::Value) {
    use serde_json::Value;
    let is_null = |kind: &Value| *kind == "null" || kind["type"] == "null";
    match node {
        Value::Object(map) => {
            for key in ["type", "anyOf"] {
                if let Some(Value::Array(kinds)) = map.get_mut(key) {
                    kinds.retain(|kind| !is_null(kind));
                }
            }
            map.values_mut().for_each(forbid_null);
        }
        Value::Array(list) => list.iter_mut().for_each(forbid_null),
        _ => {}
    }
}

fn read_file(path: &Path, report: &mut Report) -> Option<Vec<u8>> {
    match report.files.read(path, MAX_BYTES) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            report.fault(path.display().to_string(), format!("cannot read this file: {error}"));
            None
        }
    }
}

fn finish(bytes: Option<&[u8]>, overrides: &Overrides, report: &mut Report) -> Result<Config, Faults> {
    let tree = bytes.and_then(|bytes| document::read(bytes, &mut report.faults));
    let shown = shown::shown(builtin_tree(&mut Faults::default()), tree.as_ref(), overrides);
    let raw = match tree {
        Some(tree) => structure::read(tree, &mut report.faults),
        // The file cannot be read, but faults of environment and flags can be told with it.
        None => raw::Raw::default(),
    };
    let proven = validate::validate(raw, overrides, report);
    match proven {
        Some((policy, settings)) if report.faults.is_empty() => {
            let hash = bytes.map(sha256).unwrap_or_default();
            Ok(Config { policy, settings, warnings: std::mem::take(&mut report.warnings), hash, shown })
        }
        _ => Err(std::mem::take(&mut report.faults).by_section()),
    }
}

/// The built-in config's, which has no faults.
fn builtin_tree(faults: &mut Faults) -> serde_json::Value {
    document::read(DEFAULT.as_bytes(), faults).unwrap_or_default()
}

/// What a text means as `log.filter`.
///
/// # Errors
/// When it means nothing.
pub fn log_filter(text: &str) -> Result<String, Faults> {
    let mut report = Report::default();
    let filter = validate::log_filter("filter", text, &mut report);
    filter.ok_or(report.faults)
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing into a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
