//! A walk over keys by SCAN, some at a time, and what is stored of a bucket whose key is found so.
//!
//! Never KEYS, which stops the server for as long as it looks.

use super::node::Request;
use super::{RedisStore, fault, script};
use crate::bucket::State;
use crate::store::StoreError;
use deadpool_redis::redis::{self, FromRedisValue as _};
use std::time::Duration;

/// How many keys a round looks at. A thousand take the server well below a millisecond.
const ROUND: usize = 1000;

/// Where a walk goes on; the default is where it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Of several servers with slots, how many were walked already.
    server: usize,
    scan: u64,
}

/// What one round found.
#[derive(Clone, Debug)]
pub struct Round {
    /// Keys of hashes, whatever their fields are. A key may be found more than once in a walk.
    pub keys: Vec<Vec<u8>>,
    /// `None` at the end of the walk.
    pub next: Option<Cursor>,
}

/// A bucket as it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Glance {
    /// `None` where the fields are not those of a bucket.
    pub state: Option<State>,
    /// What is left of its life; `None` where it has no end.
    pub ttl: Option<Duration>,
}

impl RedisStore {
    /// One round of a walk over the keys of hashes that begin with `prefix`, taken literally.
    ///
    /// # Errors
    /// As every call.
    pub async fn scan(&self, prefix: &str, from: Cursor) -> Result<Round, StoreError> {
        let mut command = redis::cmd("SCAN");
        command.arg(from.scan).arg("MATCH").arg(beginning_with(prefix)).arg("COUNT").arg(ROUND).arg("TYPE").arg("hash");
        let servers = self.masters().await?;
        let Some(node) = servers.get(from.server) else {
            return Ok(Round { keys: Vec::new(), next: None });
        };
        let reply = node.ask(Request::Command(&command), self.deadline()).await?;
        let (scan, keys) = <(u64, Vec<Vec<u8>>)>::from_redis_value(reply)
            .map_err(|error| StoreError::Protocol(fault::one_line(&error)))?;
        let next = if scan == 0 { Cursor { server: from.server + 1, scan } } else { Cursor { scan, ..from } };
        Ok(Round { keys, next: (next.server < servers.len()).then_some(next) })
    }

    /// What is stored under a key that a walk found; `None` when it is gone.
    ///
    /// # Errors
    /// As every call.
    pub async fn glance(&self, key: &[u8]) -> Result<Option<Glance>, StoreError> {
        let mut fields = redis::cmd("HMGET");
        fields.arg(key).arg("tokens").arg("last_refill");
        let mut life = redis::cmd("PTTL");
        life.arg(key);
        let fields = self.query::<[Option<Vec<u8>>; 2]>(key, &fields);
        let ([tokens, last_refill], millis) = tokio::try_join!(fields, self.query::<i64>(key, &life))?;
        let state = script::state(tokens.as_deref(), last_refill.as_deref());
        Ok(match millis {
            -2 => None,
            millis => Some(Glance { state, ttl: u64::try_from(millis).ok().map(Duration::from_millis) }),
        })
    }
}

/// The pattern that keys with this beginning fit, and no others.
fn beginning_with(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 1);
    for character in prefix.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push('*');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_taken_literally() {
        assert_eq!(beginning_with("rl:user:"), "rl:user:*");
        assert_eq!(beginning_with(r"a*b?[c]\d^-"), r"a\*b\?\[c\]\\d^-*");
        assert_eq!(beginning_with(""), "*");
    }
}
