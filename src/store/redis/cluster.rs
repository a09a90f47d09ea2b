//! A Redis Cluster: which server holds which slot, kept true.
//!
//! Each server has its own connections, deadline and breaker ([`Node`]), so that a dead or hung one costs only the keys
//! that it holds. The map of slots is read anew now and then, and at once when a server redirects, refuses, fails or
//! hangs: a hung master is left as soon as the others have elected its successor. Takes requests with their slot and
//! gives replies; knows no buckets.

use super::connect::Dial;
use super::fault::Failure;
use super::node::{CallLimits, Manner, Node, Request};
use super::script::{Probe, SLOTS};
use super::url::Address;
use super::{SEARCH, jittered};
use crate::complaint::Complaint;
use crate::store::StoreError;
use deadpool_redis::redis::{self, ErrorKind, ServerErrorKind, Value};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// How often the map is read while nothing is wrong.
const USUAL: Duration = Duration::from_secs(10);
/// How often it is read at most, and while something is wrong.
const SOONEST: Duration = Duration::from_millis(100);
/// How long a server may take to tell its map.
const PATIENCE: Duration = Duration::from_millis(250);
/// Servers asked for their map at once: enough to hear of a failover that some have not heard of.
const ASKED: usize = 5;
/// Redirects that one call follows: from the former server of a slot to the present one, and on while it moves.
const REDIRECTS: usize = 3;

/// No server.
const NOBODY: u16 = u16::MAX;

/// Which server holds which slot.
#[derive(Debug)]
struct Slots {
    /// For each slot the index of its master in `masters`, or [`NOBODY`].
    owners: Vec<u16>,
    masters: Vec<Arc<Node>>,
}

impl Slots {
    fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        self.masters.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    /// Whether the same servers, over the same connections, hold the same slots.
    fn equals(&self, other: &Self) -> bool {
        let same = |(mine, theirs): (&Arc<Node>, &Arc<Node>)| Arc::ptr_eq(mine, theirs);
        self.owners == other.owners
            && self.masters.len() == other.masters.len()
            && self.masters.iter().zip(&other.masters).all(same)
    }
}

/// What one server says: the slots with their masters, all servers, and how new that is.
#[derive(Debug, Default, PartialEq, Eq)]
struct View {
    epoch: u64,
    ranges: Vec<(u16, u16, Address)>,
    replicas: Vec<Address>,
}

/// The servers of a Cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    map: watch::Receiver<Option<Arc<Slots>>>,
    known: Arc<Known>,
    search_until: Instant,
    /// Ended with this.
    _tasks: JoinSet<()>,
}

/// What the calls and the task that reads the map share.
#[derive(Debug)]
struct Known {
    seeds: Vec<Dial>,
    limits: CallLimits,
    probe: Probe,
    key_prefix: String,
    /// All servers by their address, replicas included: connections outlive changes of the map.
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    /// Asks for the map to be read at once.
    doubt: Notify,
    why_unknown: Mutex<String>,
}

impl Known {
    /// The server at an address.
    fn node(&self, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(address) {
            return node.clone();
        }
        let dial = self.first().at(address);
        let node = Node::new(dial, self.limits, self.probe.clone());
        nodes.insert(address.clone(), node.clone());
        node
    }

    /// The addresses that the configuration names.
    fn seeds(&self) -> impl Iterator<Item = Address> {
        self.seeds.iter().filter_map(|seed| seed.url.address())
    }

    /// All servers are signed in to as the first seed is.
    fn first(&self) -> &Dial {
        self.seeds.first().expect("the configuration names at least one node")
    }
}

