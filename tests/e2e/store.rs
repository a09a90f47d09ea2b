//! Gateways whose buckets are in a real Redis, and other ways to connect.

use crate::support::client::Answer;
use crate::support::service::{self, Tidegate};
use crate::support::token::token;
use crate::support::{Gateway, eventually, redis, unique_user};
use ::redis::Value;
use serde_json::json;

#[test]
fn a_bucket_in_redis_is_a_hash_named_after_its_user() {
    let server = redis::Server::start(&[]);
    let gateway = Gateway::start_with(|config| config["redis"] = on(&server), |_| ());
    let user = unique_user();
    let caller = gateway.stranger().bearer(&token(&user, "standard"));
    assert_eq!(caller.statuses("/v1/hello", 3), [200; 3]);
    let key = format!("rl:user:{user}");
    let tokens: String = server.run(&["HGET", &key, "tokens"]);
    assert!((7.0..7.5).contains(&tokens.parse::<f64>().unwrap()), "{tokens}");
    let last_refill: String = server.run(&["HGET", &key, "last_refill"]);
    let time: Vec<String> = server.run(&["TIME"]);
    let age = time[0].parse::<f64>().unwrap() - last_refill.parse::<f64>().unwrap();
    assert!((-1.0..60.0).contains(&age), "{last_refill} is {age} seconds old");
    assert_eq!(server.run::<u64>(&["HLEN", &key]), 2);
    assert!(server.run::<i64>(&["TTL", &key]) >= 1);
}

#[test]
fn two_gateways_on_one_redis_share_their_buckets() {
    let server = redis::Server::start(&[]);
    let gateways = [(); 2].map(|()| Gateway::start_with(|config| config["redis"] = on(&server), |_| ()));
    let token = token(&unique_user(), "standard");
    let callers = gateways.each_ref().map(|gateway| gateway.stranger().bearer(&token));
    let statuses: Vec<u16> = (0..12).map(|turn| callers[turn % 2].get("/v1/hello").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 429, 429]);
}

#[test]
fn an_api_key_is_in_no_log_and_not_in_redis() {
    const KEYS: [&str; 2] = ["demo-key-of-a-batch-job", "sk-an-unknown-key-0123456789"];
    let server = redis::Server::start(&[]);
    let mut config = service::config();
    config["redis"] = on(&server);
    // Else a denied key would be denied again without Redis, and the log would not tell of its failure.
    config["deny_cache"] = json!({"size": 0});
    let tidegate = Tidegate::start_with(&config, "127.0.0.1:0", &[("TIDEGATE_LOG", "trace")]);
    let gateway = Gateway::before(tidegate, |_| ());
    for key in KEYS {
        let caller = gateway.stranger().with("x-api-key", key);
        assert!(caller.statuses("/v1/hello", 60).contains(&429));
    }
    gateway.stranger().with("x-api-key", KEYS[0]).get("/v1/last");
    gateway.envoy.logged("/v1/last");
    server.signal("STOP");
    let failed = gateway.stranger().with("x-api-key", KEYS[1]).get("/v1/hello");
    assert_eq!(failed.upstream_saw("x-ratelimit-degraded").as_deref(), Some("true"));
    server.signal("CONT");

    let names: Vec<String> = server.run(&["KEYS", "*"]);
    let values: Vec<Value> = names.iter().map(|name| server.run(&["HGETALL", name])).collect();
    let digests = names.iter().filter(|name| name.starts_with("rl:key:")).count();
    assert_eq!(digests, 2, "{names:?}");
    let places = [
        ("Redis", format!("{names:?} {values:?}")),
        ("tidegate's log", gateway.tidegate.child().err()),
        ("tidegate's output", gateway.tidegate.child().out()),
        ("Envoy's access log", gateway.envoy.child().out()),
        ("Envoy's log", gateway.envoy.child().err()),
    ];
    for (place, text) in &places {
        for key in KEYS {
            assert!(!text.contains(key), "{key} is in {place}");
        }
    }
    assert!(places[1].1.contains("TRACE"), "the log is at its most talkative");
}

#[test]
fn a_unix_socket_serves_envoy_too() {
    let directory = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}/tidegate.sock", directory.path().display());
    let gateway = Gateway::before(Tidegate::start_with(&service::config(), &socket, &[]), |_| ());
    assert_eq!(gateway.tidegate.listen(), socket);
    assert_eq!(gateway.stranger().statuses("/v1/hello", 4), [200, 200, 200, 429]);
}

/// The tokens that one request costs when Envoy gives up its first try, which the frozen Redis has not answered, and
/// asks again.
fn cost_of_a_request_that_envoy_asks_about_twice(dedupe: bool) -> u64 {
    let server = redis::Server::start(&[]);
    let gateway = Gateway::start_with(
        |config| {
            config["redis"] = json!({"urls": [server.url()], "timeout": "10s"});
            config["dedupe"] = json!(dedupe);
        },
        |envoy| {
            let retry = &mut envoy.ext_authz()["grpc_service"]["retry_policy"];
            retry["retry_on"] = json!("reset");
            retry["num_retries"] = json!(50);
            // Is also the timeout of each try.
            retry["retry_back_off"]["max_interval"] = json!("0.5s");
        },
    );
    let caller = gateway.user("standard");
    let left = |answer: Answer| (answer.status, answer.number("x-ratelimit-remaining"));
    assert_eq!(left(caller.get("/v1/hello")), (200, 9));
    server.signal("STOP");
    let answer = std::thread::scope(|scope| {
        let asked = scope.spawn(|| caller.get("/v1/hello"));
        let asked_again = || (gateway.envoy.stat("cluster.limiter.upstream_rq_retry") > 0).then_some(());
        eventually("Envoy has asked again", asked_again);
        server.signal("CONT");
        asked.join().unwrap()
    });
    assert_eq!(answer.status, 200);
    assert_eq!(gateway.envoy.counted("ok"), 2);
    8 - left(caller.get("/v1/hello")).1
}

#[test]
fn a_check_that_envoy_repeats_is_charged_once_with_dedupe_and_each_time_without() {
    assert_eq!(cost_of_a_request_that_envoy_asks_about_twice(true), 1);
    assert!(cost_of_a_request_that_envoy_asks_about_twice(false) >= 2);
}

fn on(server: &redis::Server) -> serde_json::Value {
    json!({"urls": [server.url()], "timeout": "2s"})
}
