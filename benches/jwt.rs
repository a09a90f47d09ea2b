//! What a token costs a check: seen before, refused before, and for the first time by each kind of key.
//!
//! `cargo bench --profile faults --bench jwt`
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::panic, reason = "what is measured is printed")]
#![allow(unreachable_pub, missing_debug_implementations, dead_code, reason = "the issuer is that of the tests")]

#[path = "../tests/it/support/issuer.rs"]
mod issuer;

use issuer::{AUDIENCE, ISSUER, Signer, claims, jwks};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate::clock::{SteadyClock, SystemClock};
use tidegate::jwt::{KeySource, Settings, Text, Verifier};
use tidegate::metrics::JwtVerdict;
use tidegate::metrics::Metrics;
use tidegate::policy::claims::ClaimPath;
use tidegate::policy::request::Request;

const ROUNDS: u32 = 5;

fn verdict(verifier: &Verifier, authorization: &str) -> JwtVerdict {
    let mut request = Request::default();
    request.headers.push((b"authorization", authorization.as_bytes()));
    black_box(verifier.verify(&request)).verdict
}

/// Nanoseconds for each, the least of the rounds: what disturbs only adds.
fn nanos(times: u32, mut check: impl FnMut(u32)) -> f64 {
    let round = |round: u32, check: &mut dyn FnMut(u32)| {
        let begun = Instant::now();
        (0..times).for_each(|n| check(round * times + n));
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(times)
    };
    (0..ROUNDS).map(|n| round(n, &mut check)).fold(f64::INFINITY, f64::min)
}

fn main() {
    let signers = [Signer::rsa("r"), Signer::p256("e"), Signer::p384("f"), Signer::ed("d")];
    let settings = Settings {
        keys: KeySource::Jwks(Text(jwks(&signers.each_ref()).into_bytes().into())),
        issuer: ISSUER.into(),
        audiences: vec![AUDIENCE.into()],
        header: "authorization".into(),
        leeway: Duration::from_secs(60),
        cache_size: 100_000,
        claims: vec![ClaimPath(vec!["sub".into()])],
    };
    let (clock, stopwatch) = (Arc::new(SystemClock), Arc::new(SteadyClock::default()));
    let verifier = Verifier::start(settings, None, clock, stopwatch, Metrics::new().jwt.clone());
    for signer in &signers {
        let tokens: Vec<String> =
            (0..ROUNDS * 1000).map(|n| format!("Bearer {}", signer.token(&claims(&format!("user-{n}"))))).collect();
        let first = nanos(1000, |n| assert_eq!(verdict(&verifier, &tokens[n as usize]), JwtVerdict::Verified));
        let again = nanos(200_000, |_| assert_eq!(verdict(&verifier, &tokens[0]), JwtVerdict::Cached));
        let (alg, bytes) = (signer.alg(), tokens[0].len());
        println!("{alg}: {:.1} µs the first time, {again:.0} ns again ({bytes} bytes)", first / 1000.0);
    }
    let forged = format!("Bearer {}", Signer::ed("d").token(&claims("mallory")));
    let refused = nanos(200_000, |_| assert_eq!(verdict(&verifier, &forged), JwtVerdict::BadSignature));
    let missing = nanos(200_000, |_| assert_eq!(verdict(&verifier, ""), JwtVerdict::Missing));
    println!("refused again: {refused:.0} ns; no token: {missing:.0} ns");
}
