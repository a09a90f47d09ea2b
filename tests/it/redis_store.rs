//! What only the Redis store can meet: lost scripts, foreign values, servers that refuse, hang and die.

use crate::support::redis::{PATIENCE, Server, settings, shared, store, within};
use crate::support::{Hands, NEVER, charge, quota, unique_prefix, user};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};
use tidegate::bucket::{Charge, Key, Taken};
use tidegate::store::redis::{CallLimits, ClockSource, RedisSettings, RedisStore, RedisUrl};
use tidegate::store::{KeyMetadata, Store, StoreError};

fn fresh_key() -> Key {
    user(&unique_prefix(), "alice")
}

fn one(key: &Key) -> [Charge; 1] {
    [charge(key, quota(10.0, NEVER), 1.0)]
}

async fn take(store: &RedisStore) -> Result<Taken, StoreError> {
    store.take(&one(&fresh_key())).await
}

async fn error_kind(store: &RedisStore) -> &'static str {
    take(store).await.unwrap_err().kind()
}

fn hash(key: &Key) -> BTreeMap<String, String> {
    shared().run(&["HGETALL", key.as_str()])
}

/// The tokens in the one bucket that was asked for.
fn left(answer: Result<Taken, StoreError>, key: &Key) -> f64 {
    answer.unwrap().tokens(&one(key)).next().unwrap()
}

