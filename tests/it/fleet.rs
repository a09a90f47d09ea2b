//! Several tidegate processes on one Redis are one limiter.

use crate::support::{
    redis,
    service::{Tidegate, check},
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate::ext_authz::proto::authorization_client::AuthorizationClient;
use tokio::task::JoinSet;
use tonic::transport::Endpoint;

const PROCESSES: usize = 4;
const CLIENTS_OF_EACH: usize = 10;
const MAX_TOKENS: f64 = 100.0;
const REFILL_RATE: f64 = 1.0;
const LENGTH: Duration = Duration::from_secs(20);

/// 100 tokens at 1 per second, for 20 seconds: 120 are admitted, but for the one that the end of the run may cut off
/// and the one that fell due at its very end.
#[test]
fn forty_clients_of_four_processes_get_the_tokens_of_one_bucket_and_no_more() {
    let server = redis::Server::start(&[]);
    let config = format!(
        "default_tier: free\ntiers: {{free: {{per_ip: {{max_tokens: {MAX_TOKENS}, refill_rate: {REFILL_RATE}}}}}}}\n\
         on_store_error: deny\nredis: {{urls: ['{}'], timeout: 10s}}\n",
        server.url()
    );
    let fleet: Vec<Tidegate> = (0..PROCESSES).map(|_| Tidegate::start(&config)).collect();
    let runtime = ::tokio::runtime::Runtime::new().unwrap();
    let (admitted, checks, length) = runtime.block_on(hammer(&fleet));

    let refilled = REFILL_RATE * length.as_secs_f64();
    println!("{admitted} of {checks} checks admitted in {:.3} s", length.as_secs_f64());
    assert!(admitted as f64 <= MAX_TOKENS + refilled + 1.0, "{admitted} admitted: more than the bucket held");
    assert!(admitted as f64 >= MAX_TOKENS + refilled.floor() - 2.0, "{admitted} admitted: the bucket was starved");
}

async fn hammer(fleet: &[Tidegate]) -> (u64, u64, Duration) {
    let (admitted, checks) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut clients = JoinSet::new();
    let start = Instant::now();
    for tidegate in fleet {
        let channel = Endpoint::from_shared(format!("http://{}", tidegate.address)).unwrap().connect().await.unwrap();
        for _ in 0..CLIENTS_OF_EACH {
            let (mut client, admitted, checks) =
                (AuthorizationClient::new(channel.clone()), admitted.clone(), checks.clone());
            clients.spawn(async move {
                while start.elapsed() < LENGTH {
                    let code = client.check(check(&[])).await.unwrap().into_inner().status.unwrap().code;
                    assert!(code == 0 || code == 8, "neither admitted nor denied: {code}");
                    admitted.fetch_add(u64::from(code == 0), Ordering::Relaxed);
                    checks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    }
    clients.join_all().await;
    (admitted.load(Ordering::Relaxed), checks.load(Ordering::Relaxed), start.elapsed())
}
