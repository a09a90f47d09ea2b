//! What is said of API keys outside the policy, read from the store and remembered: bounded in size and in age.
//!
//! Takes digests, gives what is known. A key that is not known is remembered as that. While the store fails, what was
//! last known counts, however old it is.

use crate::complaint::Complaint;
use crate::policy::api_key::{ApiKey, Digest};
use crate::policy::key_fields;
use crate::policy::tier::Tiers;
use crate::recent::Recent;
use crate::store::{KeyMetadata, StoreError};
use arc_swap::ArcSwap;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// How long a key is left alone after its metadata could not be read.
const PAUSE: Duration = Duration::from_secs(1);

/// What is said of a key; `None`: nothing.
pub(super) type Known = Option<Arc<Record>>;

/// Which of the policies, one after the other, that a process follows.
pub(super) type Generation = u64;

/// What is said of a key, and how it was understood.
#[derive(Debug)]
pub(super) struct Record {
    key: Arc<ApiKey>,
    /// The tier as it is written, since the next policy may know others, or the same at other places.
    tier: Option<Box<[u8]>>,
    /// Whose tiers `key` names.
    generation: Generation,
}

impl Record {
    /// The key as a policy with these tiers understands it.
    pub(super) fn under(&self, generation: Generation, tiers: &Tiers) -> Arc<ApiKey> {
        if generation == self.generation {
            return self.key.clone();
        }
        let tier = self.tier.as_deref().and_then(|name| tiers.index(name));
        Arc::new(ApiKey { tier, ..ApiKey::clone(&self.key) })
    }
}

/// No tier has a longer name; what is longer names none.
const MAX_TIER_NAME: usize = 64;

/// How much is remembered, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct KeyMemorySettings {
    /// Keys at most, unknown ones included.
    pub size: usize,
    /// How long before the store is asked again.
    pub max_age: Duration,
    /// How long one read takes at most: the store's own bound. A check that had to wait for one is answered within this
    /// time as a whole.
    pub timeout: Duration,
}

/// The memory of API keys.
#[derive(Clone, Debug)]
pub struct KeyMemory(Arc<Memory>);

#[derive(Debug)]
struct Memory {
    source: Arc<dyn KeyMetadata>,
    settings: KeyMemorySettings,
    key_prefix: String,
    /// What is read is understood by these.
    vocabulary: ArcSwap<Vocabulary>,
    entries: Mutex<Recent<Digest, Entry>>,
    hits: AtomicU64,
    reads: AtomicU64,
    failures: Complaint,
    ignored: Complaint,
}

/// The tiers of the policy that is in force.
#[derive(Debug)]
struct Vocabulary {
    tiers: Tiers,
    generation: Generation,
}

#[derive(Debug)]
struct Entry {
    known: Known,
    state: State,
}

#[derive(Debug)]
enum State {
    Good { until: Instant },
    Reading(Reading),
}

/// A read that any number of checks wait for. A task does it, so it goes on when they all go away.
type Reading = Shared<BoxFuture<'static, Known>>;

/// What the memory holds of a key.
#[derive(Debug)]
pub(super) enum Found {
    Known(Known),
    /// It is being read. `last`: what was known before.
    Reading {
        reading: Reading,
        last: Known,
    },
}

impl KeyMemory {
    /// A memory for checks under the policy of which `key_prefix` and `tiers` are, and under those that replace it.
    pub fn new(source: Arc<dyn KeyMetadata>, key_prefix: &str, tiers: &Tiers, settings: KeyMemorySettings) -> Self {
        Self(Arc::new(Memory {
            source,
            settings,
            key_prefix: key_prefix.to_owned(),
            vocabulary: ArcSwap::from_pointee(Vocabulary { tiers: tiers.clone(), generation: 0 }),
            entries: Mutex::new(Recent::new(settings.size)),
            hits: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            failures: Complaint::default(),
            ignored: Complaint::default(),
        }))
    }

    /// Checks whose key was known, ever.
    pub fn hits(&self) -> u64 {
        self.0.hits.load(Ordering::Relaxed)
    }

    /// Keys that were read from the store, ever.
    pub fn reads(&self) -> u64 {
        self.0.reads.load(Ordering::Relaxed)
    }

