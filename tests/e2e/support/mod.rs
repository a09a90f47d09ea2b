//! What the tests run against: a real Envoy and a real tidegate before an upstream that echoes.

pub mod child;
pub mod client;
#[allow(dead_code, reason = "shared with tests/it, which uses more of it")]
#[path = "../../it/support/collector.rs"]
pub mod collector;
pub mod envoy;
#[path = "../../it/support/eventually.rs"]
mod eventually;
#[allow(dead_code, reason = "shared with tests/it, which uses more of it")]
#[path = "../../it/support/redis.rs"]
pub mod redis;
pub mod service;
#[allow(dead_code, reason = "shared with tests/it, which uses more of it")]
#[path = "../../it/support/tls.rs"]
pub mod tls;
pub mod token;
pub mod upstream;

use client::Caller;
use envoy::{Config, Envoy};
pub use eventually::eventually;
use serde_json::Value;
use service::Tidegate;
use std::ops::Deref;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A shipped YAML file.
pub fn shipped(path: &str) -> Value {
    serde_yaml::from_str(&std::fs::read_to_string(repository().join(path)).unwrap()).unwrap()
}

/// A user whom no other test knows.
pub fn unique_user() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("user-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A tidegate behind an Envoy.
#[derive(Debug)]
pub struct Gateway {
    pub tidegate: Tidegate,
    pub envoy: Envoy,
}

impl Gateway {
    /// The shipped configurations, with the limits of [`service::config`].
    pub fn start() -> Watched<Self> {
        Self::start_with(|_| (), |_| ())
    }

    pub fn start_with(
        change_tidegate: impl FnOnce(&mut Value),
        change_envoy: impl FnOnce(&mut Config),
    ) -> Watched<Self> {
        let mut config = service::config();
        change_tidegate(&mut config);
        Self::before(Tidegate::start(&config), change_envoy)
    }

    /// An Envoy before a tidegate that runs already.
    pub fn before(tidegate: Tidegate, change_envoy: impl FnOnce(&mut Config)) -> Watched<Self> {
        let mut config = Config::new(&[tidegate.listen()]);
        change_envoy(&mut config);
        Watched(Self { envoy: Envoy::start(&config), tidegate })
    }

    /// Somebody of whom nothing is known but the address, which nobody else has.
    pub fn stranger(&self) -> Caller {
        Caller::new(self.envoy.edge())
    }

    /// A user whom no other test knows, with a good token.
    pub fn user(&self, tier: &str) -> Caller {
        self.stranger().bearer(&token::token(&unique_user(), tier))
    }
}

/// The gateway for tests that change nothing in it: they differ by their callers.
pub fn shared() -> Watched<&'static Gateway> {
    static SHARED: OnceLock<Watched<Gateway>> = OnceLock::new();
    Watched(&SHARED.get_or_init(Gateway::start).0)
}

/// Shows the logs of a gateway when the test that holds this fails.
#[derive(Debug)]
pub struct Watched<T: HasLogs>(pub T);

pub trait HasLogs {
    fn show_logs(&self);
}

impl HasLogs for Gateway {
    fn show_logs(&self) {
        self.tidegate.child().show_logs();
        self.envoy.child().show_logs();
    }
}

impl HasLogs for &Gateway {
    fn show_logs(&self) {
        (*self).show_logs();
    }
}

impl<T: HasLogs> Deref for Watched<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: HasLogs> std::ops::DerefMut for Watched<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: HasLogs> Drop for Watched<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.show_logs();
        }
    }
}
