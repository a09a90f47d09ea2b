//! The figures that the project promises of long runs.

use crate::bench_load::{Load as Flood, Shape};
use crate::http2::framed;
use crate::support::load::users;
use crate::support::redis::Server;
use crate::support::report::note;
use crate::support::sentinel::Trio;
use crate::support::service::{Tidegate, check};
use crate::support::trial::{Quota, Setup, Trial, excess};
use crate::support::{PATIENCE, scripts_run};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate::ext_authz::proto::CheckRequest;
use tidegate::ext_authz::proto::authorization_client::AuthorizationClient;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().unwrap()
}

async fn connect(process: &Tidegate) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", process.address)).unwrap();
    endpoint.tcp_nodelay(true).connect().await.unwrap()
}

/// What a closed loop of many clients has seen.
#[derive(Default)]
struct Tally {
    sent: AtomicUsize,
    denied: AtomicUsize,
    unavailable: AtomicUsize,
    /// When the admitted checks of each bucket were sent and answered.
    admitted: Mutex<Vec<Vec<(Duration, Duration)>>>,
}

const BUCKETS: usize = 50;
const CHECKS: usize = 1_000_000;
const PROCESSES: usize = 4;
const CLIENTS_OF_EACH: usize = 16;
/// After which shares of all checks there is a failover.
const FAILOVERS: [f64; 2] = [0.3, 0.6];
/// From the promotion of a replica until the old master is left.
const LAST_INSTANTS: Duration = Duration::from_millis(100);

/// Sends until so many checks were sent, each client its next when the last was answered.
async fn closed_loop(fleet: &[Tidegate], tally: Arc<Tally>) {
    let mut clients = JoinSet::new();
    let start = Instant::now();
    for process in fleet {
        let channel = connect(process).await;
        for _ in 0..CLIENTS_OF_EACH {
            let (mut client, tally, callers) =
                (AuthorizationClient::new(channel.clone()), tally.clone(), users(BUCKETS));
            clients.spawn(async move {
                loop {
                    let turn = tally.sent.fetch_add(1, Ordering::Relaxed);
                    if turn >= CHECKS {
                        return;
                    }
                    let caller = turn % BUCKETS;
                    let sent = start.elapsed();
                    let answer = client.check(callers[caller].clone()).await.unwrap().into_inner();
                    match answer.status.unwrap().code {
                        0 => tally.admitted.lock().unwrap()[caller].push((sent, start.elapsed())),
                        8 => _ = tally.denied.fetch_add(1, Ordering::Relaxed),
                        14 => _ = tally.unavailable.fetch_add(1, Ordering::Relaxed),
                        other => panic!("neither admitted nor denied nor unavailable: {other}"),
                    }
                }
            });
        }
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
}

/// Waits until a share of all checks was sent.
fn until_sent(tally: &Tally, share: f64) {
    let (mut last, mut since) = (0, Instant::now());
    loop {
        let sent = tally.sent.load(Ordering::Relaxed);
        if sent as f64 >= share * CHECKS as f64 {
            return;
        }
        if sent > last {
            (last, since) = (sent, Instant::now());
        }
        assert!(since.elapsed() < PATIENCE, "the load stands still at {sent}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Flushes the scripts of every server once a second until told to stop.
fn flush_scripts(trio: &Trio, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for server in &trio.data {
            let () = server.run(&["SCRIPT", "FLUSH"]);
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
#[ignore = "minutes: make test-faults"]
fn a_million_checks_by_four_processes_admit_what_the_buckets_hold_and_no_more_than_two_failovers_forget() {
    let quota = Quota { max_tokens: 100.0, refill_rate: 20.0 };
    let trio = Trio::start();
    let setup = Setup { quota, ..Setup::sentinel(&trio.urls()) };
    let config = setup.with_redis();
    let fleet: Vec<Tidegate> = (0..PROCESSES).map(|_| Tidegate::start_with(&config, &setup.environment)).collect();
    let tally = Arc::new(Tally { admitted: Mutex::new(vec![Vec::new(); BUCKETS]), ..Tally::default() });
    let (begun, stop) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| flush_scripts(&trio, &stop));
        let load = scope.spawn(|| runtime().block_on(closed_loop(&fleet, tally.clone())));
        for share in FAILOVERS {
            until_sent(&tally, share);
            trio.fail_over();
            trio.wait_until_calm();
        }
        load.join().unwrap();
        stop.store(true, Ordering::Relaxed);
    });
    let admitted = tally.admitted.lock().unwrap();
    let worst = admitted.iter().map(|spans| excess(spans, quota)).fold(0.0, f64::max);
    note(format!(
        "{CHECKS} checks by {PROCESSES} processes on {BUCKETS} buckets in {:.0} s, SCRIPT FLUSH each second, two \
         SENTINEL FAILOVER: {} admitted, {} denied, {} answered by policy; the bucket \
         that gave most beyond its limit gave {worst} beyond it.",
        begun.elapsed().as_secs_f64(),
        admitted.iter().map(Vec::len).sum::<usize>(),
        tally.denied.load(Ordering::Relaxed),
        tally.unavailable.load(Ordering::Relaxed),
    ));
    // Replication is asynchronous: what the old master gave in the last instants the new one gives again.
    let forgotten = FAILOVERS.len() as f64 * (1.0 + quota.refill_rate * LAST_INSTANTS.as_secs_f64());
    assert!(worst <= forgotten, "{worst} admitted beyond max_tokens + refill_rate * t");
}

/// A denial's Retry-After, and when it came; nothing where a busy machine let the call to Redis take too long.
async fn retry_after(client: &mut AuthorizationClient<Channel>, request: &CheckRequest) -> Option<(Instant, u64)> {
    let answer = client.check(request.clone()).await.unwrap().into_inner();
    let at = Instant::now();
    let (_, seconds) = crate::support::load::understand(Ok(answer));
    seconds.map(|seconds| (at, seconds))
}

#[test]
#[ignore = "minutes: make test-faults"]
fn a_client_that_does_not_stop_asking_costs_redis_next_to_nothing_and_is_told_the_time_that_is_left() {
    const LENGTH: Duration = Duration::from_secs(10);
    let server = Server::start(&[]);
    let quota = Quota { max_tokens: 5.0, refill_rate: 0.02 };
    let setup = Setup { quota, ..Setup::standalone(&server.url()) };
    let process = Tidegate::start(&setup.with_redis());
    let caller = check(&[("x-user", "user-0")]);
    let runtime = runtime();
    let mut client = AuthorizationClient::new(runtime.block_on(connect(&process)));
    runtime.block_on(async {
        while client.check(caller.clone()).await.unwrap().into_inner().status.unwrap().code == 0 {}
    });
    let before = scripts_run(&server);
    let requests = [framed(&caller)];
    let flood =
        Flood { address: process.address, requests: &requests, shape: Shape::Closed { connections: 2, streams: 64 } };
    let (outcome, told) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood.run(LENGTH));
        let mut told = Vec::new();
        while !flood.is_finished() {
            told.extend(runtime.block_on(retry_after(&mut client, &caller)));
            std::thread::sleep(Duration::from_millis(250));
        }
        (flood.join().unwrap(), told)
    });
    let seconds = outcome.elapsed.as_secs_f64();
    let per_second = (scripts_run(&server) - before) as f64 / seconds;
    note(format!(
        "One client on one empty bucket: {:.0} checks per second cost Redis {per_second:.1} \
         script calls per second, probes included; Retry-After went from {} to {}.",
        outcome.answered as f64 / seconds,
        told[0].1,
        told[told.len() - 1].1
    ));
    assert!(per_second <= 5.0, "{per_second} script calls per second");
    let (first, most) = told[0];
    for (at, seconds) in told {
        let left = most as f64 - (at - first).as_secs_f64();
        assert!((left - 1.5..=left + 1.5).contains(&(seconds as f64)), "{seconds} told, {left} left");
    }
}

