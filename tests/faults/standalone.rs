//! One Redis server, and what may befall it.

use crate::support::load::{Check, Outcome, bucket};
use crate::support::redis::Server;
use crate::support::report::Row;
use crate::support::trial::{SLACK, Setup, Trial, Window};
use std::time::Duration;

const TOPOLOGY: &str = "standalone";

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Loses nothing that it answered, even when it is killed.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// Runs a fault from `inject` to `clear`, with `length` between them, and judges it.
fn fault(name: &'static str, setup: Setup, length: Duration, inject: impl FnOnce(), clear: impl FnOnce()) -> Row {
    let trial = Trial::start(setup);
    let injected = trial.now();
    inject();
    trial.hold(length);
    clear();
    let cleared = trial.now();
    trial.until_recovered();
    trial.end().judge(name, TOPOLOGY, Window { injected, cleared }, SLACK)
}

fn broke(row: &Row) {
    assert!(row.degraded > 0, "the fault was not felt: {row:?}");
}

#[test]
fn a_server_that_is_killed_and_comes_back_with_its_data_admits_nothing_twice() {
    let mut server = Server::start(&DURABLE);
    let trial = Trial::start(Setup::standalone(&server.url()));
    let injected = trial.now();
    server.crash();
    trial.hold(seconds(1.0));
    server.restart();
    let cleared = trial.now();
    trial.until_recovered();
    broke(&trial.end().judge("kill -9, restarted with its data", TOPOLOGY, Window { injected, cleared }, SLACK));
}

/// Not a fault of tidegate's: what a server forgets cannot be held against anybody.
#[test]
fn a_server_that_comes_back_without_its_data_starts_with_full_buckets() {
    let mut server = Server::start(&[]);
    let setup = Setup::standalone(&server.url());
    let max_tokens = setup.quota.max_tokens;
    let trial = Trial::start(setup);
    let injected = trial.now();
    server.crash();
    trial.hold(seconds(0.5));
    server.restart();
    let cleared = trial.now();
    trial.until_recovered();
    // Long enough to spend what the new buckets hold.
    trial.hold(seconds(2.0));
    let run = trial.end();
    let window = Window { injected, cleared };
    let row = run.row("kill -9, restarted empty", TOPOLOGY, window);
    row.publish();
    run.assert_answered();
    run.assert_errors_within(window, SLACK);
    assert!(row.over_admission <= max_tokens, "more than one bucketful: {}", row.over_admission);
}

#[test]
fn a_frozen_server_is_answered_for_and_found_again() {
    let server = Server::start(&[]);
    let row = fault(
        "SIGSTOP for 3 s",
        Setup::standalone(&server.url()),
        seconds(3.0),
        || server.signal("STOP"),
        || server.signal("CONT"),
    );
    broke(&row);
}

#[test]
fn a_server_that_sleeps_is_answered_for() {
    let server = Server::start(&["--enable-debug-command", "yes"]);
    let setup = Setup::standalone(&server.url());
    broke(&fault("DEBUG SLEEP 1", setup, Duration::ZERO, || server.run(&["DEBUG", "SLEEP", "1"]), || ()));
}

#[test]
fn a_script_that_is_flushed_ten_times_a_second_costs_no_answer() {
    let server = Server::start(&[]);
    let trial = Trial::start(Setup::standalone(&server.url()));
    let injected = trial.now();
    for _ in 0..20 {
        let () = server.run(&["SCRIPT", "FLUSH"]);
        trial.hold(seconds(0.1));
    }
    let window = Window { injected, cleared: trial.now() };
    trial.until_recovered();
    let run = trial.end();
    run.judge("SCRIPT FLUSH each 100 ms", TOPOLOGY, window, Duration::ZERO);
    run.assert_errors_within(Window::since(Duration::ZERO), Duration::ZERO);
}

#[test]
fn a_server_out_of_memory_is_answered_for() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let setup = Setup::standalone(&server.url());
    let limit = |bytes| server.run::<()>(&["CONFIG", "SET", "maxmemory", bytes]);
    broke(&fault("maxmemory reached, noeviction", setup, seconds(1.0), || limit("1"), || limit("0")));
}

