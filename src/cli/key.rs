//! `tidegate key`: what Redis says of one API key, written, shown and deleted. The key itself is never shown.

use super::hash_key::key_on_stdin;
use super::redis::{self, Redis};
use super::{Failure, Source, print};
use crate::bucket::{Dimension, Quota};
use crate::config::Config;
use crate::policy::api_key::{ApiKey, Digest};
use crate::policy::key_fields::{self, NAME, SUSPENDED, TIER};
use crate::policy::tier::TierSource;
use crate::store::{Fields, KeyMetadata as _};
use clap::{Args, Subcommand};
use serde_json::json;
use std::convert::Infallible;

const EXAMPLES: &str = "\
Examples:
  printf %s \"$API_KEY\" | tidegate key set --key-stdin --tier enterprise --name acme --config tidegate.yaml
  tidegate key set --digest 27bfcdcb2e1daa6e9bd7d26e2f0ab4cd --per-key 500@10 --redis-url redis://127.0.0.1:6379/0
  tidegate key set --digest 27bfcdcb2e1daa6e9bd7d26e2f0ab4cd --suspended true --config tidegate.yaml
  tidegate key set --digest 27bfcdcb2e1daa6e9bd7d26e2f0ab4cd --tier '' --config tidegate.yaml
  tidegate key show --digest 27bfcdcb2e1daa6e9bd7d26e2f0ab4cd --config tidegate.yaml --json
  tidegate key delete --digest 27bfcdcb2e1daa6e9bd7d26e2f0ab4cd --config tidegate.yaml

What Redis says counts for keys that the config's api_keys does not name, within key_metadata.max_age. The names of
tiers, key_prefix and the pepper are the service's: give its own config and environment.
`tidegate --help` names the environment variables.";

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Set what is given and leave the rest as it is; an empty value removes what was set
    #[command(after_help = EXAMPLES)]
    Set(Set),
    /// Print what Redis says of a key, and what of it does not count
    #[command(after_help = EXAMPLES)]
    Show(Which),
    /// Delete what Redis says of a key
    #[command(after_help = EXAMPLES)]
    Delete(Which),
}

#[derive(Debug, Args)]
pub(super) struct Set {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    changes: Changes,
}

#[derive(Debug, Args)]
pub(super) struct Which {
    #[command(flatten)]
    key: KeyFlags,
    #[command(flatten)]
    source: Source,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct KeyFlags {
    /// The API key on standard input
    #[arg(long)]
    key_stdin: bool,
    /// The API key of this digest, as `tidegate hash-key` prints it
    #[arg(long, value_name = "DIGEST")]
    digest: Option<String>,
}

// What is given for a digest may be the key itself, by mistake.
impl std::fmt::Debug for KeyFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyFlags").field("key_stdin", &self.key_stdin).finish_non_exhaustive()
    }
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct Changes {
    /// Its tier, one of the config's
    #[arg(long, value_name = "TIER", value_parser = tier)]
    tier: Option<Change<String>>,
    /// Its name, for logs and metadata
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: Option<Change<String>>,
    /// Whether it is always denied: true or false
    #[arg(long, value_name = "BOOL", value_parser = suspended)]
    suspended: Option<Change<bool>>,
    /// What its users may spend instead of what their tier says: max_tokens@refill_rate
    #[arg(long, value_name = "MAX@RATE", value_parser = quota)]
    per_user: Option<Change<Quota>>,
    /// What it may spend instead of what its tier says: max_tokens@refill_rate
    #[arg(long, value_name = "MAX@RATE", value_parser = quota)]
    per_key: Option<Change<Quota>>,
    /// What its addresses may spend instead of what the tier says: max_tokens@refill_rate
    #[arg(long, value_name = "MAX@RATE", value_parser = quota)]
    per_ip: Option<Change<Quota>>,
}

/// What is to become of a field.
#[derive(Clone, Debug)]
enum Change<T> {
    Set(T),
    Remove,
}

fn change<T, E>(text: &str, parse: impl FnOnce(&str) -> Result<T, E>) -> Result<Change<T>, E> {
    if text.is_empty() { Ok(Change::Remove) } else { parse(text).map(Change::Set) }
}

fn tier(text: &str) -> Result<Change<String>, Infallible> {
    change(text, |text| Ok(text.to_owned()))
}

fn name(text: &str) -> Result<Change<String>, &'static str> {
    let right = "write at most 128 bytes without control characters";
    change(text, |text| key_fields::is_name(text).then(|| text.to_owned()).ok_or(right))
}

fn suspended(text: &str) -> Result<Change<bool>, &'static str> {
    change(text, |text| text.parse().map_err(|_| "write true or false"))
}

fn quota(text: &str) -> Result<Change<Quota>, String> {
    change(text, |text| {
        let pair = text.split_once('@').and_then(|(max, rate)| Some((max.parse().ok()?, rate.parse().ok()?)));
        let (max_tokens, refill_rate) = pair.ok_or("write max_tokens@refill_rate, such as 500@10")?;
        Quota::parse(max_tokens, refill_rate).map_err(|error| error.to_string())
    })
}

