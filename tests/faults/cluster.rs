//! A Redis Cluster of three shards, each a master and a replica.

use crate::support::cluster::{Cluster, Coverage, MASTERS, NODE_TIMEOUT, shard, slot};
use crate::support::eventually;
use crate::support::load::{Check, Outcome, bucket};
use crate::support::report::note;
use crate::support::service::check;
use crate::support::trial::{Quota, SLACK, Setup, Trial, Window};
use std::time::Duration;

const TOPOLOGY: &str = "Cluster";

/// Longer than the others need to agree that a master fails and to promote its replica.
const ELECTION: Duration = Duration::from_secs(5);

/// Whether a check's bucket was born in this shard.
fn lives_in(place: usize) -> impl Fn(&Check) -> bool {
    move |check| shard(&bucket(check.caller)) == place
}

fn lives_elsewhere(place: usize) -> impl Fn(&Check) -> bool {
    move |check| shard(&bucket(check.caller)) != place
}

#[test]
#[ignore = "minutes: make test-faults"]
fn a_failover_on_request_is_felt_by_its_own_shard_at_most_and_costs_no_token() {
    let cluster = Cluster::start(Coverage::Full);
    let trial = Trial::start(Setup::cluster(&cluster.urls()));
    let injected = trial.now();
    cluster.fail_over_to(MASTERS);
    trial.hold(Duration::from_secs(2));
    trial.until_recovered();
    let run = trial.end();
    run.judge("CLUSTER FAILOVER", TOPOLOGY, Window::since(injected), SLACK);
    // The master of that shard holds its clients back while its replica catches up.
    run.assert_no_errors(lives_elsewhere(0));
}

