//! `tidegate bucket list`: the buckets that Redis holds, by SCAN: never all keys at once, and never for ever.

use crate::app::shown::{moment, rfc3339};
use crate::cli::redis::{self, Redis};
use crate::cli::{Failure, Source, note, print};
use crate::policy::key_fields;
use crate::store::StoreError;
use crate::store::redis::{Cursor, Glance};
use clap::Args;
use futures_util::future::try_join_all;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// What a walk may take: ten million keys or so, or this long.
const ROUNDS: usize = 10_000;
const TIME: Duration = Duration::from_secs(30);

/// How many buckets are looked at together.
const TOGETHER: usize = 32;

#[derive(Debug, Args)]
pub(in crate::cli) struct List {
    /// How their names begin; `*` and the like mean themselves [default: the config's key_prefix]
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Buckets at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    #[command(flatten)]
    source: Source,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Found so far, in the order of their names.
type Buckets = BTreeMap<Vec<u8>, Glance>;

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    All,
    Limit,
    Patience,
}

pub(super) fn run(list: List) -> Result<(), Failure> {
    let List { prefix, limit, source, json } = list;
    let redis = redis::open(source, super::IN_MEMORY)?;
    let prefix = prefix.unwrap_or_else(|| redis.config.policy.key_prefix.clone());
    let (buckets, end) = redis.wait(&format!("{prefix}*"), walk(&redis, &prefix, limit as usize))?;
    let lines = if json { as_json(&buckets) } else { as_table(&buckets) };
    print(&lines)?;
    match end {
        End::All if buckets.is_empty() && !json => note("tidegate: there are none"),
        End::All => {}
        End::Limit => note(&format!("tidegate: there are more than these {limit}; raise --limit or narrow --prefix")),
        End::Patience => {
            note("tidegate: there may be more: Redis holds too many keys to look at all of them; narrow --prefix");
        }
    }
    Ok(())
}

async fn walk(redis: &Redis, prefix: &str, limit: usize) -> Result<(Buckets, End), StoreError> {
    let (mut buckets, mut cursor, begun) = (Buckets::new(), Cursor::default(), Instant::now());
    let entries = key_fields::entries(&redis.config.policy.key_prefix);
    for _ in 0..ROUNDS {
        let round = redis.store.scan(prefix, cursor).await?;
        let is_bucket = |key: &Vec<u8>| !key.starts_with(entries.as_bytes());
        let keys: Vec<Vec<u8>> = round.keys.into_iter().filter(is_bucket).collect();
        for some in keys.chunks(TOGETHER) {
            let glances = try_join_all(some.iter().map(|key| redis.store.glance(key))).await?;
            for (key, glance) in some.iter().zip(glances).filter_map(|(key, glance)| Some((key, glance?))) {
                if buckets.len() == limit && !buckets.contains_key(key) {
                    return Ok((buckets, End::Limit));
                }
                buckets.insert(key.clone(), glance);
            }
        }
        match round.next {
            None => return Ok((buckets, End::All)),
            Some(_) if begun.elapsed() > TIME => break,
            Some(next) => cursor = next,
        }
    }
    Ok((buckets, End::Patience))
}

/// A key as it may be shown, whatever bytes other programs put into theirs.
fn escaped(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    for byte in key {
        // Writing into a String cannot fail.
        let _ = match byte {
            b'\\' => text.write_str(r"\\"),
            graphic if graphic.is_ascii_graphic() => text.write_char(char::from(*graphic)),
            other => write!(text, r"\x{other:02x}"),
        };
    }
    text
}

fn as_json(buckets: &Buckets) -> String {
    let line = |(key, glance): (&Vec<u8>, &Glance)| {
        let last_refill = glance.state.map(|state| moment(state.last_refill));
        let object = serde_json::json!({
            "key": escaped(key),
            "tokens": glance.state.map(|state| state.tokens),
            "last_refill": last_refill,
            "ttl": glance.ttl.map(|ttl| ttl.as_secs_f64()),
        });
        format!("{object}\n")
    };
    buckets.iter().map(line).collect()
}

fn as_table(buckets: &Buckets) -> String {
    const HEAD: [&str; 4] = ["KEY", "TOKENS", "LAST_REFILL", "TTL"];
    const NONE: &str = "-";
    let row = |(key, glance): (&Vec<u8>, &Glance)| {
        let text = |text: Option<String>| text.unwrap_or_else(|| NONE.into());
        [
            escaped(key),
            text(glance.state.map(|state| state.tokens.to_string())),
            text(glance.state.map(|state| rfc3339(state.last_refill))),
            text(glance.ttl.map(|ttl| format!("{}s", ttl.as_secs()))),
        ]
    };
    let rows: Vec<[String; 4]> = buckets.iter().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0).max(HEAD[column].len());
    let widths = [0, 1, 2].map(width);
    let mut table = String::new();
    for row in std::iter::once(HEAD.map(str::to_owned)).chain(rows.iter().cloned()) {
        let [key, tokens, last_refill, ttl] = row;
        let _ = writeln!(table, "{key:0$}  {tokens:1$}  {last_refill:2$}  {ttl}", widths[0], widths[1], widths[2]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::{State, Timestamp};

    fn buckets() -> Buckets {
        let state = State { tokens: 9.25, last_refill: Timestamp { micros: 1_700_000_000_000_001 } };
        Buckets::from([
            (b"rl:user:a".to_vec(), Glance { state: Some(state), ttl: Some(Duration::from_millis(61_500)) }),
            (b"rl:\xff \n\\".to_vec(), Glance { state: None, ttl: None }),
        ])
    }

    #[test]
    fn a_table_has_a_line_a_bucket_and_no_bytes_that_a_terminal_obeys() {
        let expected = "\
KEY                TOKENS  LAST_REFILL                  TTL
rl:user:a          9.25    2023-11-14T22:13:20.000001Z  61s
rl:\\xff\\x20\\x0a\\\\  -       -                            -
";
        assert_eq!(as_table(&buckets()), expected);
        assert_eq!(as_table(&Buckets::new()), "");
    }

    #[test]
    fn json_has_an_object_a_line() {
        let text = as_json(&buckets());
        let lines: Vec<serde_json::Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["tokens"], 9.25);
        assert_eq!(lines[0]["ttl"], 61.5);
        assert_eq!(lines[1]["key"], r"rl:\xff\x20\x0a\\");
        assert_eq!(lines[1]["tokens"], serde_json::Value::Null);
    }
}
