//! The command line: argv -> what is printed, and the exit code: 0 done, 1 failed, 2 wrong usage, 78 bad config.

mod bucket;
mod explain;
mod hash_key;
mod key;
mod probe;
mod redis;
mod validate;

use crate::app;
use crate::config::{self, Environment, Faults, Flags};
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use thiserror::Error;

/// sysexits.h: something was found in an unconfigured or misconfigured state.
const EX_CONFIG: u8 = 78;

/// As clap ends with.
const EX_WRONG_USAGE: u8 = 2;

const ABOUT: &str =
    "A distributed token-bucket rate limiter for Envoy (ext_authz over gRPC), with its buckets in Redis.";

const ENVIRONMENT: &str = "\
Environment (a flag comes before it, the config file after it):
  TIDEGATE_CONFIG               the config file
  TIDEGATE_LISTEN               where Envoy connects: address:port or unix:/path
  TIDEGATE_ADMIN_LISTEN         where probes and Prometheus connect: address:port or off
  TIDEGATE_ADMIN_TOKEN          what operators send there; or TIDEGATE_ADMIN_TOKEN_FILE, a file that holds it
  TIDEGATE_REDIS_URL            redis://host:port/database, or rediss:// for TLS; several with commas between them
  TIDEGATE_REDIS_PASSWORD       its password; or TIDEGATE_REDIS_PASSWORD_FILE, a file that holds it
  TIDEGATE_REDIS_SENTINEL_PASSWORD  that of the sentinels; or TIDEGATE_REDIS_SENTINEL_PASSWORD_FILE
  TIDEGATE_KEY_PEPPER           mixed into the digests of API keys; or TIDEGATE_KEY_PEPPER_FILE
  TIDEGATE_KEY_PEPPER_PREVIOUS  the one before it, while it is replaced; or TIDEGATE_KEY_PEPPER_PREVIOUS_FILE
  TIDEGATE_REPLICA              what this process is called in the audit trail; else the host's name
  TIDEGATE_LOG                  error, warn, info, debug, trace, off, or a list: info,tidegate::store=debug
  TIDEGATE_LOG_FORMAT           text or json

Exit codes: 0 done, 1 failed, 2 wrong usage, 78 bad configuration.";

#[derive(Debug, Parser)]
#[command(name = "tidegate", version, about = ABOUT, after_help = ENVIRONMENT, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service. Without config and Redis: on the built-in config, with buckets in its own memory
    #[command(after_help = SERVE)]
    Serve(Serve),
    /// Check a config file and tell every fault in it. Flags and environment are left aside
    #[command(after_help = VALIDATE)]
    Validate {
        /// A YAML file
        file: PathBuf,
    },
    /// Print configs
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Print the JSON Schema of the config file, for editors and CI
    #[command(after_help = SCHEMA)]
    Schema,
    /// Read an API key on standard input and print its digest, as it stands in `api_keys` and in Redis
    #[command(after_help = HASH_KEY)]
    HashKey(hash_key::HashKey),
    /// Ask a running service whether it is well, for health checks of containers and for people
    #[command(after_help = probe::EXAMPLES)]
    Probe(probe::Probe),
    /// Say what a request would be answered and why. Takes nothing
    #[command(after_help = EXPLAIN)]
    Explain(explain::Explain),
    /// Look at buckets, or make one full
    Bucket {
        #[command(subcommand)]
        command: bucket::Bucket,
    },
    /// Say in Redis what is to be known of an API key: its tier, its limits, whether it is suspended
    Key {
        #[command(subcommand)]
        command: key::KeyCommand,
    },
}

const SERVE: &str = "\
Examples:
  tidegate serve
  tidegate serve --config tidegate.yaml --redis-url redis://127.0.0.1:6379/0
  tidegate serve --listen unix:/run/tidegate.sock

`tidegate --help` names the environment variables.";

const VALIDATE: &str = "\
Examples:
  tidegate validate tidegate.yaml

Prints `FILE: ok` (and warnings), or every fault on standard error, one a line, and ends with 78.";

