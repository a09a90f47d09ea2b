//! The trail as a Redis stream, for whoever reads it with XREAD or XRANGE. An entry has one field, `event`.
//!
//! It has connections of its own: what is written here takes no place of a check's call.

use super::sink::{Outcome, Sink};
use crate::store::StoreError;
use crate::store::redis::{CallLimits, Credentials, RedisSettings, RedisStore};
use futures_util::future::join_all;
use std::time::Duration;

/// Entries that are on their way at once, in one write and one read of the connection.
const IN_FLIGHT: usize = 64;

/// Nobody waits for an entry, so a Redis that is slow is given more time than a check is.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The Redis that holds the stream.
#[derive(Clone, Debug)]
pub struct StreamServers {
    pub settings: RedisSettings,
    /// Those of the store of buckets, so that a secret that changes is followed here too.
    pub credentials: Credentials,
}

/// A stream of limited length.
#[derive(Debug)]
pub(super) struct Stream {
    redis: RedisStore,
    key: String,
    max_length: u64,
}

impl Stream {
    /// The stream under `key` in the Redis of `servers`.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(super) fn new(servers: StreamServers, key: String, max_length: u64) -> Self {
        let StreamServers { settings, credentials } = servers;
        let timeout = settings.limits.timeout.max(TIMEOUT);
        // The trail has its own way to try again, and to say so once; and no hung server is asked often.
        let breaker_failures = u32::MAX;
        let limits =
            CallLimits { timeout, pool_size: 1, max_in_flight: IN_FLIGHT, breaker_failures, ..settings.limits };
        let redis = RedisStore::signed_in_with(RedisSettings { limits, ..settings }, credentials);
        Self { redis, key, max_length }
    }

    /// How many of the first entries are there, and why the next is not.
    async fn append(&self, lines: &[String]) -> (usize, Option<StoreError>) {
        let entries = lines.iter().map(|line| self.redis.append(&self.key, self.max_length, line.trim_end()));
        let mut answers = join_all(entries).await.into_iter();
        let failed = answers.by_ref().enumerate().find_map(|(place, answer)| Some((place, answer.err()?)));
        failed.map_or((lines.len(), None), |(place, error)| (place, Some(error)))
    }
}

impl Sink for Stream {
    async fn write(&mut self, lines: &[String]) -> Outcome {
        let mut written = 0;
        for part in lines.chunks(IN_FLIGHT) {
            let (more, error) = self.append(part).await;
            written += more;
            if let Some(error) = error {
                return Outcome { written, failure: Some(error.to_string()) };
            }
        }
        Outcome { written, failure: None }
    }
}
