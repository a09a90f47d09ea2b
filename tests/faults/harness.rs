//! The sentinels and the cluster that the scenarios are run on do what they are for, seen by a plain client.

use crate::support::cluster::{Cluster, Coverage, shard, slot};
use crate::support::sentinel::Trio;
use crate::support::told;

#[test]
fn sentinels_fail_over_on_request_and_after_a_crash() {
    let mut trio = Trio::start();
    let old = trio.master();
    let new = trio.fail_over();
    assert_ne!(old, new);
    trio.wait_for_replica(old);
    trio.wait_until_calm();
    trio.data[new].crash();
    assert_eq!(trio.wait_for_another(new), old);
    trio.data[new].restart();
    trio.wait_for_replica(new);
}

#[test]
fn a_cluster_serves_fails_over_and_moves_slots() {
    let mut cluster = Cluster::start(Coverage::Full);
    let key = "rl:user:user-0";
    let home = shard(key);
    let () = cluster.nodes[home].run(&["HSET", key, "tokens", "1"]);
    cluster.fail_over_to(home + 3);
    assert_eq!(told(&cluster.nodes[home + 3], "replication", "role").as_deref(), Some("master"));
    let other = (home + 1) % 3;
    cluster.migrate(slot(key), home + 3, other);
    assert_eq!(cluster.nodes[other].run::<i64>(&["EXISTS", key]), 1);
    let third = (home + 2) % 3;
    cluster.nodes[third].crash();
    cluster.wait_for_master(third + 3);
}
