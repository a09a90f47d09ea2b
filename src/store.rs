//! The port to where buckets are kept: take, peek, reset, probe; and one to where metadata of API keys are.
//!
//! A store takes charges and gives token levels. It knows no identities, tiers or answers.

pub mod deny_cache;
pub mod memory;
pub mod redis;

use crate::bucket::{Charge, Key, State, Taken};
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use thiserror::Error;

/// What a store's calls return: boxed, so that stores can be wrapped and chosen at run time.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A place where buckets are kept. `tests/it/store.rs` is the suite that every implementation must pass.
pub trait Store: Debug + Send + Sync {
    /// Takes all charges, or none: see [`crate::bucket::take`]. The keys of `charges` are distinct.
    fn take<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken>;

    /// Tells what [`Store::take`] would find, and writes nothing. `levels` are the tokens before any cost.
    fn peek<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken>;

    /// Reads what is stored of one bucket, without refilling it.
    fn inspect<'a>(&'a self, key: &'a Key) -> Pending<'a, Option<State>>;

    /// Forgets a bucket, which makes it full. Says whether there was one.
    fn reset<'a>(&'a self, key: &'a Key) -> Pending<'a, bool>;

    /// A take of nothing, to learn whether the store can do what a check needs. Of several servers that share the buckets
    /// one that can is enough.
    fn probe(&self) -> Pending<'_, ()>;
}

/// Fields and values, as they are stored.
pub type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// A place where the operator keeps what is to be known of single API keys. What the fields mean is not known here.
pub trait KeyMetadata: Debug + Send + Sync {
    /// All that is kept under `key`: nothing, where there is nothing.
    fn read<'a>(&'a self, key: &'a str) -> Pending<'a, Fields>;

    /// Sets some fields and removes others, and leaves the rest as it is.
    fn write<'a>(&'a self, key: &'a str, set: &'a [(&'a str, String)], remove: &'a [&'a str]) -> Pending<'a, ()>;

    /// Removes all that is kept under `key`. Says whether there was something.
    fn delete<'a>(&'a self, key: &'a str) -> Pending<'a, bool>;
}

/// Why a store did not answer. The text never holds a password; it may hold a bucket's key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    #[error("redis did not answer within {0:?}")]
    Timeout(std::time::Duration),
    #[error("cannot reach redis: {0}")]
    Connection(String),
    #[error("redis refused the credentials or the command: {0}")]
    Auth(String),
    #[error("a bucket's key holds something else than a bucket: {0}")]
    WrongType(String),
    #[error("redis is not ready: {0}")]
    Loading(String),
    #[error("redis is a read-only replica: {0}")]
    ReadOnly(String),
    #[error("redis is out of memory: {0}")]
    OutOfMemory(String),
    #[error("the cluster does not serve this slot: {0}")]
    ClusterDown(String),
    #[error("{0} failed several times in a row and is not asked until it answers a probe")]
    BreakerOpen(String),
    #[error("too many calls to {0} were on their way for this one to be sent in time")]
    Overloaded(String),
    #[error("redis answered with an error: {0}")]
    Refused(String),
    #[error("redis answered what no tidegate script answers: {0}")]
    Protocol(String),
}

impl StoreError {
    /// Whether a take that failed so may have been charged all the same: what was sent may have arrived, though no
    /// answer did, or none that could be read.
    pub fn may_have_charged(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Connection(_) | Self::Protocol(_))
    }

    /// What [`StoreError::kind`] may say.
    pub const KINDS: [&'static str; 12] = [
        "timeout",
        "connection",
        "auth",
        "wrong_type",
        "loading",
        "read_only",
        "out_of_memory",
        "cluster_down",
        "breaker_open",
        "overloaded",
        "refused",
        "protocol",
    ];

    /// A short constant name, fit for a metric's label.
    pub fn kind(&self) -> &'static str {
        let place = match self {
            Self::Timeout(_) => 0,
            Self::Connection(_) => 1,
            Self::Auth(_) => 2,
            Self::WrongType(_) => 3,
            Self::Loading(_) => 4,
            Self::ReadOnly(_) => 5,
            Self::OutOfMemory(_) => 6,
            Self::ClusterDown(_) => 7,
            Self::BreakerOpen(_) => 8,
            Self::Overloaded(_) => 9,
            Self::Refused(_) => 10,
            Self::Protocol(_) => 11,
        };
        Self::KINDS[place]
    }
}

/// Whether no bucket is charged twice: two charges on one key would both spend what was read once.
fn distinct(charges: &[Charge]) -> bool {
    charges.iter().enumerate().all(|(i, charge)| charges[..i].iter().all(|other| other.key != charge.key))
}
