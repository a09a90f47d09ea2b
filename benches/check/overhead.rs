//! What it costs to be observed: this build with all that watches it, beside a build in which nothing does.
//!
//! The other build is made with `--cfg unobserved`: it counts nothing, times nothing and gives Envoy no metadata. The two
//! serve the same load in turns, so that whatever else the machine does hits both.

use crate::load::{Load, Shape};
use crate::process::{self, Cpu, Service};
use crate::redis;
use bytes::Bytes;
use std::time::Duration;

/// All that can be switched on: an audit trail of every denial, to nobody.
const AUDITED: &str = "audit: {sinks: [stdout]}\n";

const CLOSED: Shape = Shape::Closed { connections: 4, streams: 32 };

/// Rates and CPU times of the observed build as parts of those of the other, one pair a round.
pub(crate) fn print(unobserved: &str, requests: &[Bytes], length: Duration, rounds: usize) {
    let server = redis::Server::start(&[]);
    let url = server.url();
    println!("| | checks/s, of unobserved | lowest and highest | service CPU per check, of unobserved |");
    println!("|---|---:|---:|---:|");
    for (name, redis, quota) in [
        ("memory, all allowed", None, process::GENEROUS),
        ("Redis, all allowed", Some(url.as_str()), process::GENEROUS),
        ("memory, nearly all denied", None, process::STINGY),
        ("Redis, nearly all denied", Some(url.as_str()), process::STINGY),
    ] {
        let observed = Service::run(env!("CARGO_BIN_EXE_tidegate"), redis, quota, AUDITED);
        let other = Service::run(unobserved, redis, quota, "");
        let mut pairs: Vec<(f64, f64)> = (0..rounds)
            .map(|round| {
                let turn = |service: &Service| measure(service, requests, length);
                let (seen, unseen) = if round % 2 == 0 {
                    let seen = turn(&observed);
                    (seen, turn(&other))
                } else {
                    let unseen = turn(&other);
                    (turn(&observed), unseen)
                };
                (seen.0 / unseen.0, seen.1 / unseen.1)
            })
            .collect();
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (low, middle, high) = (pairs[0].0, pairs[rounds / 2].0, pairs[rounds - 1].0);
        pairs.sort_by(|a, b| a.1.total_cmp(&b.1));
        println!("| {name} | {middle:.3} | {low:.3} to {high:.3} | {:.3} |", pairs[rounds / 2].1);
    }
}

/// Checks per second, and seconds of the service's CPU for each.
fn measure(service: &Service, requests: &[Bytes], length: Duration) -> (f64, f64) {
    let load = Load { address: service.address, requests, shape: CLOSED };
    load.run(length / 5);
    let cpu = Cpu::of(service.pid());
    let outcome = load.run(length);
    let checks = outcome.answered as f64;
    (checks / outcome.elapsed.as_secs_f64(), cpu.since().as_secs_f64() / checks)
}