/// Takes the master of shard 0 away in some way, and looks at those whose buckets are in it and at the others.
fn lose_a_master(names: [&'static str; 2], lose: impl FnOnce(&mut Cluster), find: impl FnOnce(&mut Cluster)) {
    let mut cluster = Cluster::start(Coverage::Partial);
    let trial = Trial::start(Setup::cluster(&cluster.urls()));
    let injected = trial.now();
    lose(&mut cluster);
    cluster.wait_for_master(MASTERS);
    let promoted = trial.now();
    trial.until_recovered();
    find(&mut cluster);
    cluster.wait_for_replica(0);
    trial.until_recovered();
    let run = trial.end();
    let (lost, others) = (run.only(lives_in(0)), run.only(lives_elsewhere(0)));
    let window = Window::since(injected);
    let row = lost.row(names[0], TOPOLOGY, window);
    row.publish();
    lost.assert_answered();
    lost.assert_errors_within(window, NODE_TIMEOUT + ELECTION + SLACK);
    note(format!(
        "{}: the replica was promoted after {} ms, the last error came after {} ms.",
        names[0],
        (promoted - injected).as_millis(),
        row.last_error.unwrap_or_default().as_millis()
    ));
    assert!(row.degraded > 0, "the fault was not felt: {row:?}");
    let during = Window { injected, cleared: injected + row.last_error.unwrap_or_default() };
    others.judge(names[1], TOPOLOGY, during, SLACK);
    others.assert_no_errors(|_| true);
}

#[test]
#[ignore = "minutes: make test-faults"]
fn a_killed_master_is_felt_by_its_own_shard_only() {
    lose_a_master(
        ["kill -9 of a master: its shard", "kill -9 of a master: the other shards"],
        |cluster| cluster.nodes[0].crash(),
        |cluster| cluster.nodes[0].restart(),
    );
}

#[test]
#[ignore = "minutes: make test-faults"]
fn a_frozen_master_is_felt_by_its_own_shard_only_and_is_routed_around() {
    lose_a_master(
        ["SIGSTOP of a master: its shard", "SIGSTOP of a master: the other shards"],
        |cluster| cluster.nodes[0].signal("STOP"),
        |cluster| cluster.nodes[0].signal("CONT"),
    );
}

/// Redis's default: as long as a slot is served by nobody, nobody is served.
#[test]
#[ignore = "minutes: make test-faults"]
fn where_full_coverage_is_required_a_killed_master_is_felt_by_all_until_its_replica_is_promoted() {
    let mut cluster = Cluster::start(Coverage::Full);
    let trial = Trial::start(Setup::cluster(&cluster.urls()));
    let injected = trial.now();
    cluster.nodes[0].crash();
    cluster.wait_for_master(MASTERS);
    trial.until_recovered();
    let run = trial.end();
    let (lost, others) = (run.only(lives_in(0)), run.only(lives_elsewhere(0)));
    let window = Window::since(injected);
    for (run, name) in [
        (&lost, "kill -9 of a master, full coverage required: its shard"),
        (&others, "kill -9 of a master, full coverage required: the other shards"),
    ] {
        run.row(name, TOPOLOGY, window).publish();
        run.assert_answered();
        run.assert_errors_within(window, NODE_TIMEOUT + ELECTION + SLACK);
    }
}

#[test]
#[ignore = "minutes: make test-faults"]
fn a_shard_that_is_wholly_down_is_answered_for_and_the_others_go_on() {
    let mut cluster = Cluster::start(Coverage::Partial);
    let trial = Trial::start(Setup::cluster(&cluster.urls()));
    let injected = trial.now();
    cluster.nodes[MASTERS].crash();
    cluster.nodes[0].crash();
    trial.hold(NODE_TIMEOUT + Duration::from_secs(3));
    let down = trial.now();
    cluster.nodes[0].restart();
    let cleared = trial.now();
    trial.until_recovered();
    let run = trial.end();
    let (lost, others) = (run.only(lives_in(0)), run.only(lives_elsewhere(0)));
    let window = Window { injected, cleared };
    lost.row("a shard wholly down, coverage no: its buckets", TOPOLOGY, window).publish();
    lost.assert_answered();
    let settled = injected + Duration::from_secs(1);
    let decided = lost.between(settled, down).filter(|check| check.outcome == Outcome::Admitted).count();
    assert_eq!(decided, 0, "nobody could have admitted them");
    others.judge("a shard wholly down, coverage no: the others", TOPOLOGY, window, SLACK);
    others.assert_no_errors(|_| true);
}

#[test]
#[ignore = "minutes: make test-faults"]
fn slots_that_move_under_load_cost_hardly_an_answer_and_no_token() {
    let cluster = Cluster::start(Coverage::Full);
    let trial = Trial::start(Setup::cluster(&cluster.urls()));
    let injected = trial.now();
    for caller in 0..10 {
        let home = shard(&bucket(caller));
        cluster.migrate(slot(&bucket(caller)), home, (home + 1) % MASTERS);
        trial.hold(Duration::from_millis(200));
    }
    let window = Window { injected, cleared: trial.now() };
    trial.until_recovered();
    let run = trial.end();
    run.judge("ten slots move to other shards (MOVED, ASK)", TOPOLOGY, window, SLACK);
    // MIGRATE holds up both servers for as long as it takes.
    let (errors, checks) = (run.errors().count(), run.records.checks.len());
    assert!(errors * 20 < checks, "{errors} errors in {checks} checks");
}

/// The whole tokens in a bucket.
fn tokens(cluster: &Cluster, key: &str) -> f64 {
    let stored: Option<f64> = cluster.nodes[shard(key)].run(&["HGET", key, "tokens"]);
    stored.map_or(f64::NAN, f64::round)
}

fn api_key_bucket(cluster: &Cluster) -> String {
    let keys = |place: usize| cluster.nodes[place].run::<Vec<String>>(&["KEYS", "rl:key:*"]);
    (0..MASTERS).flat_map(keys).next().unwrap()
}

#[test]
#[ignore = "minutes: make test-faults"]
fn three_identities_in_three_slots_are_charged_all_or_none_and_a_denial_is_refunded() {
    const PASSING: usize = 5;
    const QUOTA: Quota = Quota { max_tokens: PASSING as f64, refill_rate: 0.001 };
    let cluster = Cluster::start(Coverage::Full);
    let (user, address) = ("rl:user:alice", "rl:ip:192.0.2.1");
    let quota = |tokens| format!("{{max_tokens: {tokens}, refill_rate: 0.001}}");
    let tiers = format!(
        "tiers: {{free: {{per_user: {}, per_key: {}, per_ip: {}}}}}\ndeny_cache: {{size: 0}}\n",
        quota(100),
        quota(50),
        quota(PASSING)
    );
    let callers = vec![check(&[("x-user", "alice"), ("x-api-key", "sk-1")])];
    let trial =
        Trial::start(Setup { more: tiers, callers, rate: 100.0, quota: QUOTA, ..Setup::cluster(&cluster.urls()) });
    trial.hold(Duration::from_secs(1));
    let run = trial.end();
    run.assert_answered();
    run.assert_no_errors(|_| true);
    let key = api_key_bucket(&cluster);
    let slots = [slot(user), slot(&key), slot(address)];
    assert!(slots[0] != slots[1] && slots[1] != slots[2] && slots[2] != slots[0], "{slots:?}");
    let admitted = run.records.checks.iter().filter(|check| check.outcome == Outcome::Admitted).count();
    assert_eq!(admitted, PASSING);
    assert!(run.records.checks.len() > 3 * PASSING, "the others were denied");
    for (bucket, full) in [(user, 100), (key.as_str(), 50)] {
        let expected = (full - PASSING) as f64;
        eventually("what denied checks took is back", || (tokens(&cluster, bucket) == expected).then_some(()));
    }
    assert!(!run.logs.concat().contains("CROSSSLOT"));
}
