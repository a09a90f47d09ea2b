//! Buckets in Redis.
