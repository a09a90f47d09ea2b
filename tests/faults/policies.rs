//! What callers are told during an outage is what the operator chose.

use crate::support::load::{Check, Outcome, users};
use crate::support::redis::Server;
use crate::support::service::check;
use crate::support::trial::{Quota, SLACK, Setup, Trial, Window, excess};
use std::time::Duration;

const TOPOLOGY: &str = "standalone";

#[test]
#[ignore = "minutes: make test-faults"]
fn in_one_outage_each_tier_follows_its_own_policy() {
    let mut server = Server::start(&[]);
    const QUOTA: Quota = Quota { max_tokens: 1000.0, refill_rate: 1000.0 };
    let quota = "per_user: {max_tokens: 1000, refill_rate: 1000}";
    let more =
        format!("tiers: {{free: {{on_store_error: deny, {quota}}}, enterprise: {{on_store_error: allow, {quota}}}}}\n");
    let callers = vec![
        check(&[("x-user", "user-0"), ("x-tier", "free")]),
        check(&[("x-user", "user-1"), ("x-tier", "enterprise")]),
    ];
    let trial = Trial::start(Setup { more, callers, quota: QUOTA, ..Setup::standalone(&server.url()) });
    let injected = trial.now();
    server.crash();
    trial.hold(Duration::from_secs(1));
    server.restart();
    let window = Window { injected, cleared: trial.now() };
    trial.until_recovered();
    let run = trial.end();
    run.assert_answered();
    run.assert_errors_within(window, SLACK);
    for (caller, outcome, name) in [
        (0, Outcome::Unavailable, "killed: a tier that says deny"),
        (1, Outcome::Degraded, "killed: a tier that says allow"),
    ] {
        let of_tier = run.only(|check| check.caller == caller);
        of_tier.row(name, TOPOLOGY, window).publish();
        assert!(of_tier.errors().count() > 0);
        assert!(of_tier.errors().all(|check| check.outcome == outcome), "{outcome:?}");
    }
}

#[test]
#[ignore = "minutes: make test-faults"]
fn local_buckets_of_two_replicas_admit_no_more_than_the_limit_between_them() {
    let mut server = Server::start(&[]);
    let setup = Setup {
        more: "replicas_hint: 2\n".into(),
        on_store_error: "local",
        processes: 2,
        callers: users(8),
        ..Setup::standalone(&server.url())
    };
    let trial = Trial::start(setup);
    let injected = trial.now();
    server.crash();
    trial.hold(Duration::from_secs(3));
    server.restart();
    let window = Window { injected, cleared: trial.now() };
    trial.until_recovered();
    let run = trial.end();
    run.row("killed, on_store_error: local, 2 replicas", TOPOLOGY, window).publish();
    run.assert_answered();
    let local = |check: &&Check| check.outcome == Outcome::Degraded;
    assert!(run.records.checks.iter().any(|check| local(&check)), "the outage was not felt");
    let unavailable = run.errors().filter(|check| check.outcome == Outcome::Unavailable).count();
    assert_eq!(unavailable, 0, "local decides every check");
    for caller in 0..8 {
        let of_caller = run.records.checks.iter().filter(|check| check.caller == caller).filter(local);
        let spans: Vec<_> = of_caller.map(|check| (check.sent, check.answered)).collect();
        assert_eq!(excess(&spans, run.quota), 0.0, "user-{caller}: {} in the outage", spans.len());
    }
}