/// Calls until `wanted`, as often as a server may need to change its mind.
async fn until(store: &RedisStore, wanted: impl Fn(&Result<Taken, StoreError>) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let result = take(store).await;
        if wanted(&result) {
            return;
        }
        assert!(Instant::now() < deadline, "still {result:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_flushed_script_is_sent_again() {
    let (store, key) = (store(&shared().url()), fresh_key());
    for expected in [9.0, 8.0, 7.0] {
        let () = shared().run(&["SCRIPT", "FLUSH"]);
        assert_eq!(left(store.take(&one(&key)).await, &key).round(), expected);
        let () = shared().run(&["SCRIPT", "FLUSH"]);
        assert_eq!(left(store.peek(&one(&key)).await, &key).round(), expected);
    }
}

#[tokio::test]
async fn a_user_that_may_not_call_script_is_enough() {
    let () = shared().run(&["ACL", "SETUSER", "plain", "on", ">pw", "~*", "+@all", "-script", "-client"]);
    let () = shared().run(&["SCRIPT", "FLUSH"]);
    let store = store(&format!("redis://plain:pw@127.0.0.1:{}", shared().port()));
    assert!(take(&store).await.unwrap().admitted);
}

#[tokio::test]
async fn a_bucket_that_cannot_be_read_is_full() {
    let store = store(&shared().url());
    for (tokens, last_refill) in
        [("x", "1"), ("1", "x"), ("nan", "1"), ("-inf", "1"), ("1", "inf"), ("1", "nan"), ("", ""), ("1e999", "1")]
    {
        let key = fresh_key();
        let () = shared().run(&["HSET", key.as_str(), "tokens", tokens, "last_refill", last_refill]);
        assert_eq!(store.inspect(&key).await, Ok(None), "{tokens} {last_refill}");
        assert_eq!(left(store.peek(&one(&key)).await, &key), 10.0, "{tokens} {last_refill}");
        assert_eq!(left(store.take(&one(&key)).await, &key), 9.0, "{tokens} {last_refill}");
    }
    let key = fresh_key();
    let () = shared().run(&["HSET", key.as_str(), "tokens", "3"]);
    assert_eq!(left(store.take(&one(&key)).await, &key), 9.0);
}

#[tokio::test]
async fn a_foreign_value_is_an_error_and_is_left_alone() {
    let (store, mine, foreign) = (store(&shared().url()), fresh_key(), fresh_key());
    let () = shared().run(&["SET", foreign.as_str(), "precious"]);
    let charges = [one(&mine)[0].clone(), one(&foreign)[0].clone()];
    for result in [store.take(&charges).await, store.peek(&charges).await] {
        assert_eq!(result.unwrap_err().kind(), "wrong_type");
    }
    assert_eq!(store.inspect(&foreign).await.unwrap_err().kind(), "wrong_type");
    assert_eq!(shared().run::<String>(&["GET", foreign.as_str()]), "precious");
    assert!(!shared().run::<bool>(&["EXISTS", mine.as_str()]));
}

#[tokio::test]
async fn a_denial_writes_nothing() {
    let (store, spent, fresh) = (store(&shared().url()), fresh_key(), fresh_key());
    let ten = |key| charge(key, quota(10.0, NEVER), 10.0);
    assert!(store.take(&[ten(&spent)]).await.unwrap().admitted);
    let () = shared().run(&["EXPIRE", spent.as_str(), "1000"]);
    let before = hash(&spent);
    for _ in 0..3 {
        assert!(!store.take(&[ten(&fresh), ten(&spent)]).await.unwrap().admitted);
    }
    assert_eq!(hash(&spent), before);
    assert!(shared().run::<i64>(&["TTL", spent.as_str()]) <= 1000);
    assert!(!shared().run::<bool>(&["EXISTS", fresh.as_str()]));
}

#[tokio::test]
async fn a_bucket_lives_for_its_quotas_time_and_never_for_none() {
    let store = store(&shared().url());
    for (max_tokens, refill_rate, ttl) in [(10.0, 25.0, 1), (1.0, 1e9, 1), (10.0, 0.17, 118)] {
        let key = fresh_key();
        assert!(store.take(&[charge(&key, quota(max_tokens, refill_rate), 1.0)]).await.unwrap().admitted);
        let left = shared().run::<i64>(&["PTTL", key.as_str()]);
        assert!((1..=ttl * 1000).contains(&left) && left > (ttl - 1) * 1000 - 10_000, "{left} of {ttl}");
    }
}

#[tokio::test]
async fn a_bucket_is_stored_as_documented() {
    let (clock, key) = (Hands::new(), fresh_key());
    clock.set_micros(123_457);
    let settings = RedisSettings { clock: ClockSource::Local(clock.0.clone()), ..settings(&shared().url()) };
    let charges = [charge(&key, quota(1.0, NEVER), 0.9)];
    assert!(RedisStore::new(settings).take(&charges).await.unwrap().admitted);
    let stored = [("last_refill", "1700000000.123457"), ("tokens", "0.099999999999999978")];
    assert_eq!(hash(&key), stored.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
}

/// Seconds and microseconds of TIME, as microseconds.
fn server_time() -> u64 {
    let [seconds, micros] = shared().run::<[u64; 2]>(&["TIME"]);
    seconds * 1_000_000 + micros
}

#[tokio::test]
async fn with_the_servers_clock_two_stores_share_one_time_and_one_bucket() {
    let (a, b, key) = (store(&shared().url()), store(&shared().url()), fresh_key());
    let mut levels = Vec::new();
    for store in [&a, &b, &a, &b] {
        let earliest = server_time();
        levels.push(left(store.take(&one(&key)).await, &key).round());
        let stored = store.inspect(&key).await.unwrap().unwrap().last_refill.micros;
        assert!((earliest..=server_time()).contains(&stored));
    }
    assert_eq!(levels, [9.0, 8.0, 7.0, 6.0]);
}

#[tokio::test]
async fn local_clocks_that_differ_do_not_refill_by_their_difference() {
    let key = fresh_key();
    let stores = [0, 1].map(|seconds| {
        let clock = Hands::new();
        clock.set_seconds(seconds);
        RedisStore::new(RedisSettings { clock: ClockSource::Local(clock.0), ..settings(&shared().url()) })
    });
    let charges = [charge(&key, quota(10.0, 1.0), 1.0)];
    let mut admitted = 0;
    for turn in 0..40 {
        admitted += u32::from(stores[turn % 2].take(&charges).await.unwrap().admitted);
    }
    assert_eq!(admitted, 11, "ten tokens, and one second between the earliest and the latest clock");
}

#[tokio::test]
async fn a_frozen_server_is_a_timeout_and_recovers() {
    let server = Server::start(&[]);
    let timeout = Duration::from_millis(200);
    let store = RedisStore::new(within(timeout, settings(&server.url())));
    until(&store, Result::is_ok).await;
    server.signal("STOP");
    until(&store, |result| *result == Err(StoreError::Timeout(timeout))).await;
    for _ in 0..3 {
        assert_eq!(take(&store).await, Err(StoreError::Timeout(timeout)));
    }
    server.signal("CONT");
    until(&store, Result::is_ok).await;
}

#[tokio::test]
async fn callers_who_always_give_up_sooner_than_the_timeout_open_the_breaker_too() {
    let server = Server::start(&[]);
    let store = RedisStore::new(within(Duration::from_millis(500), settings(&server.url())));
    until(&store, Result::is_ok).await;
    server.signal("STOP");
    let deadline = Instant::now() + PATIENCE;
    while store.open_breakers() == 0 {
        let given_up = tokio::time::timeout(Duration::from_millis(20), take(&store)).await;
        assert!(given_up.is_err(), "{given_up:?}");
        assert!(Instant::now() < deadline, "nobody finds out that the server hangs");
    }
    assert_eq!(error_kind(&store).await, "breaker_open");
    server.signal("CONT");
    until(&store, Result::is_ok).await;
}

#[tokio::test]
async fn a_dead_server_is_a_connection_error_and_its_successor_is_found() {
    let server = Server::start(&[]);
    let store = store(&server.url());
    assert!(take(&store).await.unwrap().admitted);
    let place = server.kill();
    for _ in 0..3 {
        assert_eq!(error_kind(&store).await, "connection");
    }
    let _successor = Server::back(&place);
    until(&store, Result::is_ok).await;
}

#[tokio::test]
async fn a_refused_port_is_a_connection_error() {
    let place = Server::start(&[]).kill();
    let store = store(&format!("redis://:s3cret@127.0.0.1:{}", place.0));
    let error = take(&store).await.unwrap_err();
    assert_eq!(error.kind(), "connection");
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
}

#[tokio::test]
async fn a_connection_that_the_server_closed_is_replaced() {
    let server = Server::start(&[]);
    let store = store(&server.url());
    for _ in 0..3 {
        until(&store, Result::is_ok).await;
        let _: i64 = server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    until(&store, Result::is_ok).await;
}

#[tokio::test]
async fn a_wrong_password_is_an_auth_error_without_the_password() {
    let server = Server::start(&["--requirepass", "right"]);
    for url in ["redis://:s3cret@", "redis://someone:s3cret@"] {
        let store = store(&format!("{url}127.0.0.1:{}", server.port()));
        let error = take(&store).await.unwrap_err();
        assert_eq!(error.kind(), "auth", "{error}");
        let told = format!("{error} {error:?} {store:?} {:?}", settings(&format!("{url}127.0.0.1")));
        assert!(!told.contains("s3cret"), "{told}");
        assert_eq!(error.to_string().lines().count(), 1);
    }
    assert_eq!(error_kind(&store(&server.url())).await, "auth");
    let url: RedisUrl = server.url().parse().unwrap();
    let right = within(PATIENCE, RedisSettings::new(url.with_password("right")));
    assert!(take(&RedisStore::new(right)).await.unwrap().admitted);
}

#[tokio::test]
async fn a_command_that_the_user_may_not_call_is_an_auth_error() {
    let () = shared().run(&["ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@all", "-hset"]);
    let () = shared().run(&["ACL", "SETUSER", "outsider", "on", ">pw", "~other:*", "+@all"]);
    for name in ["reader", "outsider"] {
        let store = store(&format!("redis://{name}:pw@127.0.0.1:{}", shared().port()));
        assert_eq!(error_kind(&store).await, "auth", "{name}");
    }
}

#[tokio::test]
async fn a_user_who_may_not_read_api_keys_keeps_no_check_from_its_buckets() {
    let () = shared().run(&["ACL", "SETUSER", "keyless", "on", ">pw", "~*", "+@all", "-hgetall"]);
    let store = store(&format!("redis://keyless:pw@127.0.0.1:{}", shared().port()));
    for _ in 0..10 {
        assert_eq!(store.read("rl:apikey:none").await.unwrap_err().kind(), "auth");
    }
    assert_eq!(store.open_breakers(), 0);
    assert!(take(&store).await.unwrap().admitted);
}

/// With a breaker that opens at the first failure.
fn failing_once(usual: RedisSettings) -> RedisSettings {
    let limits = CallLimits { breaker_failures: 1, ..usual.limits };
    RedisSettings { limits, ..usual }
}

#[tokio::test]
async fn a_server_that_answers_others_in_time_is_not_taken_for_dead() {
    let port = server_that_answers_the_second_take_with_the_third();
    let usual = within(Duration::from_millis(500), settings(&format!("redis://127.0.0.1:{port}")));
    let store = RedisStore::new(failing_once(usual));
    let (first, second) = tokio::join!(take(&store), take(&store));
    assert!(first.unwrap().admitted);
    assert_eq!(second.unwrap_err().kind(), "timeout");
    assert_eq!(store.open_breakers(), 0);
    assert!(take(&store).await.unwrap().admitted, "on the connection that is there");
}

/// As a server with more to do than it can in time, on its only connection.
fn server_that_answers_the_second_take_with_the_third() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut commands = BufReader::new(socket.try_clone().unwrap());
        let mut takes = 0;
        while let Some(name) = command(&mut commands) {
            takes += usize::from(name == "EVALSHA");
            let reply = match (name.as_str(), takes) {
                ("EVALSHA", 2) => String::new(),
                ("EVALSHA", 3) => "$5\r\n1 9 0\r\n".repeat(2),
                ("EVALSHA", _) => "$5\r\n1 9 0\r\n".to_owned(),
                _ => "+OK\r\n".to_owned(),
            };
            socket.write_all(reply.as_bytes()).unwrap();
        }
    });
    port
}

