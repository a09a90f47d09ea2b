//! Charges a request once, though Envoy asks about it again.
//!
//! Envoy cancels a Check that it does not see answered in time, and may ask again. The take of the first attempt may be
//! on its way by then, or done. So it runs in a task of its own, which a cancelled call does not end, and whoever asks
//! again waits for its answer. Takes ids and charges, gives what the store said. Knows nothing of who is asking.
//!
//! An id alone does not make a repetition: two ext_authz filters in one chain, or an internal redirect, ask about one
//! request and mean different charges. Only the same charges under the same id are a repetition.

use crate::bucket::{Charge, Charges, Taken};
use crate::clock::Stopwatch;
use crate::policy::request::Request;
use crate::recent::Recent;
use crate::store::{Store, StoreError};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long an answer is kept for whoever asks again. Envoy's timeout for a Check, retries included, is 200 ms by
/// default.
const WINDOW: Duration = Duration::from_secs(5);

/// Answers kept at most.
const CAPACITY: usize = 100_000;

/// Bytes of an id; Envoy's have at most 20.
const LONGEST_ID: usize = 128;

type Answer = Result<Taken, StoreError>;

/// What a take is known by: an id, and what is charged.
type Name = Box<[u8]>;

/// The takes of the last seconds.
pub(super) struct Dedupe {
    store: Arc<dyn Store>,
    stopwatch: Arc<dyn Stopwatch>,
    takes: Arc<Mutex<Recent<Name, Take>>>,
    repeats: AtomicU64,
}

/// A take that was begun.
struct Take {
    begun: Duration,
    answer: Shared<BoxFuture<'static, Answer>>,
}

impl Dedupe {
    pub(super) fn new(store: Arc<dyn Store>, stopwatch: Arc<dyn Stopwatch>) -> Self {
        let takes = Arc::new(Mutex::new(Recent::new(CAPACITY)));
        Self { store, stopwatch, takes, repeats: AtomicU64::new(0) }
    }

    /// Takes answered by an earlier one, ever.
    pub(super) fn repeats(&self) -> u64 {
        self.repeats.load(Ordering::Relaxed)
    }

    /// As [`Store::take`], unless the same was begun within [`WINDOW`]: then as that was answered. Goes on when the
    /// caller does not wait for it.
    pub(super) async fn take(&self, id: &[u8], charges: &[Charge]) -> Answer {
        // Bound first: what locks must not live across the await.
        let answer = self.begin(id, charges);
        answer.await
    }

    fn begin(&self, id: &[u8], charges: &[Charge]) -> Shared<BoxFuture<'static, Answer>> {
        let name = name(id, charges);
        let now = self.stopwatch.elapsed();
        let mut takes = self.takes.lock();
        if let Some(take) = takes.get(&name).filter(|take| now.saturating_sub(take.begun) < WINDOW) {
            self.repeats.fetch_add(1, Ordering::Relaxed);
            return take.answer.clone();
        }
        let answer = self.ask(name.clone(), charges.iter().cloned().collect(), now).boxed().shared();
        takes.insert(name, Take { begun: now, answer: answer.clone() });
        drop(takes);
        tokio::spawn(answer.clone());
        answer
    }

    /// Takes, and keeps no answer that surely charged nothing: whoever asks again may be luckier.
    fn ask(&self, name: Name, charges: Charges, begun: Duration) -> impl Future<Output = Answer> + Send + 'static {
        let (store, takes) = (self.store.clone(), self.takes.clone());
        async move {
            let answer = store.take(&charges).await;
            if answer.as_ref().is_err_and(|error| !error.may_have_charged()) {
                let mut takes = takes.lock();
                if takes.peek(&name).is_some_and(|take| take.begun == begun) {
                    takes.remove(&name);
                }
            }
            answer
        }
    }
}

/// The id of a request, if it is one to go by.
pub(super) fn id(request: &Request<'_>) -> Option<Box<[u8]>> {
    (1..=LONGEST_ID).contains(&request.id.len()).then(|| request.id.into())
}

/// Every part stands behind its length, so that no two takes have one name.
fn name(id: &[u8], charges: &[Charge]) -> Name {
    let parts = charges.iter().map(|charge| (charge.key.as_str().as_bytes(), charge.cost));
    let mut name = Vec::with_capacity(8 + id.len() + parts.clone().map(|(key, _)| 16 + key.len()).sum::<usize>());
    name.extend(id.len().to_le_bytes());
    name.extend(id);
    for (key, cost) in parts {
        name.extend(key.len().to_le_bytes());
        name.extend(key);
        name.extend(cost.to_bits().to_le_bytes());
    }
    name.into()
}

impl fmt::Debug for Dedupe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dedupe").field("store", &self.store).field("repeats", &self.repeats()).finish_non_exhaustive()
    }
}
