//! A bounded queue between those who check and the one who writes: pushing never waits.
//!
//! What the writer has in hand counts as waiting until it is settled, so the bound is on all that is held.

use super::event::Event;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Events that wait for one sink.
#[derive(Debug)]
pub(super) struct Queue {
    capacity: usize,
    state: Mutex<State>,
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Arc<Event>>,
    /// Events that were taken out and not settled.
    in_hand: usize,
    /// What happened in all of those.
    times: u64,
    nudged: bool,
    closed: bool,
}

/// The queue is full, or closed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

impl Queue {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, state: Mutex::default(), news: Notify::new() }
    }

    pub(super) fn push(&self, event: &Arc<Event>) -> Result<(), NoRoom> {
        let mut state = self.state.lock();
        if state.closed || state.waiting.len() + state.in_hand >= self.capacity {
            return Err(NoRoom);
        }
        state.times += event.times();
        state.waiting.push_back(event.clone());
        drop(state);
        self.news.notify_one();
        Ok(())
    }

    /// Waits for events and moves up to `most` of them to `batch`: none where the writer is only to look around. False
    /// when the queue is closed and empty.
    pub(super) async fn next(&self, batch: &mut Vec<Arc<Event>>, most: usize) -> bool {
        loop {
            if let Some(more) = self.take(batch, most) {
                return more;
            }
            self.news.notified().await;
        }
    }

    fn take(&self, batch: &mut Vec<Arc<Event>>, most: usize) -> Option<bool> {
        let mut state = self.state.lock();
        let nudged = std::mem::take(&mut state.nudged);
        let count = most.min(state.waiting.len());
        state.in_hand += count;
        batch.extend(state.waiting.drain(..count));
        if count > 0 || nudged { Some(true) } else { state.closed.then_some(false) }
    }

    /// So many events of those in hand, in which that much happened, are written.
    pub(super) fn settle(&self, events: usize, times: u64) {
        let mut state = self.state.lock();
        state.in_hand = state.in_hand.saturating_sub(events);
        state.times = state.times.saturating_sub(times);
    }

    /// Gives up all that waits or is in hand, and says what happened in it.
    pub(super) fn abandon(&self) -> u64 {
        let mut state = self.state.lock();
        state.waiting.clear();
        state.in_hand = 0;
        std::mem::take(&mut state.times)
    }

    /// Events that wait or are in hand.
    pub(super) fn len(&self) -> usize {
        let state = self.state.lock();
        state.waiting.len() + state.in_hand
    }

    /// Has the writer look around.
    pub(super) fn nudge(&self) {
        self.state.lock().nudged = true;
        self.news.notify_one();
    }

    /// Takes no more events. Those that wait may be taken out.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.news.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Waits so long, or until the queue is closed or the writer is to look around.
    pub(super) async fn pause(&self, length: Duration) {
        let stirred = || {
            let mut state = self.state.lock();
            state.closed || std::mem::take(&mut state.nudged)
        };
        let waiting = async {
            while !stirred() {
                self.news.notified().await;
            }
        };
        // That the time is over is the usual end.
        let _ = tokio::time::timeout(length, waiting).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::Told;
    use super::*;
    use crate::bucket::Timestamp;
    use crate::metrics::AuditEvent;

    fn event() -> Arc<Event> {
        Arc::new(Event { at: Timestamp { micros: 0 }, told: Told::Act(AuditEvent::KeySet, Vec::new()) })
    }

    #[tokio::test]
    async fn what_is_in_hand_takes_room_until_it_is_settled() {
        let queue = Queue::new(2);
        assert_eq!([(); 3].map(|()| queue.push(&event())), [Ok(()), Ok(()), Err(NoRoom)]);
        let mut batch = Vec::new();
        assert!(queue.next(&mut batch, 10).await);
        assert_eq!((batch.len(), queue.len(), queue.push(&event())), (2, 2, Err(NoRoom)));
        queue.settle(1, 1);
        assert_eq!((queue.push(&event()), queue.len()), (Ok(()), 2));
        assert_eq!((queue.abandon(), queue.len()), (2, 0));
    }

    #[tokio::test]
    async fn a_closed_queue_takes_nothing_more_and_gives_what_it_has() {
        let queue = Queue::new(2);
        assert_eq!(queue.push(&event()), Ok(()));
        queue.close();
        assert_eq!(queue.push(&event()), Err(NoRoom));
        let mut batch = Vec::new();
        assert!(queue.next(&mut batch, 10).await);
        assert!(!queue.next(&mut batch, 10).await);
        assert_eq!(batch.len(), 1);
    }

    #[tokio::test]
    async fn a_writer_that_is_nudged_looks_around_without_an_event() {
        let queue = Queue::new(2);
        queue.nudge();
        let mut batch = Vec::new();
        assert!(queue.next(&mut batch, 10).await);
        assert!(batch.is_empty());
        queue.close();
        assert!(!queue.next(&mut batch, 10).await);
    }
}