/// Reads a command, and gives the first of its words.
fn command(from: &mut impl BufRead) -> Option<String> {
    let mut line = || from.by_ref().lines().next()?.ok();
    let words: usize = line()?.strip_prefix('*')?.parse().ok()?;
    // Each has its length in a line before it, and no word of these tests holds a line end.
    let words: Vec<String> = (0..words).map_while(|_| line().and_then(|_| line())).collect();
    words.into_iter().next()
}

#[tokio::test]
async fn a_server_out_of_memory_says_so() {
    let server = Server::start(&[]);
    let store = store(&server.url());
    assert!(take(&store).await.unwrap().admitted);
    let () = server.run(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(error_kind(&store).await, "out_of_memory");
    let () = server.run(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(take(&store).await.unwrap().admitted);
}

#[tokio::test]
async fn a_replica_says_that_it_is_read_only_and_recovers_when_promoted() {
    let primary = Server::start(&[]);
    let server = Server::start(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    let store = store(&server.url());
    until(&store, |result| result.as_ref().is_err_and(|error| error.kind() == "read_only")).await;
    let () = server.run(&["REPLICAOF", "NO", "ONE"]);
    assert!(take(&store).await.unwrap().admitted);
}

#[tokio::test]
async fn a_replica_without_data_is_not_ready() {
    let nobody = Server::start(&[]).kill();
    let server = Server::start(&["--replica-serve-stale-data", "no"]);
    let () = server.run(&["REPLICAOF", "127.0.0.1", &nobody.0.to_string()]);
    assert_eq!(error_kind(&store(&server.url())).await, "loading");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_busy_with_another_script_is_not_ready() {
    let server = Server::start(&["--busy-reply-threshold", "5"]);
    let store = RedisStore::new(within(Duration::from_millis(200), settings(&server.url())));
    assert!(take(&store).await.unwrap().admitted);
    let mut connection = server.connection();
    let endless = std::thread::spawn(move || {
        let ended = redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut connection);
        assert!(ended.is_err());
    });
    until(&store, |result| result.as_ref().is_err_and(|error| error.kind() == "loading")).await;
    let () = server.run(&["SCRIPT", "KILL"]);
    endless.join().unwrap();
    until(&store, Result::is_ok).await;
}

#[tokio::test]
async fn a_database_and_several_connections_may_be_chosen() {
    let (key, url) = (fresh_key(), format!("{}/3", shared().url()));
    let usual = settings(&url);
    let limits = CallLimits { pool_size: 3, ..usual.limits };
    let store = RedisStore::new(RedisSettings { limits, ..usual });
    let charges = one(&key);
    let takes = (0..20).map(|_| store.take(&charges));
    let admitted = futures_util::future::join_all(takes).await.into_iter().filter(|t| t.as_ref().unwrap().admitted);
    assert_eq!(admitted.count(), 10);
    assert!(!shared().run::<bool>(&["EXISTS", key.as_str()]));
}

#[test]
fn a_malformed_url_is_refused_without_being_repeated() {
    for url in [
        "",
        "127.0.0.1:6379",
        "http://:s3cret@host",
        "redis://:s3cret@host:port",
        "redis://:s3cret@h/s3cret",
        "redis:// :s3cret@",
    ] {
        let error = url.parse::<RedisUrl>().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{url}");
    }
}

#[test]
fn a_url_is_shown_without_its_password() {
    let url: RedisUrl = "redis://someone:s3cret@localhost:7000/2".parse().unwrap();
    assert_eq!(format!("{url} {url:?}"), "redis://localhost:7000/2 redis://localhost:7000/2");
}

#[tokio::test]
async fn calls_beyond_those_that_may_be_on_their_way_wait_and_are_all_answered() {
    let usual = settings(&shared().url());
    let limits = CallLimits { max_in_flight: 2, ..usual.limits };
    let store = RedisStore::new(RedisSettings { limits, ..usual });
    let key = fresh_key();
    let charges = [charge(&key, quota(100.0, NEVER), 1.0)];
    let takes = (0..100).map(|_| store.take(&charges));
    assert!(futures_util::future::join_all(takes).await.into_iter().all(|taken| taken.unwrap().admitted));
}

#[tokio::test]
async fn calls_that_find_no_place_in_time_say_so_and_are_never_sent() {
    let server = Server::start(&[]);
    let usual = within(Duration::from_millis(200), settings(&server.url()));
    let limits = CallLimits { max_in_flight: 1, breaker_failures: 1000, ..usual.limits };
    let store = RedisStore::new(RedisSettings { limits, ..usual });
    until(&store, Result::is_ok).await;
    server.signal("STOP");
    let key = fresh_key();
    let charges = [charge(&key, quota(100.0, 1.0), 1.0)];
    let takes = (0..20).map(|_| store.take(&charges));
    let kinds: Vec<_> =
        futures_util::future::join_all(takes).await.into_iter().map(|t| t.unwrap_err().kind()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "timeout").count(), 1, "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == "overloaded").count(), 19, "{kinds:?}");
    server.signal("CONT");
    until(&store, Result::is_ok).await;
    let left = store.peek(&charges).await.unwrap().tokens(&charges).next().unwrap();
    assert!(left >= 99.0, "one at most was carried out late: {left}");
}

#[tokio::test]
async fn a_unix_socket_is_connected_to_with_a_password_a_user_and_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock");
    let server = Server::start(&["--unixsocket", socket.to_str().unwrap()]);
    let () = server.run(&["ACL", "SETUSER", "tidegate", "on", ">p@ss/word", "~*", "+@all"]);
    let key = fresh_key();
    let url = format!("unix://{}?db=4&user=tidegate", socket.display());
    let url = url.parse::<RedisUrl>().unwrap().with_password("p@ss/word");
    assert!(!format!("{url} {url:?}").contains("p@ss"));
    let store = RedisStore::new(within(PATIENCE, RedisSettings::new(url)));
    assert!(store.take(&one(&key)).await.unwrap().admitted);
    assert_eq!(
        server.run::<Vec<String>>(&["CLIENT", "LIST", "TYPE", "normal"]).concat().matches("user=tidegate").count(),
        1
    );
    assert!(!server.run::<bool>(&["EXISTS", key.as_str()]), "it is in database 4");
}

#[tokio::test]
async fn a_host_may_be_an_ipv6_address() {
    let server = Server::start(&["--bind", "127.0.0.1", "::1"]);
    let store = store(&format!("redis://[::1]:{}/0", server.port()));
    assert!(take(&store).await.unwrap().admitted);
}

#[tokio::test]
async fn the_server_is_told_who_its_client_is() {
    let server = Server::start(&[]);
    let client_name = "tidegate-eu".to_owned();
    let store = RedisStore::new(RedisSettings { client_name, ..settings(&server.url()) });
    assert!(take(&store).await.unwrap().admitted);
    let list: String = server.run(&["CLIENT", "LIST"]);
    assert!(list.contains(" name=tidegate-eu "), "{list}");
}

#[tokio::test]
async fn a_bucket_stored_above_its_maximum_as_by_an_old_snapshot_is_cut_to_it() {
    let (store, key) = (store(&shared().url()), fresh_key());
    for (tokens, last_refill) in [("1e9", "1700000000.000000"), ("11", "1.000000"), ("1e300", "99999999999.000000")] {
        let () = shared().run(&["HSET", key.as_str(), "tokens", tokens, "last_refill", last_refill]);
        assert_eq!(left(store.peek(&one(&key)).await, &key), 10.0, "{tokens}");
        assert_eq!(left(store.take(&one(&key)).await, &key), 9.0, "{tokens}");
    }
}

#[tokio::test]
async fn a_dead_server_is_asked_no_more_after_some_failures_and_found_again_by_a_probe() {
    let server = Server::start(&[]);
    let usual = settings(&server.url());
    let limits = CallLimits { breaker_failures: 3, probe_interval: Duration::from_millis(20), ..usual.limits };
    let store = RedisStore::new(RedisSettings { limits, ..usual });
    assert!(take(&store).await.unwrap().admitted);
    let place = server.kill();
    let kinds = [error_kind(&store).await, error_kind(&store).await, error_kind(&store).await];
    assert_eq!(kinds, ["connection"; 3]);
    assert_eq!(error_kind(&store).await, "breaker_open");
    assert_eq!(store.open_breakers(), 1);
    let _successor = Server::back(&place);
    until(&store, Result::is_ok).await;
    assert_eq!(store.open_breakers(), 0);
}

#[tokio::test]
async fn one_damaged_bucket_opens_the_breaker_for_nobody() {
    let (store, foreign) = (store(&shared().url()), fresh_key());
    let () = shared().run(&["SET", foreign.as_str(), "precious"]);
    for _ in 0..20 {
        assert_eq!(store.take(&one(&foreign)).await.unwrap_err().kind(), "wrong_type");
    }
    assert!(take(&store).await.unwrap().admitted);
}

#[tokio::test]
async fn a_wrong_password_makes_few_connections_however_many_calls_come() {
    let server = Server::start(&["--requirepass", "right"]);
    let store = store(&format!("redis://:wrong@127.0.0.1:{}", server.port()));
    let connections = || -> u64 {
        let told: String = server.run(&["INFO", "stats"]);
        crate::support::field(&told, "total_connections_received").unwrap().parse().unwrap()
    };
    let before = connections();
    for _ in 0..200 {
        assert!(take(&store).await.is_err());
    }
    // Five until the breaker opens, a probe at once and some more, and the two that ask here.
    assert!(connections() - before < 30, "{} connections for 200 calls", connections() - before);
}
