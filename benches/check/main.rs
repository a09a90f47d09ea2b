//! What a check costs: over gRPC against the running service, and in its parts, beside the ceilings of the same run.
//!
//! `cargo bench --bench check [-- SECONDS_PER_ROW [CALLERS]]`, or `… -- overhead BINARY [SECONDS [CALLERS]]` for what it
//! costs to be observed, where BINARY was built with `--cfg unobserved`, or `… -- blocked [SECONDS [CALLERS]]` for an audit
//! trail that nobody reads. Prints tables in Markdown. Ratios hold across machines better
//! than the numbers do. Needs `redis-server` (on PATH, or `REDIS_SERVER=`).

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark prints, and fails by panicking"
)]

mod blocked;
mod http2;
mod identities;
mod load;
mod overhead;
mod parts;
mod process;
#[path = "../../tests/it/support/redis.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests, which use more of it")]
mod redis;

use load::{Load, Outcome, Shape};
use process::{Cpu, Service};
use std::time::Duration;

/// Pairs of runs with and without what observes them.
const ROUNDS: usize = 7;

fn main() {
    if std::env::args().any(|argument| argument == process::EMPTY_CHECK) {
        return process::serve_empty_check();
    }
    let mut numbers = std::env::args().filter_map(|argument| argument.parse().ok());
    let seconds = numbers.next().unwrap_or(5);
    let callers = usize::try_from(numbers.next().unwrap_or(20_000)).unwrap();
    let length = Duration::from_secs(seconds);
    if let Some(unobserved) = std::env::args().skip_while(|argument| argument != "overhead").nth(1) {
        return overhead::print(&unobserved, &identities::requests(0..callers), length, ROUNDS);
    }
    if std::env::args().any(|argument| argument == "blocked") {
        return blocked::print(&identities::requests(0..callers), length, ROUNDS);
    }
    Table { length, callers }.print();
    memory_of_a_million_callers();
}

struct Table {
    length: Duration,
    /// Distinct callers in the load: each has its own user, API key and address.
    callers: usize,
}

impl Table {
    fn print(&self) {
        let requests = identities::requests(0..self.callers);
        println!("{} callers, {} bytes per CheckRequest, 3 buckets per check\n", self.callers, requests[0].len());
        let closed = Shape::Closed { connections: 4, streams: 32 };

        let server = redis::Server::start(&[]);
        let script = parts::script(&server, self.length, self.callers);
        let empty = self.row(&Service::empty_check(), None, &requests, closed);
        let memory = self.row(&Service::tidegate(None, process::GENEROUS), None, &requests, closed);
        let on_redis = Service::tidegate(Some(&server.url()), process::GENEROUS);
        let redis = self.row(&on_redis, Some(&server), &requests, closed);
        let stingy = Service::tidegate(Some(&server.url()), process::STINGY);
        let denied = self.row(&stingy, Some(&server), &requests, closed);
        let hammered = self.row(&stingy, Some(&server), &requests[..1], closed);
        let dead = redis::Server::start(&[]).url();
        let away = self.row(&Service::tidegate(Some(&dead), process::GENEROUS), None, &requests, closed);

        println!("Closed loop, 4 connections x 32 streams:\n");
        println!(
            "| | checks/s | of empty Check | of bare script | p50 µs | p99 µs | p99.9 µs | service µs/check | Redis µs/check |"
        );
        println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
        let print = |name: &str, row: &Row| {
            let of = |ceiling: f64| format!("{:.2}", row.rate / ceiling);
            let numbers = [row.latency(0.5), row.latency(0.99), row.latency(0.999), row.service, row.redis];
            let numbers: Vec<String> = numbers.iter().map(|number| format!("{number:.1}")).collect();
            println!(
                "| {name} | {:.0} | {} | {} | {} |",
                row.rate,
                of(empty.rate),
                of(script.rate),
                numbers.join(" | ")
            );
        };
        print("empty tonic Check", &empty);
        println!(
            "| bare script, no service | {:.0} | {:.2} | 1.00 | | | | | {:.1} |",
            script.rate,
            script.rate / empty.rate,
            script.redis
        );
        print("tidegate, memory", &memory);
        print("tidegate, Redis", &redis);
        print("tidegate, Redis, nearly all denied", &denied);
        print("tidegate, Redis, one caller that hammers", &hammered);
        print("tidegate, Redis away", &away);

        println!("\nOpen loop at half of that rate, latency from the intended start:\n");
        println!("| | offered/s | answered/s | p50 µs | p99 µs | p99.9 µs | service µs/check | Redis µs/check |");
        println!("|---|---:|---:|---:|---:|---:|---:|---:|");
        for (name, service, rate) in [
            ("tidegate, Redis", &on_redis, redis.rate / 2.0),
            ("tidegate, Redis, a tenth", &on_redis, redis.rate / 10.0),
        ] {
            let row = self.row(service, Some(&server), &requests, Shape::Open { connections: 4, per_second: rate });
            let numbers = [row.latency(0.5), row.latency(0.99), row.latency(0.999), row.service, row.redis];
            let numbers: Vec<String> = numbers.iter().map(|number| format!("{number:.1}")).collect();
            println!("| {name} | {rate:.0} | {:.0} | {} |", row.rate, numbers.join(" | "));
        }

        println!("\nIn the process, no I/O, per check:\n");
        println!("| | ns |");
        println!("|---|---:|");
        for (name, nanoseconds) in parts::in_process(&requests) {
            println!("| {name} | {nanoseconds:.0} |");
        }
    }

    fn row(&self, service: &Service, redis: Option<&redis::Server>, requests: &[bytes::Bytes], shape: Shape) -> Row {
        let load = Load { address: service.address, requests, shape };
        load.run(self.length / 5);
        let (service_cpu, redis_cpu) = (Cpu::of(service.pid()), redis.map(|redis| Cpu::of(redis.pid)));
        let outcome = load.run(self.length);
        let checks = outcome.answered as f64;
        let micros = |cpu: &Cpu| cpu.since().as_secs_f64() * 1e6 / checks;
        Row {
            rate: checks / outcome.elapsed.as_secs_f64(),
            service: micros(&service_cpu),
            redis: redis_cpu.as_ref().map_or(0.0, micros),
            outcome,
        }
    }
}

struct Row {
    rate: f64,
    service: f64,
    redis: f64,
    outcome: Outcome,
}

impl Row {
    fn latency(&self, quantile: f64) -> f64 {
        self.outcome.latencies.value_at_quantile(quantile) as f64 / 1000.0
    }
}

/// The service must not keep anything of a caller when Redis keeps the buckets.
fn memory_of_a_million_callers() {
    const CALLERS: usize = 1_000_000;
    const CHUNK: usize = 50_000;
    let server = redis::Server::start(&[]);
    let service = Service::tidegate(Some(&server.url()), process::GENEROUS);
    let idle = service.resident_kib();
    println!("\nMemory of the service (VmRSS), buckets on Redis:\n");
    println!("| after | MiB |");
    println!("|---|---:|");
    println!("| start | {:.1} |", idle as f64 / 1024.0);
    for start in (0..CALLERS).step_by(CHUNK) {
        let requests = identities::requests(start..start + CHUNK);
        let load =
            Load { address: service.address, requests: &requests, shape: Shape::Once { connections: 4, streams: 32 } };
        assert_eq!(load.run(Duration::MAX).answered, CHUNK as u64);
        let done = start + CHUNK;
        if done.is_multiple_of(CALLERS / 4) || done == CHUNK {
            println!("| {done} callers | {:.1} |", service.resident_kib() as f64 / 1024.0);
        }
    }
}