pub(super) fn run(command: KeyCommand) -> Result<(), Failure> {
    match command {
        KeyCommand::Set(Set { which, changes }) => {
            let (json, key) = (which.json, open(which)?);
            key.change(&changes)?;
            print(&key.said()?.words(json))
        }
        KeyCommand::Show(which) => {
            let (json, key) = (which.json, open(which)?);
            print(&key.said()?.words(json))
        }
        KeyCommand::Delete(which) => {
            let (json, key) = (which.json, open(which)?);
            let there_was = key.delete()?;
            key.redis.audit(|audit| audit.key_deleted(&key.digest, redis::BY));
            print(&deleted(&key.entry, there_was, json))
        }
    }
}

/// A key, and where it is kept.
struct Opened {
    digest: Digest,
    entry: String,
    redis: Redis,
}

fn open(which: Which) -> Result<Opened, Failure> {
    let given = which.key.digest.as_deref().map(str::parse::<Digest>).transpose();
    // The text is not repeated: it may be the key itself.
    let given = given.map_err(|error| Failure::Usage(format!("--digest: {error}, never the key itself")))?;
    let redis = redis::open(which.source, "nothing else holds what is said of API keys")?;
    let policy = &redis.config.policy;
    let digest = match given {
        Some(digest) => digest,
        None => policy.sources.digester.digest(&key_on_stdin()?),
    };
    Ok(Opened { digest, entry: key_fields::entry(&policy.key_prefix, &digest), redis })
}

impl Opened {
    fn change(&self, changes: &Changes) -> Result<(), Failure> {
        let (set, remove) = fields(changes, &self.redis.config)?;
        self.redis.wait(&self.entry, self.redis.store.write(&self.entry, &set, &remove))?;
        self.redis.audit(|audit| audit.key_set(&self.digest, &told(&set, &remove), redis::BY));
        Ok(())
    }

    fn delete(&self) -> Result<bool, Failure> {
        self.redis.wait(&self.entry, self.redis.store.delete(&self.entry))
    }

    fn said(&self) -> Result<Said, Failure> {
        let mut fields = self.redis.wait(&self.entry, self.redis.store.read(&self.entry))?;
        fields.sort();
        let config = &self.redis.config;
        let configured = config.policy.api_keys.find(&self.digest).map(|key| Configured::new(key, config));
        let notes = notes(&self.digest, &fields, config);
        Ok(Said { entry: self.entry.clone(), digest: self.digest, fields, notes, configured })
    }
}

type Written = (Vec<(&'static str, String)>, Vec<&'static str>);

/// A change in words, such as `tier=gold, name=`: what was removed has no value.
fn told(set: &[(&str, String)], remove: &[&str]) -> String {
    let is_plain = |value: &str| value.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter));
    let set = set.iter().map(|(field, value)| match is_plain(value) {
        true => format!("{field}={value}"),
        false => format!("{field}={value:?}"),
    });
    set.chain(remove.iter().map(|field| format!("{field}="))).collect::<Vec<_>>().join(", ")
}

/// The fields to set, and those to remove.
fn fields(changes: &Changes, config: &Config) -> Result<Written, Failure> {
    let (mut set, mut remove) = Written::default();
    let mut put = |field, value: Option<Change<String>>| match value {
        Some(Change::Set(value)) => set.push((field, value)),
        Some(Change::Remove) => remove.push(field),
        None => {}
    };
    put(TIER, changes.tier.as_ref().map(|tier| known_tier(tier, config)).transpose()?);
    put(NAME, changes.name.clone());
    put(SUSPENDED, changes.suspended.as_ref().map(|change| text(change, bool::to_string)));
    for (dimension, change) in Dimension::ALL.into_iter().zip([&changes.per_user, &changes.per_key, &changes.per_ip]) {
        let [max_tokens, refill_rate] = key_fields::quota_fields(dimension);
        put(max_tokens, change.as_ref().map(|change| text(change, |quota| quota.max_tokens().to_string())));
        put(refill_rate, change.as_ref().map(|change| text(change, |quota| quota.refill_rate().to_string())));
    }
    Ok((set, remove))
}

fn text<T>(change: &Change<T>, text: impl FnOnce(&T) -> String) -> Change<String> {
    match change {
        Change::Set(value) => Change::Set(text(value)),
        Change::Remove => Change::Remove,
    }
}

/// A tier of the config, by the name that it has there.
fn known_tier(tier: &Change<String>, config: &Config) -> Result<Change<String>, Failure> {
    let Change::Set(name) = tier else { return Ok(Change::Remove) };
    let tiers = &config.policy.tiers;
    if let Some(index) = tiers.index(name.as_bytes()) {
        return Ok(Change::Set(tiers.at(index).name.clone()));
    }
    let known: Vec<&str> = tiers.iter().map(|tier| tier.name.as_str()).collect();
    Err(Failure::Other(format!("--tier: {name:?} is no tier of this config; write one of: {}", known.join(", "))))
}

