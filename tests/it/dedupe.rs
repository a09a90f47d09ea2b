//! `dedupe`: what Envoy asks twice is charged once.

use crate::support::{Hands, service};
use futures_util::FutureExt;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate::bucket::{Charge, Key, State, Taken};
use tidegate::clock::SetStopwatch;
use tidegate::config;
use tidegate::ext_authz::Service;
use tidegate::ext_authz::proto::authorization_server::Authorization;
use tidegate::ext_authz::proto::{CheckRequest, CheckResponse, TextEntry};
use tidegate::limiter::Limiter;
use tidegate::store::memory::MemoryStore;
use tidegate::store::{Pending, Store, StoreError};
use tokio::sync::Semaphore;

/// Ten tokens for each user.
const POLICY: &str = "
default_tier: free
tiers: {free: {per_user: {max_tokens: 10, refill_rate: 0.000001}}}
identity: {user: [{header: x-user}]}
on_store_error: deny
";

/// A store whose takes wait until the test lets them go, and fail as it says.
#[derive(Debug)]
struct Slow {
    store: MemoryStore,
    calls: AtomicU64,
    /// One permit for each take that may be answered.
    answers: Semaphore,
    failures: Mutex<VecDeque<StoreError>>,
}

impl Store for Slow {
    fn take<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.answers.acquire().await.unwrap().forget();
            let failure = self.failures.lock().unwrap().pop_front();
            match failure {
                Some(error) => Err(error),
                None => self.store.take(charges).await,
            }
        })
    }

    fn peek<'a>(&'a self, charges: &'a [Charge]) -> Pending<'a, Taken> {
        self.store.peek(charges)
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> Pending<'a, Option<State>> {
        self.store.inspect(key)
    }

    fn reset<'a>(&'a self, key: &'a Key) -> Pending<'a, bool> {
        self.store.reset(key)
    }

    fn probe(&self) -> Pending<'_, ()> {
        self.store.probe()
    }
}

struct Rig {
    store: Arc<Slow>,
    stopwatch: Arc<SetStopwatch>,
    limiter: Arc<Limiter>,
    service: Service,
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<tonic::Response<CheckResponse>, tonic::Status>> + Send + 'a>>;

impl Rig {
    /// Takes wait until they are let go.
    fn slow() -> Self {
        Self::new(0, true)
    }

    fn quick() -> Self {
        Self::new(1000, true)
    }

    fn new(answers: usize, dedupes: bool) -> Self {
        let store = Arc::new(Slow {
            store: MemoryStore::new(Hands::new().0, 100),
            calls: AtomicU64::new(0),
            answers: Semaphore::new(answers),
            failures: Mutex::default(),
        });
        let stopwatch = Arc::new(SetStopwatch::default());
        let limiter = Limiter::new(config::parse(POLICY.as_bytes()).unwrap().policy, store.clone());
        let limiter = Arc::new(if dedupes { limiter.deduping(stopwatch.clone()) } else { limiter });
        Self { store, stopwatch, service: Service::new(limiter.clone()), limiter }
    }

    /// A check that Envoy makes of the request with this id.
    fn ask(&self, id: &str, user: &str) -> Answer<'_> {
        self.service.check(tonic::Request::new(check(id, user)))
    }

    async fn code(&self, id: &str, user: &str) -> i32 {
        code(self.ask(id, user).await)
    }

    fn calls(&self) -> u64 {
        self.store.calls.load(Ordering::Relaxed)
    }

    fn fail_next(&self, error: StoreError) {
        self.store.failures.lock().unwrap().push_back(error);
    }
}

fn check(id: &str, user: &str) -> CheckRequest {
    let mut check = service::check(&[("x-user", user)]);
    let request = check.attributes.as_mut().unwrap().request.as_mut().unwrap();
    request.http.as_mut().unwrap().id = id.as_bytes().to_vec().into();
    check
}

fn code(answer: Result<tonic::Response<CheckResponse>, tonic::Status>) -> i32 {
    answer.unwrap().into_inner().status.unwrap().code
}

