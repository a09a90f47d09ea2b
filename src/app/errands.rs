//! A thread for what may wait for the disk, such as reading and proving a large file: checks never wait for it.
//!
//! One thread, and always the same. Those of the runtime's pool come and go, and each keeps some megabytes of memory of
//! its own.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use tokio::sync::oneshot;

type Errand = Box<dyn FnOnce() + Send>;

/// The thread; it ends with this.
#[derive(Debug)]
pub(super) struct Errands {
    queue: mpsc::Sender<Errand>,
}

impl Errands {
    /// # Errors
    /// When the system has no thread to give.
    pub(super) fn new() -> io::Result<Self> {
        let (queue, errands) = mpsc::channel::<Errand>();
        std::thread::Builder::new().name("errands".into()).spawn(move || errands.iter().for_each(|errand| errand()))?;
        Ok(Self { queue })
    }

    /// Does `errand` when those before it are done.
    ///
    /// # Panics
    /// When `errand` does.
    pub(super) async fn run<T: Send + 'static>(&self, errand: impl FnOnce() -> T + Send + 'static) -> T {
        const ALIVE: &str = "the thread catches panics, and ends only when the last sender is gone";
        let (tell, told) = oneshot::channel();
        let errand = move || {
            // Who asked may have gone away.
            let _ = tell.send(catch_unwind(AssertUnwindSafe(errand)));
        };
        self.queue.send(Box::new(errand)).expect(ALIVE);
        told.await.expect(ALIVE).unwrap_or_else(|panicked| resume_unwind(panicked))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
    use super::*;

    #[tokio::test]
    async fn errands_are_run_one_after_the_other_on_one_thread_which_outlives_a_panic() {
        let errands = Errands::new().unwrap();
        let first = errands.run(|| std::thread::current().id()).await;
        assert_ne!(first, std::thread::current().id());
        let panicking = AssertUnwindSafe(errands.run(|| panic!("on purpose")));
        let panicked: Result<(), _> = futures_util::FutureExt::catch_unwind(panicking).await;
        assert!(panicked.is_err());
        assert_eq!(errands.run(|| std::thread::current().id()).await, first);
    }
}