const SCHEMA: &str = "\
Examples:
  tidegate schema > tidegate.schema.json
and at the head of the config, for editors with yaml-language-server:
  # yaml-language-server: $schema=tidegate.schema.json";

const HASH_KEY: &str = "\
Examples:
  printf %s \"$API_KEY\" | tidegate hash-key
  TIDEGATE_KEY_PEPPER_FILE=/run/secrets/pepper tidegate hash-key < key.txt

One line end at the end is not part of the key. The pepper is the service's: give the same config and environment.";

const EXPLAIN: &str = "\
Examples:
  tidegate explain request.json --config tidegate.yaml --redis-url redis://127.0.0.1:6379/0
  echo '{\"request\": {\"http\": {\"path\": \"/v1/chat\", \"headers\": {\"x-api-key\": \"k\"}}}}' | tidegate explain -

Prints JSON: caller, tier and where that comes from, rule, cost, buckets and how they stand, and the answer. Give the
service's own config and environment. A running service says the same of its own state: POST /explain.";

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the built-in config: a commented YAML file to start from
    Default,
}

#[derive(Args)]
struct Serve {
    #[command(flatten)]
    source: Source,
    /// Where Envoy connects: address:port or unix:/path [env: TIDEGATE_LISTEN]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
}

/// Where settings come from, besides the environment.
#[derive(Args)]
struct Source {
    /// The config file; without one, the built-in config [env: TIDEGATE_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The Redis that holds the buckets [env: TIDEGATE_REDIS_URL]
    #[arg(long, value_name = "URL")]
    redis_url: Option<String>,
}

impl Source {
    fn flags(self, listen: Option<String>) -> Flags {
        Flags { config: self.config, listen, redis_url: self.redis_url }
    }
}

// The URL may hold a password: `Flags` knows how to show it.
impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("config", &self.config).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Serve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serve").field("source", &self.source).field("listen", &self.listen).finish()
    }
}

/// Why a command did not do what it was asked.
#[derive(Debug, Error)]
enum Failure {
    #[error("{0}")]
    Config(#[from] Faults),
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Other(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Other(error.to_string())
    }
}

impl Failure {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) => ExitCode::from(EX_CONFIG),
            Self::Usage(_) => ExitCode::from(EX_WRONG_USAGE),
            Self::Other(_) => ExitCode::FAILURE,
        }
    }
}

/// Does what `argv` says.
pub fn run(argv: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(argv) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too. Nobody is left to tell when the terminal is gone.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match command(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&failure);
            failure.exit_code()
        }
    }
}

fn command(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(serve) => run_service(serve),
        Command::Validate { file } => validate::run(&file),
        Command::Config { command: ConfigCommand::Default } => print(config::DEFAULT),
        Command::Schema => print(&format!("{:#}\n", config::schema())),
        Command::HashKey(arguments) => hash_key::run(arguments),
        Command::Probe(arguments) => probe::run(arguments),
        Command::Explain(arguments) => explain::run(arguments),
        Command::Bucket { command } => bucket::run(command),
        Command::Key { command } => key::run(command),
    }
}

fn run_service(serve: Serve) -> Result<(), Failure> {
    let source = config::Source { flags: serve.source.flags(serve.listen), environment: Environment::of_process() };
    let (config, files) = source.read();
    let config = config.inspect_err(|_| {
        note(&format!("tidegate: cannot serve with this configuration (file: {source}), flags and environment:"));
    })?;
    app::serve(config, source, files).map_err(|error| Failure::Other(error.to_string()))
}

/// Writes to standard output. A reader that went away, as `head` does, is no failure.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Writes a line to standard error. When that is gone there is nobody to tell.
fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

fn complain(failure: &Failure) {
    match failure {
        Failure::Config(faults) => {
            note(&faults.to_string());
            note(&format!("tidegate: {}", validate::counted(faults)));
        }
        Failure::Usage(why) | Failure::Other(why) => note(&format!("tidegate: {why}")),
    }
}
