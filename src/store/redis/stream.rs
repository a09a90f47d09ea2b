//! A stream that others read: entries are appended to it, and the oldest go when it is long enough.

use super::RedisStore;
use crate::store::Pending;
use deadpool_redis::redis;

/// The one field of an entry.
const FIELD: &str = "event";

impl RedisStore {
    /// Appends an entry to the stream under `key`, of which about `max_length` entries are kept.
    pub fn append<'a>(&'a self, key: &'a str, max_length: u64, entry: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            let mut command = redis::cmd("XADD");
            command.arg(key).arg("MAXLEN").arg("~").arg(max_length).arg("*").arg(FIELD).arg(entry);
            self.query::<redis::Value>(key.as_bytes(), &command).await.map(drop)
        })
    }
}