#[tokio::test]
async fn a_check_that_envoy_repeats_is_charged_once_and_answered_alike() {
    let rig = Rig::quick();
    let first = rig.ask("1", "alice").await.unwrap().into_inner();
    for _ in 0..20 {
        assert_eq!(rig.ask("1", "alice").await.unwrap().into_inner(), first);
    }
    assert_eq!((rig.calls(), rig.limiter.repeats()), (1, 20));
    for id in 2..=10 {
        assert_eq!(rig.code(&id.to_string(), "alice").await, 0);
    }
    assert_ne!(rig.code("11", "alice").await, 0, "ten requests were charged");
    assert_ne!(rig.code("11", "alice").await, 0);
    assert_eq!(rig.calls(), 11);
}

#[tokio::test]
async fn a_retry_gets_the_answer_of_the_attempt_that_envoy_gave_up() {
    let rig = Rig::slow();
    let mut first = rig.ask("1", "alice");
    assert!((&mut first).now_or_never().is_none());
    drop(first);
    let mut second = rig.ask("1", "alice");
    assert!((&mut second).now_or_never().is_none());
    rig.store.answers.add_permits(1);
    assert_eq!(code(second.await), 0);
    assert_eq!((rig.calls(), rig.limiter.repeats()), (1, 1));
}

#[tokio::test]
async fn an_attempt_that_nobody_waits_for_is_finished_all_the_same() {
    let rig = Rig::slow();
    assert!(rig.ask("1", "alice").now_or_never().is_none());
    rig.store.answers.add_permits(1);
    // The task runs before this one is asked again.
    while rig.store.answers.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(rig.ask("1", "alice").now_or_never().map(code), Some(0), "the answer is there already");
    assert_eq!(rig.calls(), 1);
}

#[tokio::test]
async fn other_charges_under_the_same_id_are_charged() {
    let rig = Rig::quick();
    let of_cost = |cost: &str| {
        let mut check = check("1", "alice");
        let entry = TextEntry { key: "tidegate.cost".into(), value: cost.as_bytes().to_vec().into() };
        check.attributes.as_mut().unwrap().context_extensions.push(entry);
        rig.service.check(tonic::Request::new(check))
    };
    for _ in 0..3 {
        assert_eq!(rig.code("1", "alice").await, 0);
        assert_eq!(rig.code("1", "bob").await, 0);
        assert_eq!(code(of_cost("2").await), 0);
        assert_eq!(code(of_cost("1").await), 0, "one token is what a check costs anyway");
    }
    assert_eq!(rig.calls(), 3);
}

#[tokio::test]
async fn after_five_seconds_the_same_id_is_charged_again() {
    let rig = Rig::quick();
    rig.code("1", "alice").await;
    rig.stopwatch.set(Duration::from_nanos(4_999_999_999));
    rig.code("1", "alice").await;
    assert_eq!(rig.calls(), 1);
    rig.stopwatch.set(Duration::from_secs(5));
    rig.code("1", "alice").await;
    assert_eq!(rig.calls(), 2);
}

#[tokio::test]
async fn an_error_that_charged_nothing_is_asked_again_and_one_that_may_have_is_not() {
    let timeout = StoreError::Timeout(Duration::from_millis(50));
    for (error, calls, code) in [
        (StoreError::Loading("busy".into()), 2, 0),
        (StoreError::OutOfMemory("full".into()), 2, 0),
        (timeout, 1, 14),
        (StoreError::Connection("reset".into()), 1, 14),
    ] {
        let rig = Rig::quick();
        rig.fail_next(error.clone());
        assert_eq!(rig.code("1", "alice").await, 14, "{error}");
        assert_eq!(rig.code("1", "alice").await, code, "{error}");
        assert_eq!(rig.calls(), calls, "{error}");
    }
}

#[tokio::test]
async fn no_id_and_an_endless_one_are_nothing_to_go_by() {
    for (id, calls) in [(String::new(), 2), ("x".repeat(128), 1), ("x".repeat(129), 2)] {
        let rig = Rig::quick();
        rig.code(&id, "alice").await;
        rig.code(&id, "alice").await;
        assert_eq!(rig.calls(), calls, "{} bytes", id.len());
    }
}

#[test]
fn without_dedupe_a_repeated_check_is_charged_again() {
    let rig = Rig::new(1000, false);
    for _ in 0..3 {
        assert_eq!(rig.ask("1", "alice").now_or_never().map(code), Some(0));
    }
    assert_eq!((rig.calls(), rig.limiter.repeats()), (3, 0));
}
