//! The Redis store on real Sentinels: passwords of both, failovers that are asked for and that are not.

use crate::support::redis::{PATIENCE, Server, change_password, clients_of_ours, within};
use crate::support::sentinel::{MASTER_NAME, PASSWORD, SENTINEL_PASSWORD, Trio};
use crate::support::{charge, eventually, insist, quota, told, unique_prefix, user};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate::bucket::{Charge, Taken};
use tidegate::store::redis::{RedisSettings, RedisStore, RedisUrl, Topology};
use tidegate::store::{Store, StoreError};

fn settings(trio: &Trio, name: &str, password: &str, sentinel_password: &str) -> RedisSettings {
    let url = |text: String| text.parse::<RedisUrl>().unwrap();
    let sentinels = trio.sentinels.iter().map(|server| url(server.url()).with_password(sentinel_password)).collect();
    let access = url("redis://nowhere".to_owned()).with_password(password);
    RedisSettings::of(Topology::Sentinel { sentinels, master: name.to_owned(), access })
}

fn store(trio: &Trio) -> RedisStore {
    RedisStore::new(within(Duration::from_secs(2), settings(trio, MASTER_NAME, PASSWORD, SENTINEL_PASSWORD)))
}

fn one() -> [Charge; 1] {
    [charge(&user(&unique_prefix(), "alice"), quota(1e6, 1.0), 1.0)]
}

async fn until(store: &RedisStore, wanted: impl Fn(&Result<Taken, StoreError>) -> bool) {
    let (charges, deadline) = (one(), Instant::now() + PATIENCE);
    loop {
        let answer = store.take(&charges).await;
        if wanted(&answer) {
            return;
        }
        assert!(Instant::now() < deadline, "still {answer:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_master_is_followed_through_a_failover_that_was_asked_for_without_an_error() {
    let trio = Arc::new(Trio::start());
    let store = store(&trio);
    until(&store, Result::is_ok).await;
    let charges = one();
    let asking = trio.clone();
    let failing_over = std::thread::spawn(move || asking.fail_over());
    while !failing_over.is_finished() {
        assert_eq!(store.take(&charges).await.map(|taken| taken.admitted), Ok(true));
    }
    let new = failing_over.join().unwrap();
    // The old master becomes a replica in its own time; until then it would still take writes.
    until(&store, Result::is_ok).await;
    let calls = || told(&trio.data[0], "commandstats", "cmdstat_evalsha");
    let before = calls();
    for _ in 0..20 {
        assert!(store.take(&charges).await.unwrap().admitted);
    }
    assert_eq!(calls(), before, "nothing goes to the old master any more");
    assert!(trio.data[new].run::<bool>(&["EXISTS", charges[0].key.as_str()]));
    trio.wait_for_replica(0);
    assert_eq!(store.probe().await, Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_master_is_replaced_by_the_one_that_is_elected_and_stays_so_when_it_comes_back() {
    let mut trio = Trio::start();
    let store = store(&trio);
    until(&store, Result::is_ok).await;
    trio.data[0].crash();
    until(&store, Result::is_err).await;
    until(&store, Result::is_ok).await;
    assert_eq!(told(&trio.data[1], "replication", "role").as_deref(), Some("master"));
    trio.data[0].restart();
    trio.wait_for_replica(0);
    for _ in 0..20 {
        assert!(store.take(&one()).await.unwrap().admitted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_master_with_open_connections_is_left() {
    let trio = Trio::start();
    let store = store(&trio);
    until(&store, Result::is_ok).await;
    let new = trio.fail_over();
    let port = trio.data[new].port().to_string();
    let () = trio.data[0].run(&["REPLICAOF", "127.0.0.1", &port]);
    until(&store, Result::is_ok).await;
    for _ in 0..20 {
        assert!(store.take(&one()).await.unwrap().admitted, "no restart is needed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_are_told_to_watch_another_server_are_followed_though_their_epochs_begin_anew() {
    let mut trio = Trio::start();
    let store = store(&trio);
    until(&store, Result::is_ok).await;
    let other = Server::start(&["--requirepass", PASSWORD]);
    trio.data.iter_mut().for_each(Server::crash);
    let port = other.port().to_string();
    for sentinel in &trio.sentinels {
        insist(sentinel, &["SENTINEL", "REMOVE", MASTER_NAME]);
        insist(sentinel, &["SENTINEL", "MONITOR", MASTER_NAME, "127.0.0.1", &port, "2"]);
    }
    until(&store, Result::is_ok).await;
    assert!(told(&other, "commandstats", "cmdstat_evalsha").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_sentinels_the_master_that_is_known_goes_on() {
    let mut trio = Trio::start();
    let store = store(&trio);
    until(&store, Result::is_ok).await;
    trio.sentinels.iter_mut().for_each(Server::crash);
    eventually("the sentinels are gone", || {
        trio.sentinels.iter().all(|s| s.try_run::<String>(&["PING"]).is_err()).then_some(())
    });
    for _ in 0..20 {
        assert!(store.take(&one()).await.unwrap().admitted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_passwords_of_master_and_sentinels_are_used_for_the_connections_that_come_after_them() {
    let trio = Trio::start();
    let store = store(&trio);
    until(&store, Result::is_ok).await;
    let mut master = trio.data[0].connection();
    let mut sentinels: Vec<_> = trio.sentinels.iter().map(Server::connection).collect();
    change_password(&mut master, "new-of-the-data");
    until(&store, Result::is_err).await;
    store.sign_in_as(&settings(&trio, MASTER_NAME, "new-of-the-data", "new-of-the-sentinels").topology);
    until(&store, Result::is_ok).await;
    for sentinel in &mut sentinels {
        change_password(sentinel, "new-of-the-sentinels");
        eventually("the sentinel is listened to again", || (!clients_of_ours(sentinel).is_empty()).then_some(()));
    }
    for _ in 0..20 {
        assert!(store.take(&one()).await.unwrap().admitted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_the_sentinels_is_told_without_a_password() {
    let trio = Trio::start();
    for (name, password, sentinel_password, told) in [
        ("other", PASSWORD, SENTINEL_PASSWORD, "No such master"),
        (MASTER_NAME, PASSWORD, "wr0ng-secret", "no master is known from the sentinels"),
        (MASTER_NAME, "wr0ng-secret", SENTINEL_PASSWORD, "no master is known from the sentinels"),
    ] {
        let store = RedisStore::new(settings(&trio, name, password, sentinel_password));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let error = store.take(&one()).await.unwrap_err();
            assert_eq!(error.kind(), "connection");
            let text = error.to_string();
            assert!(!text.contains("wr0ng-secret") && !text.contains(SENTINEL_PASSWORD), "{text}");
            if text.contains(told) && !text.contains("none has answered yet") {
                break;
            }
            assert!(Instant::now() < deadline, "{text}");
        }
    }
}
