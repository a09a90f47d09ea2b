//! The Redis store on a real Cluster: all buckets or none, refunds, redirects, and a shard that is away.

use crate::support::cluster::{Cluster, Coverage, MASTERS, shard, slot};
use crate::support::redis::{PATIENCE, change_password, within};
use crate::support::{NEVER, charge, eventually, quota, unique_prefix, user};
use futures_util::FutureExt as _;
use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;
use tidegate::bucket::{Charge, Key, Taken};
use tidegate::store::redis::{Cursor, RedisSettings, RedisStore, Topology};
use tidegate::store::{Store, StoreError};

/// The cluster of the tests that break nothing.
fn shared() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::start(Coverage::Full))
}

fn settings(cluster: &Cluster) -> RedisSettings {
    // Some nodes are enough: the others are found.
    let seeds = cluster.nodes[..2].iter().map(|node| node.url().parse().unwrap()).collect();
    RedisSettings::of(Topology::Cluster(seeds))
}

fn store(cluster: &Cluster) -> RedisStore {
    RedisStore::new(within(PATIENCE, settings(cluster)))
}

/// A key of each shard, as users' buckets are named.
fn key_of_each_shard() -> Vec<Key> {
    let prefix = unique_prefix();
    (0..MASTERS).map(|wanted| key_in(&prefix, |key| shard(key) == wanted)).collect()
}

fn key_in(prefix: &str, fits: impl Fn(&str) -> bool) -> Key {
    (0..100_000).map(|number| user(prefix, &number.to_string())).find(|key| fits(key.as_str())).unwrap()
}

fn charges(keys: &[Key], max_tokens: f64) -> Vec<Charge> {
    keys.iter().map(|key| charge(key, quota(max_tokens, NEVER), 1.0)).collect()
}

/// More than a test spends.
const PLENTY: f64 = 300.0;

fn tokens(answer: &Taken, charges: &[Charge]) -> Vec<f64> {
    answer.tokens(charges).map(f64::round).collect()
}