#[test]
fn a_foreign_value_under_one_bucket_degrades_its_caller_only_and_is_left_alone() {
    const ODD: usize = 3;
    let server = Server::start(&[]);
    let () = server.run(&["SET", &bucket(ODD), "precious"]);
    let trial = Trial::start_when(Setup::standalone(&server.url()), |check| check.caller != ODD);
    let injected = trial.now();
    trial.hold(seconds(1.0));
    let cleared = trial.now();
    let run = trial.end();
    let row = run.row("WRONGTYPE on one of 20 buckets", TOPOLOGY, Window { injected, cleared });
    row.publish();
    run.assert_answered();
    let of_odd: Vec<&Check> = run.records.checks.iter().filter(|check| check.caller == ODD).collect();
    assert!(!of_odd.is_empty() && of_odd.iter().all(|check| check.outcome == Outcome::Unavailable));
    run.assert_no_errors(|check| check.caller != ODD);
    assert_eq!(row.over_admission, 0.0);
    assert_eq!(server.run::<String>(&["GET", &bucket(ODD)]), "precious");
    assert_eq!(server.run::<i64>(&["TTL", &bucket(ODD)]), -1);
}

/// A user `limiter` with the password `pw` and these rules.
fn limiter(server: &Server, rules: &[&str]) {
    let () = server.run(&[&["ACL", "SETUSER", "limiter", "on", ">pw", "~rl:*"], rules].concat());
}

fn as_limiter(server: &Server) -> Setup {
    Setup::standalone(&format!("redis://limiter:pw@127.0.0.1:{}", server.port()))
}

#[test]
fn a_user_that_may_not_call_script_is_limited_as_any_other() {
    let server = Server::start(&[]);
    limiter(&server, &["+@all", "-script"]);
    let trial = Trial::start(as_limiter(&server));
    let injected = trial.now();
    let () = server.run(&["SCRIPT", "FLUSH"]);
    trial.hold(seconds(1.0));
    let window = Window { injected, cleared: trial.now() };
    let run = trial.end();
    run.judge("ACL without SCRIPT, script flushed", TOPOLOGY, window, Duration::ZERO);
    run.assert_no_errors(|_| true);
}

#[test]
fn a_user_that_loses_the_right_to_run_scripts_is_answered_for_until_it_has_it_again() {
    let server = Server::start(&[]);
    limiter(&server, &["+@all"]);
    let row = fault(
        "ACL takes EVALSHA away",
        as_limiter(&server),
        seconds(1.0),
        || limiter(&server, &["-evalsha", "-eval"]),
        || limiter(&server, &["+@all"]),
    );
    broke(&row);
}

#[test]
fn a_password_that_is_wrong_for_a_while_needs_no_restart() {
    let server = Server::start(&[]);
    limiter(&server, &["+@all"]);
    let row = fault(
        "wrong password, connections closed",
        as_limiter(&server),
        seconds(1.0),
        || {
            limiter(&server, &["resetpass", ">another"]);
            let _: i64 = server.run(&["CLIENT", "KILL", "USER", "limiter"]);
        },
        || limiter(&server, &["resetpass", ">pw"]),
    );
    broke(&row);
}

#[test]
fn a_server_that_loads_its_data_is_answered_for() {
    let server = Server::start(&[
        "--enable-debug-command",
        "yes",
        "--loading-process-events-interval-bytes",
        "1024",
        "--rdbcompression",
        "no",
    ]);
    let fill = "for i = 1, 200 do redis.call('SET', 'filler:' .. i, string.rep('x', 1024)) end";
    let () = server.run(&["EVAL", fill, "0"]);
    let () = server.run(&["CONFIG", "SET", "key-load-delay", "5000"]);
    let setup = Setup::standalone(&server.url());
    let reload = || server.run::<()>(&["DEBUG", "RELOAD"]);
    broke(&fault("LOADING", setup, Duration::ZERO, reload, || ()));
}

#[test]
fn a_server_that_becomes_a_replica_is_answered_for() {
    let server = Server::start(&[]);
    let setup = Setup::standalone(&server.url());
    let replica_of = |host, port| server.run::<()>(&["REPLICAOF", host, port]);
    broke(&fault("READONLY", setup, seconds(1.0), || replica_of("127.0.0.1", "1"), || replica_of("NO", "ONE")));
}
