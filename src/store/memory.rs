//! Buckets in this process's memory.