/// What a process occupies, in KiB.
fn resident(process: &Tidegate) -> u64 {
    let told = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let size = told.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    size.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
#[ignore = "minutes: make test-faults"]
fn a_redis_that_is_paused_for_a_minute_costs_no_memory() {
    let server = Server::start(&[]);
    let redis = format!("urls: ['{}'], pool_size: 2", server.url());
    // Never empty: each of the checks asks Redis.
    let quota = Quota { max_tokens: 1000.0, refill_rate: 1000.0 };
    let trial = Trial::start(Setup { rate: 1000.0, burst: 500, quota, ..Setup::new(redis) });
    trial.hold(Duration::from_secs(5));
    let healthy = resident(&trial.processes[0]);
    server.signal("STOP");
    trial.hold(Duration::from_secs(5));
    let first = resident(&trial.processes[0]);
    let mut sizes = Vec::new();
    for _ in 0..60 {
        trial.hold(Duration::from_secs(1));
        sizes.push(resident(&trial.processes[0]));
    }
    server.signal("CONT");
    trial.until_recovered();
    let run = trial.end();
    run.assert_answered();
    let (least, most) = (*sizes.iter().min().unwrap(), *sizes.iter().max().unwrap());
    note(format!(
        "Redis paused for 60 s, 1,000 checks per second in bursts of 500, pool_size 2: VmRSS {healthy} KiB before, then \
         {least} to {most} KiB."
    ));
    assert!(most <= first + first / 10 && least + first / 10 >= first, "{first} KiB, then {sizes:?}");
}
