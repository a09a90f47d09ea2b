//! How tests wait. tests/e2e shares it.

use std::time::{Duration, Instant};

/// Long enough for a busy machine; only a broken one waits that long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again and again until there is something. What is awaited here happens in other processes, which tell nobody.
pub fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
