//! Three sentinels that watch a master and its replica, with passwords, as operators are told to run them.

use super::redis::Server;
use super::{eventually, told};
use redis::Commands as _;
use std::collections::BTreeMap;
use std::time::Duration;

/// Of master and replicas.
pub const PASSWORD: &str = "of-the-data";
/// Of the sentinels.
pub const SENTINEL_PASSWORD: &str = "of-the-sentinels";
pub const MASTER_NAME: &str = "mymaster";
/// How long a master must be silent until a sentinel takes it for down.
pub const DOWN_AFTER: Duration = Duration::from_secs(1);

/// The sentinels; `data` are the master, the replicas, in the order of their start.
pub struct Trio {
    pub data: Vec<Server>,
    pub sentinels: Vec<Server>,
}

impl Trio {
    /// A master and one replica, which all three sentinels know as well as each other.
    pub fn start() -> Self {
        Self::start_with(1, &[])
    }

    /// As [`Trio::start`], with more replicas or options for master and replicas.
    pub fn start_with(replicas: usize, options: &[&str]) -> Self {
        let common =
            [&["--requirepass", PASSWORD, "--masterauth", PASSWORD, "--repl-diskless-sync-delay", "0"], options];
        let common = common.concat();
        let master = Server::start(&common);
        let port = master.port().to_string();
        let replica = || Server::start(&[&common[..], &["--replicaof", "127.0.0.1", &port]].concat());
        let data: Vec<Server> = std::iter::once(master).chain((0..replicas).map(|_| replica())).collect();
        for replica in &data[1..] {
            eventually("the replica is in step", || is_in_step(replica).then_some(()));
        }
        let sentinels = (0..3).map(|_| sentinel(&port)).collect();
        let trio = Self { data, sentinels };
        trio.wait_until_acquainted(replicas);
        trio
    }

    /// Waits until every sentinel knows the others and the replicas, without which there is no failover.
    fn wait_until_acquainted(&self, replicas: usize) {
        for sentinel in &self.sentinels {
            eventually("the sentinels know each other and the replicas", || {
                let master: BTreeMap<String, String> = sentinel.run(&["SENTINEL", "MASTER", MASTER_NAME]);
                let known = master["num-other-sentinels"] == "2" && master["num-slaves"] == replicas.to_string();
                (known && self.replicas_are_sane(sentinel)).then_some(())
            });
        }
    }

    fn replicas_are_sane(&self, sentinel: &Server) -> bool {
        let replicas: Vec<BTreeMap<String, String>> = sentinel.run(&["SENTINEL", "REPLICAS", MASTER_NAME]);
        replicas.iter().all(|replica| replica["flags"] == "slave" && replica["master-link-status"] == "ok")
    }

    /// For `redis.urls` in YAML.
    pub fn urls(&self) -> String {
        let urls: Vec<String> = self.sentinels.iter().map(|sentinel| format!("'{}'", sentinel.url())).collect();
        urls.join(", ")
    }

    /// The environment in which tidegate knows both passwords.
    pub fn environment() -> [(&'static str, &'static str); 2] {
        [("TIDEGATE_REDIS_PASSWORD", PASSWORD), ("TIDEGATE_REDIS_SENTINEL_PASSWORD", SENTINEL_PASSWORD)]
    }

    /// Which of `data` most of the sentinels that answer take for the master.
    pub fn master(&self) -> usize {
        let mut votes = vec![0; self.data.len()];
        for sentinel in &self.sentinels {
            if let Some(place) = self.place(&address(sentinel)) {
                votes[place] += 1;
            }
        }
        (0..votes.len()).max_by_key(|place| votes[*place]).unwrap()
    }

    fn place(&self, (_, port): &(String, u16)) -> Option<usize> {
        self.data.iter().position(|server| server.port() == *port)
    }

    /// Asks for a failover and waits until all sentinels tell of another master. Gives the new master.
    pub fn fail_over(&self) -> usize {
        let old = self.master();
        eventually("a failover may begin", || {
            let asked: Result<(), _> =
                redis::cmd("SENTINEL").arg(&["FAILOVER", MASTER_NAME]).query(&mut self.sentinels[0].connection());
            asked.ok()
        });
        self.wait_for_another(old)
    }

    /// Waits until the sentinels tell of a master other than this.
    pub fn wait_for_another(&self, old: usize) -> usize {
        eventually("the sentinels tell of another master", || {
            let told: Vec<_> = self.sentinels.iter().map(|sentinel| self.place(&address(sentinel))).collect();
            told[0].filter(|new| *new != old && told.iter().all(|other| *other == Some(*new)))
        })
    }

    /// Waits until one of the sentinels tells of a master other than this.
    pub fn wait_for_news(&self, old: usize) {
        eventually("a sentinel tells of another master", || {
            let mut told = self.sentinels.iter().filter_map(|sentinel| self.place(&address(sentinel)));
            told.any(|new| new != old).then_some(())
        });
    }

    /// Waits until a server is a replica in step with its master.
    pub fn wait_for_replica(&self, place: usize) {
        eventually("the old master is a replica in step", || is_in_step(&self.data[place]).then_some(()));
    }

    /// Waits until a failover may follow another one: every replica is in step and known as such.
    pub fn wait_until_calm(&self) {
        let master = self.master();
        for place in (0..self.data.len()).filter(|place| *place != master) {
            self.wait_for_replica(place);
        }
        for sentinel in &self.sentinels {
            eventually("the sentinels take the replicas for sane", || self.replicas_are_sane(sentinel).then_some(()));
        }
    }
}

fn is_in_step(server: &Server) -> bool {
    told(server, "replication", "master_link_status").as_deref() == Some("up")
        && told(server, "replication", "master_sync_in_progress").as_deref() == Some("0")
}

fn address(sentinel: &Server) -> (String, u16) {
    sentinel.run(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME])
}

fn sentinel(master_port: &str) -> Server {
    let config = format!(
        "sentinel monitor {MASTER_NAME} 127.0.0.1 {master_port} 2\n\
         sentinel auth-pass {MASTER_NAME} {PASSWORD}\n\
         sentinel sentinel-pass {SENTINEL_PASSWORD}\n\
         sentinel down-after-milliseconds {MASTER_NAME} {}\n\
         sentinel failover-timeout {MASTER_NAME} 3000\n",
        DOWN_AFTER.as_millis()
    );
    let sentinel = Server::start(&[&config, "--sentinel", "--requirepass", SENTINEL_PASSWORD]);
    // Acquaintance is made by messages every two seconds; how often they go out changes nothing in a failover.
    let mut connection = sentinel.connection();
    let faster = redis::cmd("SENTINEL").arg(&["DEBUG", "PUBLISH-PERIOD", "100", "INFO-PERIOD", "1000"]).clone();
    let () = faster.query(&mut connection).unwrap();
    let _: String = connection.ping().unwrap();
    sentinel
}