/// What is stored, once nothing is being given back any more.
fn eventually_stored(cluster: &Cluster, key: &Key, wanted: f64) {
    eventually("the tokens are given back", || {
        let node = &cluster.nodes[shard(key.as_str())];
        let stored: Option<f64> = node.try_run(&["HGET", key.as_str(), "tokens"]).ok()?;
        (stored?.round() == wanted).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_buckets_in_three_slots_are_taken_together() {
    let (store, charges) = (store(shared()), charges(&key_of_each_shard(), 3.0));
    for left in [2.0, 1.0, 0.0] {
        let taken = store.take(&charges).await.unwrap();
        assert!(taken.admitted);
        assert_eq!(tokens(&taken, &charges), [left; 3]);
    }
    let denied = store.take(&charges).await.unwrap();
    assert!(!denied.admitted);
    assert_eq!(tokens(&denied, &charges), [0.0; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_denied_request_took_elsewhere_is_given_back() {
    let (store, keys) = (store(shared()), key_of_each_shard());
    let mut charges = charges(&keys, 5.0);
    charges[1].quota = quota(1.0, NEVER);
    assert!(store.take(&charges).await.unwrap().admitted);
    for _ in 0..3 {
        let denied = store.take(&charges).await.unwrap();
        assert!(!denied.admitted);
        assert!(tokens(&denied, &charges)[0] >= 1.0, "the others are not told as exhausted: {denied:?}");
        assert_eq!(tokens(&denied, &charges)[1], 0.0);
        for place in [0, 2] {
            eventually_stored(shared(), &keys[place], 4.0);
        }
    }
    let found = store.peek(&charges).await.unwrap();
    assert_eq!((found.admitted, tokens(&found, &charges)), (false, vec![4.0, 0.0, 4.0]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_for_a_caller_who_has_given_up_is_given_back_too() {
    let (store, keys) = (store(shared()), key_of_each_shard());
    let mut charges = charges(&keys, 5.0);
    charges[1].quota = quota(1.0, NEVER);
    assert!(store.take(&charges[1..2]).await.unwrap().admitted);
    // Given up as soon as it is on its way: a timeout, however short, may find it answered.
    assert!(store.take(&charges).now_or_never().is_none());
    // A bucket is stored when something was taken from it, and is full again when that was given back.
    for place in [0, 2] {
        eventually_stored(shared(), &keys[place], 5.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_admitted_twice_while_requests_are_denied_and_refunded() {
    const CALLERS: usize = 16;
    let (store, keys) = (store(shared()), key_of_each_shard());
    let mut charges = charges(&keys, 20.0);
    charges[2].quota = quota(7.0, NEVER);
    let each = |charges: &[Charge]| {
        let charges = charges.to_vec();
        let store = &store;
        async move {
            let mut admitted = 0;
            for _ in 0..10 {
                admitted += usize::from(store.take(&charges).await.unwrap().admitted);
            }
            admitted
        }
    };
    let admitted = futures_util::future::join_all((0..CALLERS).map(|_| each(&charges))).await.iter().sum::<usize>();
    assert!(admitted <= 7, "{admitted} of the 7 that the smallest bucket holds");
    // Whoever asks alone is over-denied no more.
    for _ in admitted..7 {
        eventually_admitted(&store, &charges).await;
    }
    for place in [0, 1] {
        eventually_stored(shared(), &keys[place], 13.0);
    }
    assert!(!store.take(&charges).await.unwrap().admitted);
}

async fn eventually_admitted(store: &RedisStore, charges: &[Charge]) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !store.take(charges).await.is_ok_and(|taken| taken.admitted) {
        assert!(std::time::Instant::now() < deadline, "tokens were never given back");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bucket_lives_for_its_time_even_after_a_refund() {
    let (store, keys) = (store(shared()), key_of_each_shard());
    let mut charges: Vec<Charge> = keys.iter().map(|key| charge(key, quota(10.0, 1.0), 1.0)).collect();
    charges[1].cost = 10.0;
    assert!(store.take(&charges).await.unwrap().admitted);
    assert!(!store.take(&charges).await.unwrap().admitted);
    for key in &keys {
        let node = &shared().nodes[shard(key.as_str())];
        eventually("it has a time to live", || {
            let left: i64 = node.run(&["TTL", key.as_str()]);
            (1..=20).contains(&left).then_some(())
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_value_in_one_slot_costs_the_others_nothing() {
    let (store, keys) = (store(shared()), key_of_each_shard());
    let charges = charges(&keys, 5.0);
    assert!(store.take(&charges[..2]).await.unwrap().admitted);
    let () = shared().nodes[2].run(&["SET", keys[2].as_str(), "precious"]);
    assert_eq!(store.take(&charges).await.unwrap_err().kind(), "wrong_type");
    for key in &keys[..2] {
        eventually_stored(shared(), key, 4.0);
    }
    assert_eq!(shared().nodes[2].run::<String>(&["GET", keys[2].as_str()]), "precious");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_stands_though_another_bucket_fails() {
    let (store, keys) = (store(shared()), key_of_each_shard());
    let mut charges = charges(&keys, 5.0);
    charges[0].quota = quota(1.0, NEVER);
    assert!(store.take(&charges[..2]).await.unwrap().admitted);
    let () = shared().nodes[2].run(&["SET", keys[2].as_str(), "precious"]);
    let denied = store.take(&charges).await.unwrap();
    assert!(!denied.admitted, "else a shard that is away would lift the limits of the others");
    assert_eq!((tokens(&denied, &charges)[0], tokens(&denied, &charges)[2]), (0.0, 5.0));
    eventually_stored(shared(), &keys[1], 4.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_are_looked_at_reset_and_listed_wherever_they_are() {
    let (store, keys) = (store(shared()), key_of_each_shard());
    assert!(store.take(&charges(&keys, 5.0)).await.unwrap().admitted);
    for key in &keys {
        assert_eq!(store.inspect(key).await.unwrap().unwrap().tokens.round(), 4.0);
    }
    let prefix = keys[0].as_str().trim_end_matches(keys[0].id());
    let (mut found, mut next) = (BTreeSet::new(), Some(Cursor::default()));
    while let Some(from) = next {
        let round = store.scan(prefix, from).await.unwrap();
        found.extend(round.keys);
        next = round.next;
    }
    assert_eq!(found, keys.iter().map(|key| key.as_str().as_bytes().to_vec()).collect());
    for key in &keys {
        assert_eq!((store.reset(key).await, store.reset(key).await), (Ok(true), Ok(false)));
    }
    assert_eq!(store.probe().await, Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_is_followed_with_its_buckets_and_none_is_filled_by_it() {
    let (cluster, prefix) = (Cluster::start(Coverage::Full), unique_prefix());
    let store = store(&cluster);
    let key = key_in(&prefix, |key| shard(key) == 0);
    let one = charges(std::slice::from_ref(&key), 10.0);
    assert_eq!(tokens(&store.take(&one).await.unwrap(), &one), [9.0]);
    let (from, to) = (&cluster.nodes[0], &cluster.nodes[1]);
    let (slot, from_id, to_id) = (slot(key.as_str()).to_string(), cluster.id(0), cluster.id(1));
    let () = to.run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
    let () = from.run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    assert_eq!(tokens(&store.take(&one).await.unwrap(), &one), [8.0], "the key is still where it was");
    let _: String = from.run(&["MIGRATE", "127.0.0.1", &to.port().to_string(), key.as_str(), "0", "5000"]);
    assert_eq!(tokens(&store.take(&one).await.unwrap(), &one), [7.0], "ASK is followed");
    for node in [to, from] {
        let () = node.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
    }
    for left in [6.0, 5.0] {
        assert_eq!(tokens(&store.take(&one).await.unwrap(), &one), [left], "MOVED is followed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_master_costs_only_its_own_keys_and_is_left_for_its_successor() {
    let cluster = Cluster::start(Coverage::Full);
    let timeout = Duration::from_millis(500);
    let store = RedisStore::new(within(timeout, settings(&cluster)));
    let keys = key_of_each_shard();
    let one = |place: usize| charges(&keys[place..=place], PLENTY);
    for place in 0..MASTERS {
        eventually_admitted(&store, &one(place)).await;
    }
    cluster.nodes[0].signal("STOP");
    let error = store.take(&one(0)).await.unwrap_err();
    assert_eq!(error, StoreError::Timeout(timeout));
    assert!(store.take(&one(1)).await.unwrap().admitted && store.take(&one(2)).await.unwrap().admitted);
    assert_eq!(store.probe().await, Ok(()), "two of three shards are enough to be ready");
    // All three: the two that answer are given back what they gave.
    let all = charges(&keys, PLENTY);
    assert!(store.take(&all).await.is_err());
    eventually_stored(&cluster, &keys[1], PLENTY - 2.0);
    // Whether the frozen one can be left depends on the others electing its replica.
    eventually_admitted(&store, &one(0)).await;
    cluster.wait_for_master(MASTERS);
    cluster.nodes[0].signal("CONT");
    eventually_admitted(&store, &all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_which_no_node_answers_is_a_connection_error_that_names_no_password() {
    let gone: Vec<u16> = (0..2).map(|_| crate::support::redis::Server::start(&[]).kill().0).collect();
    let seeds = gone.iter().map(|port| format!("redis://:s3cret@127.0.0.1:{port}").parse().unwrap()).collect();
    let store = RedisStore::new(RedisSettings::of(Topology::Cluster(seeds)));
    let error = store.take(&charges(&key_of_each_shard(), 1.0)).await.unwrap_err();
    assert_eq!(error.kind(), "connection", "{error}");
    assert!(!error.to_string().contains("s3cret"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_password_of_the_nodes_is_used_for_the_connections_that_come_after_it() {
    let cluster = Cluster::start(Coverage::Full);
    let store = RedisStore::new(within(Duration::from_secs(2), settings(&cluster)));
    let charges = charges(&key_of_each_shard(), PLENTY);
    assert!(store.take(&charges).await.unwrap().admitted);
    let mut nodes: Vec<_> = cluster.nodes.iter().map(|node| node.connection()).collect();
    nodes.iter_mut().for_each(|node| change_password(node, "of-the-nodes"));
    until(&store, &charges, Result::is_err).await;
    let Topology::Cluster(urls) = settings(&cluster).topology else { panic!("it is a cluster") };
    store.sign_in_as(&Topology::Cluster(urls.into_iter().map(|url| url.with_password("of-the-nodes")).collect()));
    until(&store, &charges, Result::is_ok).await;
}

async fn until(store: &RedisStore, charges: &[Charge], wanted: impl Fn(&Result<Taken, StoreError>) -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let answer = store.take(charges).await;
        if wanted(&answer) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "still {answer:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
