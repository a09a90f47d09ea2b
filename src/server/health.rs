//! grpc.health.v1: whether the process runs, and whether it can decide.

use crate::ext_authz::SERVICE;
use std::fmt;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

/// The names that mean: the process runs.
const LIVENESS: [&str; 2] = ["", "liveness"];
/// The names that mean: it can decide. The first is the one that envoy/envoy.yaml asks for.
const READINESS: [&str; 2] = [SERVICE, "readiness"];

/// The health of this process, as told over gRPC.
#[derive(Clone)]
pub struct Health {
    reporter: HealthReporter,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").finish_non_exhaustive()
    }
}

impl Health {
    /// Alive, and not ready.
    pub async fn new() -> Self {
        let health = Self { reporter: HealthReporter::new() };
        health.set(LIVENESS, ServingStatus::Serving).await;
        health.set_ready(false).await;
        health
    }

    /// Says whether it can decide.
    pub async fn set_ready(&self, ready: bool) {
        let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.set(READINESS, status).await;
    }

    async fn set(&self, names: [&str; 2], status: ServingStatus) {
        for name in names {
            self.reporter.set_service_status(name, status).await;
        }
    }

    pub(super) fn service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.reporter.clone()))
    }
}
