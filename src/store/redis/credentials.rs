//! How servers are signed in to, in one place for all stores that go to them.

use super::connect::Access;
use super::{RedisUrl, Topology};

/// With what the servers of a topology are signed in to. A clone is the same, so that a change reaches every store that
/// was made with one.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// For those that hold buckets.
    pub(super) servers: Access,
    /// In the order in which they are configured.
    pub(super) sentinels: Vec<Access>,
}

impl Credentials {
    /// As this topology says.
    ///
    /// # Panics
    /// Of a cluster without nodes, which `config` lets nobody configure.
    pub fn of(topology: &Topology) -> Self {
        let (first, sentinels) = stated(topology);
        let servers = Access::of(first.expect("a cluster is configured with at least one node"));
        Self { servers, sentinels: sentinels.iter().map(Access::of).collect() }
    }

    /// Has connections that are made from now on signed in as `topology` says: with its user, its passwords and its
    /// certificates. Nothing else of it is followed, and connections that stand go on.
    pub fn change(&self, topology: &Topology) {
        let (servers, sentinels) = stated(topology);
        if let Some(url) = servers {
            self.servers.change(url);
        }
        for (access, url) in self.sentinels.iter().zip(sentinels) {
            access.change(url);
        }
    }
}

/// How those that hold buckets, and the sentinels, are signed in to.
fn stated(topology: &Topology) -> (Option<&RedisUrl>, &[RedisUrl]) {
    match topology {
        Topology::Standalone(url) => (Some(url), &[]),
        Topology::Sentinel { sentinels, access, .. } => (Some(access), sentinels),
        Topology::Cluster(urls) => (urls.first(), &[]),
    }
}
