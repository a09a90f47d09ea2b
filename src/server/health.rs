//! Whether the process runs, and whether it can decide: as grpc.health.v1, and for the admin endpoint.

use crate::ext_authz::SERVICE;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

/// The names that mean: the process runs.
const LIVENESS: [&str; 2] = ["", "liveness"];
/// The names that mean: it can decide. The first is the one that envoy/envoy.yaml asks for.
const READINESS: [&str; 2] = [SERVICE, "readiness"];

/// What readiness is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Where buckets are kept.
    Store,
    /// Whether what was last read of the configuration is in force.
    Config,
    /// Whether the process is ending.
    Drain,
}

impl Check {
    const ALL: [Self; 3] = [Self::Store, Self::Config, Self::Drain];

    fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Config => "config",
            Self::Drain => "drain",
        }
    }
}

/// How a check stands, with a short constant reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passes,
    /// Something is wrong, and it can decide all the same.
    Warns(&'static str),
    Fails(&'static str),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passes => f.write_str("ok"),
            Self::Warns(why) => write!(f, "warning: {why}"),
            Self::Fails(why) => write!(f, "failed: {why}"),
        }
    }
}

/// The health of this process. Clones share it.
#[derive(Clone)]
pub struct Health {
    reporter: HealthReporter,
    checks: Arc<Mutex<Checks>>,
    /// Who waits is told in the order in which verdicts were noted.
    telling: Arc<tokio::sync::Mutex<()>>,
}

/// The verdicts, in the order of [`Check::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checks([Verdict; Check::ALL.len()]);

impl Checks {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, Verdict)> {
        Check::ALL.into_iter().zip(self.0).map(|(check, verdict)| (check.name(), verdict))
    }

    pub(super) fn ready(&self) -> bool {
        !self.0.iter().any(|verdict| matches!(verdict, Verdict::Fails(_)))
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("checks", &self.checks()).finish_non_exhaustive()
    }
}

impl Health {
    /// Alive, not draining, and with a verdict on the store, which nobody has asked yet.
    pub async fn new(store: Verdict) -> Self {
        let checks = Arc::new(Mutex::new(Checks([store, Verdict::Passes, Verdict::Passes])));
        let health = Self { reporter: HealthReporter::new(), checks, telling: Arc::default() };
        health.report(LIVENESS, ServingStatus::Serving).await;
        health.set(Check::Store, store).await;
        health
    }

    /// Notes how a check stands, and tells who asks or watches.
    pub async fn set(&self, check: Check, verdict: Verdict) {
        let _telling = self.telling.lock().await;
        let ready = {
            let mut checks = self.checks.lock();
            checks.0[check as usize] = verdict;
            checks.ready()
        };
        let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.report(READINESS, status).await;
    }

    /// Whether it can decide.
    pub fn is_ready(&self) -> bool {
        self.checks().ready()
    }

    pub(super) fn checks(&self) -> Checks {
        *self.checks.lock()
    }

    async fn report(&self, names: [&str; 2], status: ServingStatus) {
        for name in names {
            self.reporter.set_service_status(name, status).await;
        }
    }

    pub(super) fn service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.reporter.clone()))
    }
}
