//! A Redis Cluster of three masters and three replicas, made by commands over connections.

use super::redis::{Server, free_port};
use super::{eventually, field, insist, told};
use std::time::Duration;

pub const MASTERS: usize = 3;
const SLOTS: u16 = 16384;
/// How long a node must be silent until the others take it for failing.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// What happens to all slots when some are served by nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Redis's default: the whole cluster refuses.
    Full,
    /// The other slots go on.
    Partial,
}

/// Nodes 0 to 2 start as masters of a third each, and node `n + 3` as the replica of node `n`.
pub struct Cluster {
    pub nodes: Vec<Server>,
    bus_ports: Vec<u16>,
}

impl Cluster {
    pub fn start(coverage: Coverage) -> Self {
        let (nodes, bus_ports) = (0..2 * MASTERS).map(|_| node(coverage)).unzip();
        let cluster = Self { nodes, bus_ports };
        cluster.give_slots();
        cluster.introduce();
        cluster.wait_until_ok(6);
        cluster.attach_replicas();
        cluster
    }

    fn give_slots(&self) {
        for place in 0..MASTERS {
            let (first, last) = share(place);
            let node = &self.nodes[place];
            let () = node.run(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        for (place, node) in self.nodes.iter().enumerate() {
            let () = node.run(&["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()]);
        }
    }

    fn introduce(&self) {
        for (node, bus) in self.nodes.iter().zip(&self.bus_ports).skip(1) {
            let (port, bus) = (node.port().to_string(), bus.to_string());
            let () = self.nodes[0].run(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
    }

    /// Waits until every living node knows so many nodes and finds the cluster whole.
    fn wait_until_ok(&self, known: usize) {
        for node in &self.nodes {
            eventually("the cluster is whole", || {
                let told: String = node.run(&["CLUSTER", "INFO"]);
                let ok = field(&told, "cluster_state").as_deref() == Some("ok");
                (ok && field(&told, "cluster_known_nodes") == Some(known.to_string())).then_some(())
            });
        }
    }

    fn attach_replicas(&self) {
        for place in 0..MASTERS {
            insist(&self.nodes[place + MASTERS], &["CLUSTER", "REPLICATE", &self.id(place)]);
        }
        for place in 0..MASTERS {
            self.wait_for_replica(place + MASTERS);
        }
        for node in &self.nodes {
            eventually("every node knows the replicas", || {
                let told: String = node.run(&["CLUSTER", "NODES"]);
                let replicas = told.lines().filter(|line| line.contains("slave") && line.contains(" connected"));
                (replicas.count() == MASTERS).then_some(())
            });
        }
    }

    pub fn id(&self, place: usize) -> String {
        self.nodes[place].run(&["CLUSTER", "MYID"])
    }

    /// For `redis.urls` in YAML.
    pub fn urls(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().map(|node| format!("'{}'", node.url())).collect();
        urls.join(", ")
    }

    /// Waits until a node is a replica in step with its master.
    pub fn wait_for_replica(&self, place: usize) {
        let node = &self.nodes[place];
        eventually("the replica is in step", || {
            (told(node, "replication", "master_link_status").as_deref() == Some("up")).then_some(())
        });
    }

    /// Waits until a node is a master.
    pub fn wait_for_master(&self, place: usize) {
        let node = &self.nodes[place];
        eventually("the replica is promoted", || {
            (told(node, "replication", "role").as_deref() == Some("master")).then_some(())
        });
    }

    /// Makes a replica take its master's place, without loss, and waits until it has.
    pub fn fail_over_to(&self, replica: usize) {
        insist(&self.nodes[replica], &["CLUSTER", "FAILOVER"]);
        self.wait_for_master(replica);
    }

    /// Moves a slot with its keys from one master to another, key by key as `redis-cli --cluster reshard` does, so
    /// that there is a time in which both have some of them.
    pub fn migrate(&self, slot: u16, from: usize, to: usize) {
        let (slot, from_id, to_id) = (slot.to_string(), self.id(from), self.id(to));
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        insist(target, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        insist(source, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
        let port = target.port().to_string();
        loop {
            let keys: Vec<String> = source.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]);
            let Some(key) = keys.first() else { break };
            let _: String = source.run(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        }
        for node in [target, source] {
            insist(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
        }
    }
}

/// The slots of a shard: first and last.
fn share(place: usize) -> (u16, u16) {
    let bound = |place: usize| u16::try_from(usize::from(SLOTS) * place / MASTERS).unwrap();
    (bound(place), bound(place + 1) - 1)
}

/// The slot of a key that holds no `{`.
pub fn slot(key: &str) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(key.as_bytes()) % SLOTS
}

/// Which of the first three nodes begins with a key's slot.
pub fn shard(key: &str) -> usize {
    (0..MASTERS).find(|place| (share(*place).0..=share(*place).1).contains(&slot(key))).unwrap()
}

fn node(coverage: Coverage) -> (Server, u16) {
    let bus = free_port();
    let full = if coverage == Coverage::Full { "yes" } else { "no" };
    let timeout = NODE_TIMEOUT.as_millis().to_string();
    let server = Server::start(&[
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus.to_string(),
        "--cluster-node-timeout",
        &timeout,
        "--cluster-require-full-coverage",
        full,
        "--cluster-replica-validity-factor",
        "0",
        "--repl-diskless-sync-delay",
        "0",
    ]);
    (server, bus)
}
