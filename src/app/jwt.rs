//! What verifies tokens in this process: made at the start, and anew when a reload changes it.

use crate::clock::{SteadyClock, SystemClock};
use crate::jwt::{Settings, Verifier};
use crate::limiter::Limiter;
use crate::metrics::Metrics;
use crate::metrics::catalogue;
use std::sync::Arc;

/// What the settings ask for, if anything; `before`, with all that it remembers, where that is the same.
pub(super) fn verifier(
    settings: Option<&Settings>,
    before: Option<&Arc<Verifier>>,
    metrics: &Metrics,
) -> Option<Arc<Verifier>> {
    let settings = settings?;
    if let Some(before) = before.filter(|before| before.settings() == settings) {
        return Some(before.clone());
    }
    let (clock, stopwatch) = (Arc::new(SystemClock), Arc::new(SteadyClock::default()));
    let before = before.map(|before| &**before);
    Some(Arc::new(Verifier::start(settings.clone(), before, clock, stopwatch, metrics.jwt.clone())))
}

/// Has the metrics ask for keys and memory of whatever verifies tokens then. The metrics live in the limiter, so they
/// must not keep it alive.
pub(super) fn watch(limiter: &Arc<Limiter>) {
    let of = Arc::downgrade(limiter);
    let now = move || of.upgrade().and_then(|limiter| limiter.snapshot().jwt().cloned());
    let count: fn(&Verifier) -> Option<f64> = |jwt| Some(jwt.key_count() as f64);
    let age: fn(&Verifier) -> Option<f64> = |jwt| jwt.key_age().map(|age| age.as_secs_f64());
    for (family, value) in [(catalogue::JWKS_KEYS, count), (catalogue::JWKS_AGE, age)] {
        let now = now.clone();
        let told = move || now().and_then(|jwt| value(&jwt)).map(|value| ("".into(), value)).into_iter().collect();
        limiter.metrics().watch_each(family, told);
    }
    limiter.metrics().watch_each(catalogue::JWT_CACHE_SIZE, move || {
        let sizes = now().map(|jwt| jwt.remembered());
        let named = |[good, bad]: [usize; 2]| [("verified".into(), good as f64), ("refused".into(), bad as f64)];
        sizes.into_iter().flat_map(named).collect()
    });
}