impl Cluster {
    /// Starts to follow the Cluster of which `seeds`, at least one, are servers.
    pub(super) fn follow(seeds: Vec<Dial>, limits: CallLimits, probe: Probe, key_prefix: String) -> Self {
        let (found, map) = watch::channel(None);
        let known = Arc::new(Known {
            seeds,
            limits,
            probe,
            key_prefix,
            nodes: Mutex::default(),
            doubt: Notify::new(),
            why_unknown: Mutex::new("none has answered yet".to_owned()),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(keep_map(known.clone(), found));
        let search_until = Instant::now() + SEARCH.max(limits.timeout);
        Self { map, known, search_until, _tasks: tasks }
    }

    /// The masters that hold slots.
    pub(super) async fn masters(&self, deadline: Instant) -> Result<Vec<Arc<Node>>, StoreError> {
        Ok(self.slots(deadline).await?.masters.clone())
    }

    /// The same, as far as known.
    pub(super) fn known_masters(&self) -> Vec<Arc<Node>> {
        self.map.borrow().as_ref().map(|slots| slots.masters.clone()).unwrap_or_default()
    }

    /// Soon after the start, calls wait for the map until their deadline.
    async fn slots(&self, deadline: Instant) -> Result<Arc<Slots>, StoreError> {
        if let Some(slots) = &*self.map.borrow() {
            return Ok(slots.clone());
        }
        let mut map = self.map.clone();
        let found = tokio::time::timeout_at(deadline.min(self.search_until), map.wait_for(Option::is_some)).await;
        let found = found.ok().and_then(Result::ok).and_then(|slots| slots.clone());
        found.ok_or_else(|| {
            StoreError::Connection(format!("no node tells the cluster's slots: {}", self.known.why_unknown.lock()))
        })
    }

    /// Asks the server that holds `slot`, and follows it when the slot has moved.
    pub(super) async fn call(&self, slot: u16, request: Request<'_>, deadline: Instant) -> Result<Value, StoreError> {
        let slots = self.slots(deadline).await?;
        let Some(mut node) = slots.owner(slot).cloned() else {
            self.known.doubt.notify_one();
            return Err(StoreError::ClusterDown(format!("no node serves slot {slot}")));
        };
        let mut manner = Manner::Plain;
        let mut followed = 0;
        loop {
            let failure = match node.call(request, manner, deadline).await {
                Err(failure) => failure,
                Ok(reply) => return Ok(reply),
            };
            let redirect = redirect(&failure, &node).filter(|_| followed < REDIRECTS);
            let asks_anew = redirect.as_ref().is_some_and(|(_, manner)| *manner == Manner::Plain);
            if asks_anew || failure.doubts_slots() {
                self.known.doubt.notify_one();
            }
            let Some((address, asked)) = redirect else { return Err(node.told(&failure)) };
            (node, manner) = (self.known.node(&address), asked);
            followed += 1;
        }
    }

    /// Asks every master to take nothing from a bucket of its own; one that can is enough.
    pub(super) async fn probe(&self, deadline: Instant) -> Result<(), StoreError> {
        let masters = self.masters(deadline).await?;
        let probes = masters.iter().map(|node| async move { (node, node.probe().await) });
        let mut outcome = Err(StoreError::ClusterDown("it has no masters".to_owned()));
        for (node, probed) in futures_util::future::join_all(probes).await {
            let elsewhere = |failure: &Failure| failure.doubts_slots() || redirect(failure, node).is_some();
            if probed.as_ref().is_err_and(elsewhere) {
                self.known.doubt.notify_one();
            }
            if outcome.is_err() {
                outcome = probed.map_err(|failure| node.told(&failure));
            }
        }
        outcome
    }
}

/// Where a reply sends its caller, and how to ask there.
fn redirect(failure: &Failure, asked: &Node) -> Option<(Address, Manner)> {
    let Failure::Redis(error) = failure else { return None };
    let (address, _) = error.redirect_node()?;
    let manner = match error.kind() {
        ErrorKind::Server(ServerErrorKind::Ask) => Manner::Asking,
        _ => Manner::Plain,
    };
    let (host, port) = address.rsplit_once(':')?;
    // Without a host it is the one that was asked.
    let host = if host.is_empty() { asked.url().host()? } else { host };
    Some((Address { host: host.to_owned(), port: port.parse().ok()? }, manner))
}

/// Reads the map again and again.
async fn keep_map(known: Arc<Known>, found: watch::Sender<Option<Arc<Slots>>>) {
    let (complaint, changes) = (Complaint::default(), Complaint::default());
    // A cluster whose slots are moved has another map with each of them.
    let mut unsaid = false;
    loop {
        match read_map(&known).await {
            Ok(slots) => {
                let same = found.borrow().as_ref().is_some_and(|before| before.equals(&slots));
                let unserved = slots.owners.iter().filter(|owner| **owner == NOBODY).count();
                let masters = slots.masters.len();
                let line = |more: u64| {
                    tracing::info!(masters, unserved, more, "the cluster's slots are known anew");
                };
                if !same {
                    unsaid = !changes.say(line);
                    found.send_replace(Some(Arc::new(slots)));
                } else if unsaid {
                    unsaid = !changes.say_late(line);
                }
                sleep(SOONEST).await;
                // Either way it is time to read.
                let _ = tokio::time::timeout(jittered(USUAL), known.doubt.notified()).await;
            }
            Err(why) => {
                complaint.say(|more| tracing::warn!(why, more, "no node tells the cluster's slots"));
                *known.why_unknown.lock() = why;
                sleep(PATIENCE).await;
            }
        }
    }
}

/// The newest view of several servers.
async fn read_map(known: &Known) -> Result<Slots, String> {
    let mut addresses: Vec<Address> = known.nodes.lock().keys().cloned().collect();
    addresses.extend(known.seeds());
    addresses.sort_unstable();
    addresses.dedup();
    fastrand::shuffle(&mut addresses);
    let views = addresses.iter().take(ASKED).map(|address| async move { view(&known.node(address)).await });
    let mut newest: Result<View, String> = Err("no node is known".to_owned());
    for view in futures_util::future::join_all(views).await {
        newest = match (newest, view) {
            (Ok(newest), Ok(view)) if view.epoch <= newest.epoch => Ok(newest),
            (Ok(newest), Err(_)) => Ok(newest),
            (_, view) => view,
        };
    }
    Ok(adopt(known, &newest?))
}

/// Makes the map of a view, and forgets the servers that neither it nor the configuration names.
fn adopt(known: &Known, view: &View) -> Slots {
    let mut slots = Slots { owners: vec![NOBODY; usize::from(SLOTS)], masters: Vec::new() };
    let mut addresses: Vec<&Address> = Vec::new();
    for (from, to, address) in &view.ranges {
        let index = addresses.iter().position(|other| *other == address).unwrap_or_else(|| {
            addresses.push(address);
            slots.masters.push(known.node(address));
            addresses.len() - 1
        });
        let index = u16::try_from(index).unwrap_or(NOBODY);
        slots.owners[usize::from(*from)..=usize::from(*to)].fill(index);
    }
    for (index, master) in slots.masters.iter().enumerate() {
        master.probe_in_slot(&known.key_prefix, |slot| usize::from(slots.owners[usize::from(slot)]) == index);
    }
    view.replicas.iter().for_each(|address| drop(known.node(address)));
    let seeds: Vec<Address> = known.seeds().collect();
    let named =
        |address: &Address| addresses.contains(&address) || view.replicas.contains(address) || seeds.contains(address);
    known.nodes.lock().retain(|address, _| named(address));
    slots
}

/// Asks one server for its view.
async fn view(node: &Arc<Node>) -> Result<View, String> {
    let deadline = Instant::now() + PATIENCE;
    let ask = async |about| {
        let mut command = redis::cmd("CLUSTER");
        node.attempt(Request::Command(command.arg(about)), Manner::Plain, deadline).await
    };
    let slots = ask("SLOTS").await.map_err(|failure| failure.told(node.url(), PATIENCE).to_string())?;
    let mut view = read_slots(&slots, node.url().host().unwrap_or_default());
    if view.ranges.is_empty() {
        return Err(format!("{} knows of no slots", node.url()));
    }
    // A user who may not ask for it is none the worse while the servers agree.
    view.epoch = ask("INFO").await.ok().and_then(|info| epoch(&info)).unwrap_or_default();
    Ok(view)
}

/// Reads the reply to CLUSTER SLOTS: `[from, to, [host, port, …] of the master, […] of replicas]` for each range.
fn read_slots(reply: &Value, asked: &str) -> View {
    let mut view = View::default();
    let Value::Array(ranges) = reply else { return view };
    for range in ranges {
        let Value::Array(parts) = range else { continue };
        let [Value::Int(from), Value::Int(to), master, replicas @ ..] = parts.as_slice() else { continue };
        let (Ok(from), Ok(to)) = (u16::try_from(*from), u16::try_from(*to)) else { continue };
        let sound = from <= to && to < SLOTS;
        let Some(master) = read_address(master, asked).filter(|_| sound) else { continue };
        view.ranges.push((from, to, master));
        view.replicas.extend(replicas.iter().filter_map(|replica| read_address(replica, asked)));
    }
    view.replicas.sort_unstable();
    view.replicas.dedup();
    view
}

fn read_address(node: &Value, asked: &str) -> Option<Address> {
    let Value::Array(parts) = node else { return None };
    let [host, Value::Int(port), ..] = parts.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        // The server does not know by which address it is reached: it is the one that was used.
        Value::Nil => "",
        _ => return None,
    };
    let host = if host.is_empty() { asked } else { host };
    (host != "?").then_some(Address { host: host.to_owned(), port: u16::try_from(*port).ok()? })
}

/// Reads `cluster_current_epoch` in the reply to CLUSTER INFO.
fn epoch(reply: &Value) -> Option<u64> {
    let text = match reply {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::VerbatimString { text, .. } => text,
        _ => return None,
    };
    text.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::connect::{Access, Role};
    use super::super::url::RedisUrl;
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), bulk("id"), Value::Array(Vec::new())])
    }

    #[test]
    fn the_map_names_masters_and_replicas_and_what_makes_no_sense_is_left_out() {
        let range =
            |from, to, nodes: Vec<Value>| Value::Array([vec![Value::Int(from), Value::Int(to)], nodes].concat());
        let reply = Value::Array(vec![
            range(0, 99, vec![node(bulk("10.0.0.1"), 7000), node(bulk("10.0.0.2"), 7001)]),
            range(100, 16_383, vec![node(Value::Nil, 7002), node(bulk("?"), 7003)]),
            range(5, 1, vec![node(bulk("10.0.0.9"), 1)]),
            range(0, 16_384, vec![node(bulk("10.0.0.9"), 1)]),
            range(0, 1, vec![node(bulk("?"), 1)]),
            Value::Nil,
        ]);
        let address = |host: &str, port| Address { host: host.to_owned(), port };
        let view = read_slots(&reply, "asked");
        assert_eq!(view.ranges, [(0, 99, address("10.0.0.1", 7000)), (100, 16_383, address("asked", 7002))]);
        assert_eq!(view.replicas, [address("10.0.0.2", 7001)]);
        assert_eq!(read_slots(&Value::Nil, "asked"), View::default());
    }

    #[test]
    fn the_epoch_is_read() {
        assert_eq!(epoch(&bulk("cluster_state:ok\r\ncluster_current_epoch:7\r\ncluster_my_epoch:2\r\n")), Some(7));
        assert_eq!(epoch(&Value::Nil), None);
    }

    #[test]
    fn every_master_is_probed_in_a_slot_that_it_has_now() {
        let address = |port| Address { host: "10.0.0.1".to_owned(), port };
        let seeds = [7000, 7001].map(|port| {
            let url: RedisUrl = format!("redis://10.0.0.1:{port}").parse().expect("it is a URL");
            Dial { access: Access::of(&url), url, client_name: "test".into(), role: Role::Any }
        });
        let known = Known {
            seeds: seeds.into(),
            limits: CallLimits::default(),
            probe: Probe::new("rl:"),
            key_prefix: "rl:".to_owned(),
            nodes: Mutex::default(),
            doubt: Notify::new(),
            why_unknown: Mutex::default(),
        };
        // As the seeds are when they are asked for the map.
        [7000, 7001].iter().for_each(|port| drop(known.node(&address(*port))));
        let halves = |first, second| View {
            ranges: vec![(0, 8191, address(first)), (8192, SLOTS - 1, address(second))],
            replicas: vec![address(7002)],
            ..View::default()
        };
        for (first, second) in [(7000, 7001), (7001, 7000), (7002, 7000)] {
            let slots = adopt(&known, &halves(first, second));
            for master in &slots.masters {
                let owner = slots.owner(master.probe_slot()).expect("all slots have one");
                assert!(Arc::ptr_eq(owner, master), "{} is probed in another's slot", master.url());
            }
        }
        let view = View { ranges: vec![(0, SLOTS - 1, address(7003))], ..View::default() };
        adopt(&known, &view);
        let mut ports: Vec<u16> = known.nodes.lock().keys().map(|address| address.port).collect();
        ports.sort_unstable();
        assert_eq!(ports, [7000, 7001, 7003], "seeds stay, what nobody names goes");
    }
}
