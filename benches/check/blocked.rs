//! Denials into an audit trail that nobody reads: checks go on as fast, and each denial is accounted for.
//!
//! Two services tell each denial, one into a pipe that is never read and one to nobody, and serve the same load in turns.
//! Then the trail alone, in this process, takes more denials than any service could send it.

use crate::load::{Load, Shape};
use crate::process::{self, Service};
use bytes::Bytes;
use prost::Message as _;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate::audit::{Audit, Excerpt, Settings, SinkSettings};
use tidegate::bucket::{Level, Source, Taken};
use tidegate::config;
use tidegate::ext_authz::proto::CheckRequest;
use tidegate::ext_authz::request;
use tidegate::metrics::{self, Metrics};
use tidegate::policy::decision::decide;

const CLOSED: Shape = Shape::Closed { connections: 4, streams: 32 };

/// Denials that the trail takes by itself.
const DENIALS: u64 = 1_000_000;

/// No denial is folded, so that each is an event.
const EACH: &str = "audit: {sinks: [stdout], fold: 0s}\n";

pub(crate) fn print(requests: &[Bytes], length: Duration, rounds: usize) {
    let start = |stdout| {
        let binary = env!("CARGO_BIN_EXE_tidegate");
        Service::printing(stdout, "127.0.0.1:0", binary, None, process::STINGY, EACH)
    };
    let (mut blocked, open) = (start(Stdio::piped()), start(Stdio::null()));
    let rate = |service: &Service| {
        let outcome = Load { address: service.address, requests, shape: CLOSED }.run(length);
        outcome.answered as f64 / outcome.elapsed.as_secs_f64()
    };
    let mut pairs: Vec<(f64, f64)> = (0..rounds)
        .map(|round| {
            if round % 2 == 0 {
                let stuck = rate(&blocked);
                (stuck, rate(&open))
            } else {
                let free = rate(&open);
                (rate(&blocked), free)
            }
        })
        .collect();
    pairs.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let (ratio, stuck) = (pairs[rounds / 2].0 / pairs[rounds / 2].1, pairs[rounds / 2].0);
    println!("| audit on a pipe that nobody reads | |\n|---|---:|");
    println!("| checks/s, nearly all denied | {stuck:.0} |");
    println!("| of the same with /dev/null | {ratio:.3} |");
    let (denials, written, dropped) = accounts(&mut blocked);
    println!("| denials | {denials} |\n| written | {written} |\n| dropped | {dropped} |");
    for (name, fold) in [("told one by one", Duration::ZERO), ("folded", Duration::from_secs(10))] {
        println!("| ns for each of {DENIALS} denials {name}, in the process | {:.0} |", alone(requests, fold));
    }
}

/// Reads the pipe at last, and says how many denials there were and what became of them: all were written or dropped.
fn accounts(service: &mut Service) -> (u64, u64, u64) {
    let mut pipe = service.stdout();
    std::thread::spawn(move || {
        let mut chunk = [0; 1 << 16];
        while pipe.read(&mut chunk).is_ok_and(|length| length > 0) {}
    });
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let told = service.metrics();
        let of = |name: &str| value(&told, &format!("{name}{{sink=\"stdout\"}}"));
        let denials = value(&told, "tidegate_checks_total{decision=\"denied\",tier=\"enterprise\"}");
        let (written, dropped) = (of("tidegate_audit_written_total"), of("tidegate_audit_dropped_total"));
        if of("tidegate_audit_queue_length") == 0 {
            assert_eq!(written + dropped, denials, "each denial is written or dropped");
            assert!(dropped > 0, "the pipe was full");
            return (denials, written, dropped);
        }
        assert!(Instant::now() < deadline, "{told}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn value(metrics: &str, series: &str) -> u64 {
    metrics.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok()).unwrap()
}

/// Nanoseconds for each denial that is told to a trail on a pipe that nobody reads, its excerpt included.
fn alone(requests: &[Bytes], fold: Duration) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let sinks = vec![SinkSettings::File(pipe)];
    let settings = Settings { sinks, hash_users: false, queue: 8192, fold, replica: "bench".into() };
    let metrics = Arc::new(Metrics::new());
    let (audit, ending) = Audit::start(&settings, None, metrics.clone()).unwrap();

    let policy = config::parse(config::DEFAULT.as_bytes()).unwrap().policy;
    let checks: Vec<CheckRequest> =
        requests.iter().take(1000).map(|frame| CheckRequest::decode(&frame[5..]).unwrap()).collect();
    let read: Vec<_> = checks.iter().map(request::read).collect();
    let plans: Vec<_> = read.iter().map(|request| policy.plan(policy.draft(request), None)).collect();
    let levels = plans[0].charges.iter().map(|_| Level { tokens: 0.0, elapsed: 0.0 }).collect();
    let taken = Taken { admitted: false, levels, source: Source::Store };
    let decisions: Vec<_> = plans.iter().map(|plan| decide(plan, Ok(Some(&taken)))).collect();
    let begun = Instant::now();
    for place in (0..plans.len()).cycle().take(usize::try_from(DENIALS).unwrap()) {
        let digester = &policy.sources.digester;
        audit.checked(&plans[place], &decisions[place], metrics::Source::Store, digester, || Excerpt::of(&read[place]));
    }
    let took = begun.elapsed().as_nanos() as f64 / DENIALS as f64;
    // What waits, or is counted, is given up at the end and so dropped.
    drop(ending);
    let told = metrics.text();
    let of = |name: &str| value(&told, &format!("tidegate_audit_{name}_total{{sink=\"file\"}}"));
    assert_eq!(of("written") + of("dropped"), DENIALS, "{told}");
    let _ = std::io::stdout().flush();
    took
}
