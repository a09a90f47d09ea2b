//! What metrics cost a check: all that one does for them, again and again, on one thread.
//!
//! `cargo bench --profile faults --bench metrics`
#![allow(clippy::print_stdout, reason = "what is measured is printed")]

use std::hint::black_box;
use std::time::{Duration, Instant};
use tidegate::metrics::{Decision, Dimension, Metrics, Source};

const CHECKS: u32 = 5_000_000;

/// Nanoseconds for each, the least of five rounds: what disturbs only adds.
fn nanos(mut check: impl FnMut()) -> f64 {
    let round = |check: &mut dyn FnMut()| {
        let begun = Instant::now();
        (0..CHECKS).for_each(|_| check());
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(CHECKS)
    };
    (0..5).map(|_| round(&mut check)).fold(f64::INFINITY, f64::min)
}

fn main() {
    let metrics = Metrics::new();
    let tiers = metrics.tiers(["free", "standard", "enterprise"]);
    let allowed = nanos(|| {
        let watch = metrics.begin();
        let asked = Instant::now();
        let took: Duration = black_box(asked).elapsed();
        tiers.checked(black_box("standard"), Decision::Allowed);
        metrics.asked(took);
        watch.end();
    });
    let denied = nanos(|| {
        let watch = metrics.begin();
        tiers.checked(black_box("standard"), Decision::Denied);
        tiers.denied(black_box("standard"), Dimension::User, Source::DenyCache);
        watch.end();
    });
    let clock = nanos(|| {
        black_box(Instant::now());
    });
    println!(
        "allowed after asking the store: {allowed:.0} ns a check, of which four looks at the clock {:.0} ns",
        4.0 * clock
    );
    println!(
        "denied without asking it:       {denied:.0} ns a check, of which two looks at the clock {:.0} ns",
        2.0 * clock
    );
}
