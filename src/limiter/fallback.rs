//! What stands in for the store while it fails: buckets in this process, for those whose policy is `local`.
//!
//! Takes each failure and each answer of the store, says of an outage what is worth a line, and gives what buckets of an
//! outage answer. Knows not how a request is answered then: that is `policy::decision`'s.

use super::outage::{News, Outage};
use crate::bucket::{Charge, Taken};
use crate::clock::Clock;
use crate::complaint::Complaint;
use crate::policy::decision::{FailurePolicy, Local};
use crate::policy::{Plan, Step};
use crate::store::StoreError;
use crate::store::memory::MemoryStore;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Buckets in this process, at most `capacity` of them, that come with an outage and go with it.
#[derive(Debug)]
pub(super) struct Fallback {
    clock: Arc<dyn Clock>,
    capacity: usize,
    /// Whether there is an outage, to be read with every answer of the store: all that is done when all is well.
    on: AtomicBool,
    state: Mutex<State>,
    foreign: Complaint,
}

#[derive(Debug, Default)]
struct State {
    outage: Outage,
    /// Made when the first bucket is needed, and dropped when an outage ends: so a bucket starts full no more than once
    /// in an outage. Behind one lock with it, so that no failure of the next outage finds the buckets of the last.
    ///
    /// Those of keys that hold a foreign value are among them. Nothing but the end of an outage drops these: that is
    /// stricter than dropping them in between, and they are as many as there are such keys, `capacity` at most.
    buckets: Option<Arc<MemoryStore>>,
}

impl Fallback {
    pub(super) fn new(clock: Arc<dyn Clock>, capacity: usize) -> Self {
        Self { clock, capacity, on: AtomicBool::new(false), state: Mutex::default(), foreign: Complaint::default() }
    }

    /// The store answered.
    pub(super) fn answered(&self) {
        // Relaxed is enough: an answer that is overlooked at the turn of an outage only makes it end an answer later.
        if self.on.load(Ordering::Relaxed) {
            self.recovering();
        }
    }

    #[cold]
    fn recovering(&self) {
        let mut state = self.state.lock();
        let news = state.outage.answered(self.clock.now());
        if let Some(News::Ends { lasted, failures }) = news {
            self.on.store(false, Ordering::Relaxed);
            let forgotten = state.buckets.take();
            drop(state);
            tracing::warn!(?lasted, degraded = failures, "the store answers again: the outage is over");
            if let Some(buckets) = forgotten {
                // To free a million takes so long that checks would wait for it. Where no thread is to be had, they do.
                drop(std::thread::Builder::new().spawn(move || drop(buckets)));
            }
        }
    }

    /// The store failed. Gives what buckets of this process answer, if the plan's policy is to ask them and their share
    /// can cover the cost at all.
    #[cold]
    pub(super) fn failed(&self, plan: &Plan<'_>, error: &StoreError) -> Option<Local> {
        match error {
            // One key is foreign; the store is not away.
            StoreError::WrongType(_) => self.complain_of_foreign(plan, error),
            _ => self.note(plan, error),
        }
        let FailurePolicy::Local { replicas } = plan.on_store_error else { return None };
        let charges = plan.share(replicas)?;
        let taken = self.take(&charges, plan.step());
        Some(Local { charges, taken })
    }

    /// What buckets of this process would answer if the store failed now. Takes nothing and notes nothing.
    pub(super) fn would(&self, plan: &Plan<'_>) -> Option<Local> {
        let FailurePolicy::Local { replicas } = plan.on_store_error else { return None };
        let charges = plan.share(replicas)?;
        let buckets = self.state.lock().buckets.clone();
        let buckets = buckets.unwrap_or_else(|| Arc::new(MemoryStore::new(self.clock.clone(), 1)));
        let taken = buckets.peek_now(&charges);
        Some(Local { charges, taken })
    }

    fn take(&self, charges: &[Charge], step: Step) -> Taken {
        let buckets = self.buckets();
        match step {
            Step::Peek => Taken { admitted: true, ..buckets.peek_now(charges) },
            _ => buckets.take_now(charges),
        }
    }

    fn buckets(&self) -> Arc<MemoryStore> {
        let mut state = self.state.lock();
        state.buckets.get_or_insert_with(|| Arc::new(MemoryStore::new(self.clock.clone(), self.capacity))).clone()
    }

    /// Buckets of the outage that lasts.
    pub(super) fn len(&self) -> usize {
        self.state.lock().buckets.as_ref().map_or(0, |buckets| buckets.len())
    }

    fn note(&self, plan: &Plan<'_>, error: &StoreError) {
        let mut state = self.state.lock();
        let news = state.outage.failed(self.clock.now());
        self.on.store(state.outage.is_on(), Ordering::Relaxed);
        drop(state);
        let (kind, on_store_error) = (error.kind(), plan.on_store_error.word());
        match news {
            Some(News::Begins) => {
                let tier = plan.tier;
                let text = "the store failed: an outage begins, in which answers follow on_store_error";
                tracing::error!(kind, %error, tier, on_store_error, "{text}");
            }
            Some(News::Lasts { since, failures }) => {
                tracing::error!(kind, %error, ?since, degraded = failures, "the store still fails");
            }
            Some(News::Ends { .. }) | None => {}
        }
    }

    fn complain_of_foreign(&self, plan: &Plan<'_>, error: &StoreError) {
        self.foreign.say(|more| {
            let (kind, on_store_error) = (error.kind(), plan.on_store_error.word());
            let text = "a bucket's key holds a foreign value, the answer follows on_store_error";
            tracing::error!(kind, %error, on_store_error, more, "{text}");
        });
    }
}
