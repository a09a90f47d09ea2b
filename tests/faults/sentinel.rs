//! A master and its replica under three sentinels.

use crate::support::redis::Server;
use crate::support::report::{Row, note};
use crate::support::sentinel::{DOWN_AFTER, Trio};
use crate::support::trial::{Run, SLACK, Setup, Trial, Window};
use crate::support::{eventually, scripts_run};
use std::time::{Duration, Instant};

const TOPOLOGY: &str = "Sentinel";

/// Longer than sentinels need to agree that a master is down and to promote a replica.
const ELECTION: Duration = Duration::from_secs(5);

/// Waits until no script has been run on a server for a second, and says since when.
fn until_left_alone(server: &Server) -> Instant {
    let (mut count, mut since) = (scripts_run(server), Instant::now());
    eventually("the old master is left alone", || {
        let now = scripts_run(server);
        if now != count {
            (count, since) = (now, Instant::now());
        }
        (since.elapsed() > Duration::from_secs(1)).then_some(since)
    })
}

/// Judges a failover in which the last writes may be lost, as replication is asynchronous.
fn judge_with_loss(run: &Run, name: &'static str, window: Window, slack: Duration) -> Row {
    let row = run.row(name, TOPOLOGY, window);
    row.publish();
    run.assert_answered();
    run.assert_errors_within(window, slack);
    assert!(row.over_admission <= run.quota.max_tokens, "more than a bucketful: {row:?}");
    row
}

#[test]
#[ignore = "minutes: make test-faults"]
fn a_failover_on_request_costs_no_answer_and_the_old_master_is_left() {
    let trio = Trio::start();
    let trial = Trial::start(Setup::sentinel(&trio.urls()));
    let old = trio.master();
    let (injected, begun) = (trial.now(), Instant::now());
    let new = trio.fail_over();
    let left = until_left_alone(&trio.data[old]);
    note(format!(
        "SENTINEL FAILOVER: scripts ran on the old master until {} ms after the request.",
        left.duration_since(begun).as_millis()
    ));
    trio.wait_for_replica(old);
    trial.until_recovered();
    assert!(scripts_run(&trio.data[new]) > 0);
    let run = trial.end();
    judge_with_loss(&run, "SENTINEL FAILOVER", Window::since(injected), SLACK);
    run.assert_no_errors(|_| true);
}

#[test]
#[ignore = "minutes: make test-faults"]
fn with_min_replicas_to_write_a_failover_on_request_admits_nothing_twice() {
    let trio = Trio::start_with(2, &["--min-replicas-to-write", "1", "--min-replicas-max-lag", "10"]);
    let trial = Trial::start(Setup::sentinel(&trio.urls()));
    let injected = trial.now();
    trio.fail_over();
    trial.until_recovered();
    trio.wait_until_calm();
    let name = "SENTINEL FAILOVER, two replicas, min-replicas-to-write 1";
    judge_with_loss(&trial.end(), name, Window::since(injected), SLACK);
}

#[test]
#[ignore = "minutes: make test-faults"]
fn a_killed_master_costs_no_more_than_the_sentinels_need() {
    let mut trio = Trio::start();
    let trial = Trial::start(Setup::sentinel(&trio.urls()));
    let old = trio.master();
    let injected = trial.now();
    trio.data[old].crash();
    trio.wait_for_news(old);
    let told = trial.now();
    trio.wait_for_another(old);
    trial.until_recovered();
    trio.data[old].restart();
    trio.wait_for_replica(old);
    trial.until_recovered();
    let run = trial.end();
    let row = judge_with_loss(&run, "kill -9 of the master", Window::since(injected), DOWN_AFTER + ELECTION + SLACK);
    note(format!(
        "kill -9 of a master: the first sentinel told of the new one after {} ms, the last error came after {} ms.",
        (told - injected).as_millis(),
        row.last_error.unwrap_or_default().as_millis()
    ));
    assert!(row.degraded > 0, "the fault was not felt: {row:?}");
}

#[test]
#[ignore = "minutes: make test-faults"]
fn a_frozen_master_is_left_and_not_returned_to_when_it_thaws() {
    let trio = Trio::start();
    let trial = Trial::start(Setup::sentinel(&trio.urls()));
    let old = trio.master();
    let injected = trial.now();
    trio.data[old].signal("STOP");
    trio.wait_for_another(old);
    trial.until_recovered();
    trio.data[old].signal("CONT");
    trio.wait_for_replica(old);
    until_left_alone(&trio.data[old]);
    trial.until_recovered();
    let run = trial.end();
    let slack = DOWN_AFTER + ELECTION + SLACK;
    judge_with_loss(&run, "SIGSTOP of the master, thawed after the failover", Window::since(injected), slack);
}

/// What an operator's hand does: the sentinels learn of it by and by, and tidegate's connections stay open.
#[test]
#[ignore = "minutes: make test-faults"]
fn a_master_that_is_made_a_replica_under_open_connections_needs_no_restart() {
    let trio = Trio::start();
    let trial = Trial::start(Setup::sentinel(&trio.urls()));
    let old = trio.master();
    let new = 1 - old;
    let injected = trial.now();
    let () = trio.data[new].run(&["REPLICAOF", "NO", "ONE"]);
    let () = trio.data[old].run(&["REPLICAOF", "127.0.0.1", &trio.data[new].port().to_string()]);
    trial.until_recovered();
    trial.hold(Duration::from_secs(5));
    trio.wait_until_calm();
    trial.until_recovered();
    let slack = DOWN_AFTER + ELECTION + Duration::from_secs(15);
    judge_with_loss(&trial.end(), "roles swapped by hand, connections open", Window::since(injected), slack);
}

#[test]
#[ignore = "minutes: make test-faults"]
fn one_dead_sentinel_is_not_felt_and_the_others_are_heard() {
    let mut trio = Trio::start();
    let trial = Trial::start(Setup::sentinel(&trio.urls()));
    let injected = trial.now();
    drop(trio.sentinels.remove(0));
    trial.hold(Duration::from_secs(3));
    let window = Window { injected, cleared: trial.now() };
    trio.fail_over();
    trial.until_recovered();
    let run = trial.end();
    judge_with_loss(&run, "one of three sentinels dead, then SENTINEL FAILOVER", window, SLACK);
    run.assert_no_errors(|_| true);
}

#[test]
#[ignore = "minutes: make test-faults"]
fn without_any_sentinel_checks_go_on() {
    let mut trio = Trio::start();
    let trial = Trial::start(Setup::sentinel(&trio.urls()));
    let injected = trial.now();
    trio.sentinels.clear();
    trial.hold(Duration::from_secs(5));
    let window = Window { injected, cleared: trial.now() };
    let run = trial.end();
    run.judge("all sentinels dead, 5 s", TOPOLOGY, window, SLACK);
    run.assert_no_errors(|_| true);
}