/// What of the fields does not count, and why.
fn notes(digest: &Digest, fields: &Fields, config: &Config) -> Vec<String> {
    if fields.is_empty() {
        return Vec::new();
    }
    let policy = &config.policy;
    let (key, ignored) = key_fields::read(digest, fields, &policy.tiers);
    let mut notes: Vec<String> = ignored.iter().map(|ignored| format!("{} {}", ignored.field, ignored.why)).collect();
    let unknown = fields.iter().map(|(field, _)| field).filter(|field| !key_fields::is_known(field));
    notes.extend(unknown.map(|field| format!("{} means nothing here", field.escape_ascii())));
    if policy.api_keys.find(digest).is_some() {
        notes.push("api_keys of the config names this key: nothing of what Redis says counts".into());
    }
    if config.settings.key_metadata.size == 0 {
        notes.push("key_metadata.size is 0: the service does not ask Redis for keys".into());
    }
    if policy.sources.key.is_empty() {
        notes.push("identity.key is empty: the service reads no API keys".into());
    }
    if key.tier.is_some() && !policy.sources.tier.contains(&TierSource::ApiKey) {
        notes.push("identity.tier does not list api_key: the tier is not read".into());
    }
    notes
}

/// What the config says of the key.
struct Configured {
    name: String,
    tier: Option<String>,
    suspended: bool,
    /// Dimension, `max_tokens`, `refill_rate`.
    limits: Vec<(Dimension, f64, f64)>,
}

impl Configured {
    fn new(key: &ApiKey, config: &Config) -> Self {
        let limit =
            |dimension| key.limits.of(dimension).map(|quota| (dimension, quota.max_tokens(), quota.refill_rate()));
        Self {
            name: key.name.to_string(),
            tier: key.tier.map(|tier| config.policy.tiers.at(tier).name.clone()),
            suspended: key.suspended,
            limits: Dimension::ALL.into_iter().filter_map(limit).collect(),
        }
    }

    fn words(&self) -> String {
        let mut words = vec![format!("name {}", self.name)];
        words.extend(self.tier.as_ref().map(|tier| format!("tier {tier}")));
        words.extend(self.suspended.then(|| "suspended".to_owned()));
        words.extend(self.limits.iter().map(|(dimension, max, rate)| format!("per_{dimension} {max}@{rate}")));
        words.join(", ")
    }

    fn json(&self) -> serde_json::Value {
        let limit = |(dimension, max_tokens, refill_rate): &(Dimension, f64, f64)| {
            (format!("per_{dimension}"), json!({"max_tokens": max_tokens, "refill_rate": refill_rate}))
        };
        let limits: serde_json::Map<String, serde_json::Value> = self.limits.iter().map(limit).collect();
        json!({"name": self.name, "tier": self.tier, "suspended": self.suspended, "limits": limits})
    }
}

/// What is said of a key, in Redis and in the config.
struct Said {
    entry: String,
    digest: Digest,
    /// In the order of their names.
    fields: Fields,
    notes: Vec<String>,
    configured: Option<Configured>,
}

impl Said {
    fn words(&self, json: bool) -> String {
        let fields = self.fields.iter().map(|(field, value)| (shown(field), shown(value)));
        if json {
            let fields: serde_json::Map<String, serde_json::Value> =
                fields.map(|(field, value)| (field, value.into())).collect();
            let config = self.configured.as_ref().map(Configured::json);
            let stored = !self.fields.is_empty();
            let digest = self.digest.to_string();
            let said = json!({
                "key": self.entry, "digest": digest, "stored": stored, "fields": fields, "notes": self.notes, "config": config,
            });
            return format!("{said}\n");
        }
        let mut lines = vec![self.entry.clone()];
        if self.fields.is_empty() {
            lines.push("  nothing is stored".into());
        }
        lines.extend(fields.map(|(field, value)| format!("  {field:<20}  {value}")));
        lines.extend(self.configured.as_ref().map(|key| format!("  api_keys of the config: {}", key.words())));
        lines.extend(self.notes.iter().map(|note| format!("  note: {note}")));
        lines.join("\n") + "\n"
    }
}

/// Text as it may be shown, on one line.
fn shown(text: &[u8]) -> String {
    match std::str::from_utf8(text) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => text.escape_ascii().to_string(),
    }
}

fn deleted(entry: &str, there_was: bool, json: bool) -> String {
    match (json, there_was) {
        (true, _) => format!("{}\n", json!({"key": entry, "deleted": there_was})),
        (false, true) => format!("{entry}\n  deleted: Redis says nothing of this key any more\n"),
        (false, false) => format!("{entry}\n  nothing was stored\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_of_numbers_makes_a_quota_an_empty_text_removes_it_and_nothing_else_does() {
        assert!(matches!(quota("500@0.5"), Ok(Change::Set(quota)) if quota.refill_rate() == 0.5));
        assert!(matches!(quota(""), Ok(Change::Remove)));
        for bad in ["500", "@", "500@", "@10", "0@1", "1@-1", "inf@1", "a@b", "1@2@3"] {
            assert!(quota(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn text_of_others_stays_on_its_line() {
        assert_eq!(shown("caf\u{e9}".as_bytes()), "caf\u{e9}");
        assert_eq!(shown(b"a\nb"), "a\\nb");
        assert_eq!(shown(b"\xff"), "\\xff");
    }
}
