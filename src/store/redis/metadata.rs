//! What the operator keeps of an API key: one HASH without a time to live, read and written by its fields.

use super::RedisStore;
use crate::store::{Fields, KeyMetadata, Pending, StoreError};
use deadpool_redis::redis::{self, FromRedisValue};

impl RedisStore {
    /// `name key` and `words`.
    async fn on_entry<T: FromRedisValue>(&self, name: &str, key: &str, words: &[&str]) -> Result<T, StoreError> {
        let mut command = redis::cmd(name);
        command.arg(key).arg(words);
        self.query(key.as_bytes(), &command).await
    }
}

impl KeyMetadata for RedisStore {
    fn read<'a>(&'a self, key: &'a str) -> Pending<'a, Fields> {
        Box::pin(self.on_entry("HGETALL", key, &[]))
    }

    fn write<'a>(&'a self, key: &'a str, set: &'a [(&'a str, String)], remove: &'a [&'a str]) -> Pending<'a, ()> {
        Box::pin(async move {
            if !set.is_empty() {
                let words: Vec<&str> = set.iter().flat_map(|(field, value)| [*field, value.as_str()]).collect();
                self.on_entry::<redis::Value>("HSET", key, &words).await?;
            }
            if !remove.is_empty() {
                self.on_entry::<redis::Value>("HDEL", key, remove).await?;
            }
            Ok(())
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> Pending<'a, bool> {
        Box::pin(self.on_entry("DEL", key, &[]))
    }
}
