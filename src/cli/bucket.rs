//! `tidegate bucket`: looks at buckets in Redis, or forgets one. Names it as the service does.

mod list;

use super::hash_key::key_on_stdin;
use super::redis::{self, Redis};
use super::{Failure, Source, print};
use crate::app::shown::{self, rfc3339};
use crate::bucket::{Dimension, Key, State, Timestamp};
use crate::config::Config;
use crate::policy::client_ip::{self, ClientAddress};
use crate::policy::identity::stored_user;
use crate::store::Store;
use clap::{Args, Subcommand};
use std::net::IpAddr;

/// Why no buckets are to be had without Redis.
const IN_MEMORY: &str = "buckets in memory live inside the serving process";

const EXAMPLES: &str = "\
Examples:
  tidegate bucket show --user alice --redis-url redis://127.0.0.1:6379/0
  tidegate bucket show --ip 2001:db8::1 --config tidegate.yaml --json
  printf %s \"$API_KEY\" | tidegate bucket reset --key-stdin --config tidegate.yaml

The name of a bucket depends on key_prefix, the pepper and the IP prefixes: give the service's own config and
environment. `tidegate --help` names the environment variables.";

const LISTING: &str = "\
Examples:
  tidegate bucket list --redis-url redis://127.0.0.1:6379/0
  tidegate bucket list --prefix rl:user:al --limit 1000 --config tidegate.yaml --json

Tokens are as they were at last_refill. Bytes of a name that do not print are written as \\x0a. `-`, or null in JSON:
there is none, or none that can be read, which the service takes for a full bucket.";

#[derive(Debug, Subcommand)]
pub(super) enum Bucket {
    /// Print what is stored of a bucket. Nothing stored: it is full
    #[command(after_help = EXAMPLES)]
    Show(Which),
    /// Forget a bucket, which makes it full
    #[command(after_help = EXAMPLES)]
    Reset(Which),
    /// Print the buckets that Redis holds, some at a time and never more than asked for
    #[command(after_help = LISTING)]
    List(list::List),
}

#[derive(Debug, Args)]
pub(super) struct Which {
    #[command(flatten)]
    caller: CallerFlags,
    /// The bucket that rules with this `tier` charge, which is kept apart
    #[arg(long, value_name = "TIER")]
    tier: Option<String>,
    #[command(flatten)]
    source: Source,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct CallerFlags {
    /// The bucket of this user, by the id as the identity provider gives it
    #[arg(long, value_name = "ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    user: Option<String>,
    /// The bucket of the API key on standard input
    #[arg(long)]
    key_stdin: bool,
    /// The bucket of this address, or `unknown`: that of clients without one
    #[arg(long, value_name = "ADDR", value_parser = address)]
    ip: Option<Address>,
}

#[derive(Clone, Copy, Debug)]
enum Address {
    Known(IpAddr),
    Unknown,
}

fn address(text: &str) -> Result<Address, &'static str> {
    match client_ip::parse(text.as_bytes()) {
        Some(address) => Ok(Address::Known(address)),
        None if text == "unknown" => Ok(Address::Unknown),
        None => Err("write an IP address, or unknown"),
    }
}

pub(super) fn run(command: Bucket) -> Result<(), Failure> {
    match command {
        Bucket::Show(which) => {
            let (json, opened) = (which.json, open(which)?);
            let state = opened.ask(|store, key| store.inspect(key))?;
            print(&match json {
                true => format!("{}\n", shown::bucket(&opened.redis.config.policy, &opened.key, state)),
                false => words(&opened.key, state),
            })
        }
        Bucket::Reset(which) => {
            let (json, opened) = (which.json, open(which)?);
            let there_was = opened.ask(|store, key| store.reset(key))?;
            let digester = &opened.redis.config.policy.sources.digester;
            opened.redis.audit(|audit| audit.bucket_reset(&opened.key, digester, redis::BY));
            print(&forgotten(&opened.key, there_was, json))
        }
        Bucket::List(list) => list::run(list),
    }
}

/// A bucket's name, and where it is kept.
struct Opened {
    key: Key,
    redis: Redis,
}

fn open(which: Which) -> Result<Opened, Failure> {
    let redis = redis::open(which.source, IN_MEMORY)?;
    let key = named(&which.caller, which.tier.as_deref(), &redis.config)?;
    Ok(Opened { key, redis })
}

impl Opened {
    fn ask<T>(
        &self,
        ask: impl for<'a> Fn(&'a dyn Store, &'a Key) -> crate::store::Pending<'a, T>,
    ) -> Result<T, Failure> {
        self.redis.wait(self.key.as_str(), ask(self.redis.store.as_ref(), &self.key))
    }
}

fn named(caller: &CallerFlags, tier: Option<&str>, config: &Config) -> Result<Key, Failure> {
    let policy = &config.policy;
    let (dimension, id) = match (&caller.user, caller.ip) {
        (Some(user), _) => (Dimension::User, stored_user(user.as_bytes()).into_owned()),
        (None, Some(address)) => (Dimension::Ip, stored_address(address, config)),
        (None, None) => (Dimension::Key, policy.sources.digester.digest(&key_on_stdin()?).to_string()),
    };
    let unknown = |tier| Failure::Other(format!("--tier: {tier:?} is no tier of this config"));
    let tier = tier.map(|tier| policy.tiers.index(tier.as_bytes()).ok_or_else(|| unknown(tier))).transpose()?;
    Ok(policy.bucket(dimension, &id, tier))
}

fn stored_address(address: Address, config: &Config) -> String {
    match address {
        Address::Known(address) => ClientAddress::new(address, &config.policy.sources.prefixes).to_string(),
        Address::Unknown => ClientAddress::Unknown.to_string(),
    }
}

fn words(key: &Key, state: Option<State>) -> String {
    let key = key.as_str();
    let Some(State { tokens, last_refill }) = state else {
        return format!("{key}\n  nothing is stored: the bucket is full\n");
    };
    let (seconds, time) = (seconds(last_refill), rfc3339(last_refill));
    format!("{key}\n  tokens       {tokens}\n  last_refill  {seconds} ({time})\n")
}

fn forgotten(key: &Key, there_was: bool, json: bool) -> String {
    let key = key.as_str();
    match (json, there_was) {
        (true, _) => format!("{}\n", serde_json::json!({"key": key, "reset": there_was})),
        (false, true) => format!("{key}\n  forgotten: the bucket is full\n"),
        (false, false) => format!("{key}\n  nothing was stored: the bucket was full\n"),
    }
}

fn seconds(at: Timestamp) -> String {
    format!("{}.{:06}", at.micros / 1_000_000, at.micros % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_shown_as_it_is_stored() {
        let key = Key::new("rl:", Dimension::User, "alice");
        let state = State { tokens: 9.25, last_refill: Timestamp { micros: 1_700_000_000_000_001 } };
        let text =
            "rl:user:alice\n  tokens       9.25\n  last_refill  1700000000.000001 (2023-11-14T22:13:20.000001Z)\n";
        assert_eq!(words(&key, Some(state)), text);
        assert!(words(&key, None).contains("full"));
    }
}