    /// Keys that are remembered now, unknown ones included.
    pub fn len(&self) -> usize {
        self.0.entries.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Has what is read from now on understood by the tiers of another policy. What is remembered stays: a key that is
    /// suspended is so under every policy, and while the store is away nothing else would be known.
    pub(super) fn follow(&self, generation: Generation, tiers: &Tiers) {
        self.0.vocabulary.store(Arc::new(Vocabulary { tiers: tiers.clone(), generation }));
    }

    pub(super) fn timeout(&self) -> Duration {
        self.0.settings.timeout
    }

    /// Looks a key up. Where it is not known, or was read too long ago, a read begins, unless one is under way.
    ///
    /// Needs a tokio runtime.
    pub(super) fn find(&self, digest: Digest, now: Instant) -> Found {
        let mut entries = self.0.entries.lock();
        let last = match entries.get(&digest) {
            Some(Entry { known, state: State::Good { until } }) if now < *until => {
                self.0.hits.fetch_add(1, Ordering::Relaxed);
                return Found::Known(known.clone());
            }
            Some(Entry { known, state: State::Reading(reading) }) => {
                return Found::Reading { reading: reading.clone(), last: known.clone() };
            }
            Some(entry) => entry.known.clone(),
            None => None,
        };
        let reading = self.begin(digest, last.clone(), now);
        entries.insert(digest, Entry { known: last.clone(), state: State::Reading(reading.clone()) });
        Found::Reading { reading, last }
    }

    fn begin(&self, digest: Digest, last: Known, now: Instant) -> Reading {
        self.0.reads.fetch_add(1, Ordering::Relaxed);
        let (memory, before) = (self.0.clone(), last.clone());
        let task = tokio::spawn(async move { memory.read(digest, before, now).await });
        // A task is lost only with the runtime.
        async move { task.await.unwrap_or(last) }.boxed().shared()
    }
}

impl Memory {
    /// Reads a key and remembers it. Its age counts from `begun`, so that no change is overlooked for longer.
    async fn read(&self, digest: Digest, last: Known, begun: Instant) -> Known {
        let entry = key_fields::entry(&self.key_prefix, &digest);
        let (known, good_for) = match self.source.read(&entry).await {
            Ok(fields) if fields.is_empty() => (None, self.settings.max_age),
            Ok(fields) => (Some(Arc::new(self.understand(digest, &fields))), self.settings.max_age),
            Err(error) => {
                self.complain_of_store(digest, &error);
                (last, self.settings.timeout + PAUSE)
            }
        };
        let state = State::Good { until: begun + good_for };
        self.entries.lock().insert(digest, Entry { known: known.clone(), state });
        known
    }

    fn understand(&self, digest: Digest, fields: &key_fields::Fields) -> Record {
        let vocabulary = self.vocabulary.load();
        let (key, ignored) = key_fields::read(&digest, fields, &vocabulary.tiers);
        if !ignored.is_empty() {
            self.ignored.say(|more| {
                let fields: Vec<String> =
                    ignored.iter().map(|ignored| format!("{} {}", ignored.field, ignored.why)).collect();
                let fields = fields.join("; ");
                tracing::warn!(%digest, fields, more, "an API key's metadata cannot be followed in all");
            });
        }
        let tier = key_fields::tier_name(fields).filter(|name| name.len() <= MAX_TIER_NAME);
        Record { key: Arc::new(key), tier: tier.map(Into::into), generation: vocabulary.generation }
    }

