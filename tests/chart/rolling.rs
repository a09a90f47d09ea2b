//! A rolling restart, as a Deployment does it, behind an Envoy that checks health as our EnvoyFilter has it.

use crate::mesh::{Gateway, base, filter_of};
use crate::support::client::Caller;
use crate::support::redis::free_port;
use crate::support::service::Tidegate;
use crate::support::{config_of, eventually, rendered, yaml};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many requests there are at least.
const REQUESTS: u64 = 5_000;

/// As rendered, but for limits that nobody reaches.
fn values() -> Value {
    let mut values = yaml("helm/tidegate/ci/istio-envoyfilter-values.yaml");
    values.as_object_mut().unwrap().remove("redis");
    values["replicaCount"] = json!(1);
    // Whatever goes wrong is to be seen.
    values["istio"]["envoyFilter"]["failureModeAllow"] = json!(false);
    let quota = json!({"max_tokens": 1_000_000_000, "refill_rate": 1_000_000});
    values["config"]["tiers"] = json!({"free": {"per_user": quota, "per_ip": quota}});
    values
}

/// How many requests were answered with each status.
#[derive(Default)]
struct Load {
    over: AtomicBool,
    sent: AtomicU64,
}

impl Load {
    /// Sends until it is over.
    fn run(&self, gateway: &Gateway) -> BTreeMap<String, u64> {
        let caller = Caller::new(gateway.edge);
        let mut statuses = BTreeMap::new();
        while !self.over.load(Ordering::Relaxed) {
            let answer = caller.try_send(http::Method::GET, "/", &[]);
            let outcome = answer.map_or_else(|error| error, |answer| answer.status.to_string());
            *statuses.entry(outcome).or_default() += 1;
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
        statuses
    }

    fn wait_for(&self, more: u64) {
        let goal = self.sent.load(Ordering::Relaxed) + more;
        eventually("the load goes on", || (self.sent.load(Ordering::Relaxed) >= goal).then_some(()));
    }
}

/// Ends a replica as the kubelet does, within the pod's time, and starts it anew at the same place.
fn replace(replica: &mut Tidegate, listen: &str, config: &str, grace: Duration) {
    let begun = Instant::now();
    replica.signal("TERM");
    assert_eq!(replica.wait(), Some(0), "{}", replica.log());
    assert!(begun.elapsed() < grace, "killed before it ended: {:?}", begun.elapsed());
    *replica = Tidegate::start_on(listen, config, &[]);
}

#[test]
fn no_request_fails_while_two_replicas_are_replaced_one_after_the_other() {
    let resources = rendered(&values());
    let config = config_of(&resources);
    let pod = &crate::support::resource(&resources, "Deployment", "t-tidegate")["spec"]["template"]["spec"];
    let grace = Duration::from_secs(pod["terminationGracePeriodSeconds"].as_u64().unwrap());

    let listens = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let mut replicas = listens.each_ref().map(|listen| Tidegate::start_on(listen, &config, &[]));
    let mut envoy = base();
    filter_of(&resources, &mut envoy, &replicas.each_ref().map(|replica| replica.address));
    let gateway = Gateway::start(&envoy);

    let load = Load::default();
    let statuses = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..2).map(|_| scope.spawn(|| load.run(&gateway))).collect();
        load.wait_for(REQUESTS / 5);
        for (replica, listen) in replicas.iter_mut().zip(&listens) {
            replace(replica, listen, &config, grace);
            // A Deployment goes on when the new pod is ready; Envoy then has found it too.
            gateway.wait_until_all_are_well();
            load.wait_for(REQUESTS / 5);
        }
        eventually("there were enough requests", || (load.sent.load(Ordering::Relaxed) >= REQUESTS).then_some(()));
        load.over.store(true, Ordering::Relaxed);
        callers.into_iter().map(|caller| caller.join().unwrap()).collect::<Vec<_>>()
    });
    let failed: Vec<_> = statuses.iter().flatten().filter(|(status, _)| *status != "200").collect();
    assert!(failed.is_empty(), "{failed:?} of {statuses:?}");
}
