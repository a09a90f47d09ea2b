//! The figure: 200 reloads under load.

use super::*;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const RELOADS: u32 = 200;
const TASKS: usize = 8;
const SETTLED: u32 = 50;

/// A policy whose tier and limit go together, with tokens enough for everybody.
fn policy(tier: &str, limit: u32, redis: &str) -> String {
    format!(
        "identity: {{user: [{{header: x-user}}]}}\ndefault_tier: {tier}\n\
         tiers: {{{tier}: {{per_user: {{max_tokens: {limit}, refill_rate: 1000000}}}}}}\n{redis}"
    )
}

/// Resident memory, in kB.
fn resident(service: &Tidegate) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", service.pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().split(' ').next().unwrap().parse().unwrap()
}

/// Checks, one after the other, until told to stop. Each must be of one of the two policies.
async fn load(service: Arc<Tidegate>, task: usize, stop: Arc<AtomicBool>) -> [u64; 2] {
    let mut client = client(&service).await;
    let mut answers = [0, 0];
    while !stop.load(Ordering::Relaxed) {
        let user = format!("u{task}-{}", (answers[0] + answers[1]) % 16);
        let answer = client.check(check(&[("x-user", &user)])).await.unwrap().into_inner();
        assert_eq!(told(&answer, "decision").as_deref(), Some("allowed"), "{answer:?}");
        let place = match (told(&answer, "tier").as_deref(), told(&answer, "limit").as_deref()) {
            (Some("ten"), Some("10")) => 0,
            (Some("twenty"), Some("20")) => 1,
            mixed => panic!("{mixed:?} is of neither policy"),
        };
        answers[place] += 1;
    }
    answers
}

/// `cargo test --test it -- --ignored --nocapture two_hundred_reloads`
#[test]
#[ignore = "takes about a minute"]
fn two_hundred_reloads_under_load_give_no_wrong_decision_no_error_and_no_growth() {
    let server = Server::start(&[]);
    let more = redis(&server);
    let folder = Folder::new();
    let file = folder.write("tidegate.yaml", &policy("ten", 10, &more));
    let service = Arc::new(Tidegate::start_at(&file, &[]));
    let stop = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let tasks: Vec<_> = (0..TASKS).map(|task| runtime.spawn(load(service.clone(), task, stop.clone()))).collect();
    let (begun, mut settled) = (Instant::now(), 0);
    for reload in 1..=RELOADS {
        let (tier, limit) = if reload % 2 == 0 { ("ten", 10) } else { ("twenty", 20) };
        folder.replace("tidegate.yaml", &policy(tier, limit, &more));
        until_reloads(&service, (reload.into(), 0));
        if reload == SETTLED {
            settled = resident(&service);
        }
    }
    let took = begun.elapsed();
    stop.store(true, Ordering::Relaxed);
    let answers = runtime.block_on(futures_util::future::join_all(tasks));
    let answers = answers.into_iter().map(Result::unwrap).fold([0, 0], |sum, of| [sum[0] + of[0], sum[1] + of[1]]);
    let last = resident(&service);
    println!(
        "{RELOADS} reloads in {took:.1?} under {} checks ({} and {} under the two policies); resident after {SETTLED}: {settled} kB, after {RELOADS}: {last} kB",
        answers[0] + answers[1],
        answers[0],
        answers[1]
    );
    reloads_stay(&service, (RELOADS.into(), 0));
    assert!(answers[0] > 0 && answers[1] > 0);
    assert_eq!(metric(&service, "tidegate_degraded_total{policy=\"deny\"}"), 0);
    assert!(last * 10 < settled * 11, "{settled} kB became {last} kB");
}
