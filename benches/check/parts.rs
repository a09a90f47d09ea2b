//! The parts of a check by themselves: the script without a service, and the code without I/O.

use crate::process::Cpu;
use crate::redis::Server;
use bytes::Bytes;
use prost::Message;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate::bucket::{Charge, Dimension, Key, Level, Quota, Source, Taken};
use tidegate::config;
use tidegate::ext_authz::proto::CheckRequest;
use tidegate::ext_authz::{request, response};
use tidegate::policy::decision::decide;
use tidegate::store::Store;
use tidegate::store::redis::{RedisSettings, RedisStore};

/// Concurrent calls, as many as the closed loop over gRPC has.
const CALLS: usize = 128;

pub(crate) struct Script {
    pub(crate) rate: f64,
    /// CPU microseconds of Redis for one call.
    pub(crate) redis: f64,
}

/// `take.lua` over three buckets, called through the store's own connection and nothing else.
pub(crate) fn script(server: &Server, length: Duration, callers: usize) -> Script {
    let mut settings = RedisSettings::new(server.url().parse().unwrap());
    settings.limits.timeout = Duration::from_secs(5);
    let store = Arc::new(RedisStore::new(settings));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let cpu = Cpu::of(server.pid);
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for call in 0..CALLS {
            let store = store.clone();
            tasks.spawn(async move {
                let mut calls = 0_u64;
                for caller in (call..).step_by(CALLS) {
                    if start.elapsed() >= length {
                        break;
                    }
                    assert!(store.take(&charges(caller % callers)).await.unwrap().admitted);
                    calls += 1;
                }
                calls
            });
        }
        let calls: u64 = tasks.join_all().await.into_iter().sum();
        Script {
            rate: calls as f64 / start.elapsed().as_secs_f64(),
            redis: cpu.since().as_secs_f64() * 1e6 / calls as f64,
        }
    })
}

fn charges(caller: usize) -> [Charge; 3] {
    let quota = Quota::parse(1e9, 1e6).unwrap();
    Dimension::ALL.map(|dimension| Charge {
        key: Key::new("bench:", dimension, &format!("caller-{caller}")),
        quota,
        cost: 1.0,
    })
}

/// Nanoseconds of each part, for the policy that ships as the default.
pub(crate) fn in_process(requests: &[Bytes]) -> Vec<(&'static str, f64)> {
    let policy = config::parse(config::DEFAULT.as_bytes()).unwrap().policy;
    let checks: Vec<CheckRequest> =
        requests.iter().take(1000).map(|frame| CheckRequest::decode(&frame[5..]).unwrap()).collect();
    let levels = [59.0, 9.0, 120.0].map(|tokens| Level { tokens, elapsed: 0.0 });
    let taken = Taken { admitted: true, levels: levels.into_iter().collect(), source: Source::Store };
    let decode = median(|place| {
        let frame = requests[place % checks.len()].slice(5..);
        black_box(CheckRequest::decode(frame).unwrap());
    });
    let plan_and_decide = median(|place| {
        let request = request::read(&checks[place % checks.len()]);
        let plan = policy.plan(policy.draft(&request), None);
        black_box(decide(&plan, Ok(Some(&taken))));
    });
    let all = median(|place| {
        let check = &checks[place % checks.len()];
        let request = request::read(check);
        let plan = policy.plan(policy.draft(&request), None);
        let decision = decide(&plan, Ok(Some(&taken)));
        let wording = response::Wording {
            answers: &policy.answers,
            digester: &policy.sources.digester,
            key_headers: std::iter::empty(),
            grpc: request.is_grpc(),
        };
        black_box(response::write(&plan, &decision, wording).unwrap().encode_to_vec());
    });
    vec![
        ("decode the request", decode),
        ("read, plan, decide", plan_and_decide),
        ("read, plan, decide, word, encode", all),
    ]
}

/// The median of 21 rounds of 20,000 runs.
fn median(mut run: impl FnMut(usize)) -> f64 {
    const RUNS: usize = 20_000;
    let mut rounds: Vec<f64> = (0..21)
        .map(|_| {
            let start = Instant::now();
            (0..RUNS).for_each(&mut run);
            start.elapsed().as_nanos() as f64 / RUNS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[10]
}