    fn complain_of_store(&self, digest: Digest, error: &StoreError) {
        self.failures.say(|more| {
            let kind = error.kind();
            tracing::error!(kind, %error, %digest, more, "cannot read an API key's metadata, what was last known counts");
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
    use super::*;
    use crate::policy::limits::Limits;
    use crate::policy::tier::Tier;
    use crate::store::{Fields, Pending};
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::Semaphore;

    /// Answers what it is told to, when it is let.
    #[derive(Debug)]
    struct Source {
        answer: Mutex<Result<Fields, StoreError>>,
        reads: AtomicUsize,
        gate: Semaphore,
    }

    impl Source {
        fn say(&self, name: &str) {
            *self.answer.lock() = Ok(vec![(b"name".into(), name.into())]);
        }

        fn fail(&self) {
            *self.answer.lock() = Err(StoreError::Connection("refused".into()));
        }

        fn reads(&self) -> usize {
            self.reads.load(Ordering::Relaxed)
        }
    }

    impl KeyMetadata for Source {
        fn read<'a>(&'a self, _: &'a str) -> Pending<'a, Fields> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            Box::pin(async {
                let _permit = self.gate.acquire().await;
                self.answer.lock().clone()
            })
        }

        fn write<'a>(&'a self, _: &'a str, _: &'a [(&'a str, String)], _: &'a [&'a str]) -> Pending<'a, ()> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn delete<'a>(&'a self, _: &'a str) -> Pending<'a, bool> {
            Box::pin(std::future::ready(Ok(false)))
        }
    }

    /// A memory of 10 s, whose source answers as many reads at once as are let.
    fn memory(let_in: usize) -> (Arc<Source>, KeyMemory) {
        let source =
            Source { answer: Mutex::new(Ok(vec![])), reads: AtomicUsize::new(0), gate: Semaphore::new(let_in) };
        let source = Arc::new(source);
        let tiers =
            Tiers::new(Tier { name: "free".into(), limits: Limits::default(), on_store_error: None }, Vec::new());
        let (max_age, timeout) = (Duration::from_secs(10), Duration::from_millis(50));
        let memory = KeyMemory::new(source.clone(), "rl:", &tiers, KeyMemorySettings { size: 100, max_age, timeout });
        (source, memory)
    }

    fn digest(key: &str) -> Digest {
        crate::policy::identity::sha256(key.as_bytes())
    }

    fn name(known: Known) -> Option<String> {
        known.map(|record| record.key.name.to_string())
    }

    fn remembered(found: Found) -> Option<String> {
        match found {
            Found::Known(known) => name(known),
            Found::Reading { .. } => panic!("it is read again"),
        }
    }

    async fn waited_for(found: Found) -> Option<String> {
        match found {
            Found::Known(_) => panic!("it is not read again"),
            Found::Reading { reading, .. } => name(reading.await),
        }
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test)
    }

    #[test]
    fn a_key_is_read_once_until_it_is_too_old_and_so_is_an_unknown_one() {
        run(async {
            let (source, memory) = memory(1);
            let (known, unknown, now) = (digest("known"), digest("unknown"), Instant::now());
            assert_eq!(waited_for(memory.find(unknown, now)).await, None);
            source.say("acme");
            assert_eq!(waited_for(memory.find(known, now)).await.as_deref(), Some("acme"));
            source.say("later");
            let almost = now + Duration::from_millis(9_999);
            for _ in 0..100 {
                assert_eq!(remembered(memory.find(known, almost)).as_deref(), Some("acme"));
                assert_eq!(remembered(memory.find(unknown, almost)), None);
            }
            assert_eq!(source.reads(), 2);
            let old = now + Duration::from_secs(10);
            assert_eq!(waited_for(memory.find(known, old)).await.as_deref(), Some("later"));
            assert_eq!(waited_for(memory.find(unknown, old)).await.as_deref(), Some("later"));
        });
    }

    #[test]
    fn all_who_miss_a_key_at_once_share_one_read() {
        run(async {
            let (source, memory) = memory(0);
            source.say("acme");
            let (key, now) = (digest("k"), Instant::now());
            let waiting = futures_util::future::join_all((0..1000).map(|_| waited_for(memory.find(key, now))));
            let (names, ()) = tokio::join!(waiting, async {
                tokio::task::yield_now().await;
                source.gate.add_permits(1);
            });
            assert_eq!((names.len(), source.reads()), (1000, 1));
            assert!(names.iter().all(|name| name.as_deref() == Some("acme")));
        });
    }

    #[test]
    fn a_read_goes_on_when_who_asked_goes_away() {
        run(async {
            let (source, memory) = memory(0);
            source.say("acme");
            let (key, now) = (digest("k"), Instant::now());
            drop(memory.find(key, now));
            source.gate.add_permits(1);
            while matches!(memory.find(key, now), Found::Reading { .. }) {
                tokio::task::yield_now().await;
            }
            assert_eq!(remembered(memory.find(key, now)).as_deref(), Some("acme"));
            assert_eq!(source.reads(), 1);
        });
    }

    #[test]
    fn while_the_store_fails_the_last_known_counts_and_it_is_asked_once_a_second() {
        run(async {
            let (source, memory) = memory(1);
            source.say("acme");
            let (known, unknown, now) = (digest("known"), digest("unknown"), Instant::now());
            waited_for(memory.find(known, now)).await;
            source.fail();
            let day = now + Duration::from_secs(86_400);
            assert_eq!(waited_for(memory.find(known, day)).await.as_deref(), Some("acme"));
            assert_eq!(waited_for(memory.find(unknown, day)).await, None);
            let soon = day + Duration::from_secs(1);
            for _ in 0..100 {
                assert_eq!(remembered(memory.find(known, soon)).as_deref(), Some("acme"));
                assert_eq!(remembered(memory.find(unknown, soon)), None);
            }
            assert_eq!(source.reads(), 3);
            source.say("back");
            let later = day + Duration::from_secs(2);
            assert_eq!(waited_for(memory.find(known, later)).await.as_deref(), Some("back"));
            assert_eq!(waited_for(memory.find(unknown, later)).await.as_deref(), Some("back"));
        });
    }

    #[test]
    fn while_a_key_is_read_again_its_last_state_is_at_hand() {
        run(async {
            let (source, memory) = memory(1);
            source.say("acme");
            let (key, now) = (digest("k"), Instant::now());
            waited_for(memory.find(key, now)).await;
            let old = now + Duration::from_secs(10);
            for _ in 0..2 {
                let Found::Reading { last, .. } = memory.find(key, old) else { panic!("it is read again") };
                assert_eq!(name(last).as_deref(), Some("acme"));
            }
        });
    }
}
