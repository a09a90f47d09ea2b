//! What a decision counts as.

use crate::bucket;
use crate::metrics::{self, Dimension, Metrics, Policy, Source};
use crate::policy::Plan;
use crate::policy::decision::{Decision, FailurePolicy, Outcome};
use crate::store::StoreError;

/// Counts a check that was decided, and the store's failure if it was one.
pub(super) fn count(metrics: &Metrics, plan: &Plan<'_>, decision: &Decision, failure: Option<&StoreError>) {
    metrics.checked(plan.tier, label(&decision.outcome));
    match &decision.outcome {
        Outcome::Denied { exhausted, .. } => {
            for dimension in exhausted {
                metrics.denied(plan.tier, dimension_of(*dimension), Source::Store);
            }
        }
        Outcome::Failed(policy) => metrics.degraded(policy_of(*policy)),
        _ => {}
    }
    if let Some(failure) = failure {
        metrics.store_failed(failure.kind());
    }
}

fn label(outcome: &Outcome) -> metrics::Decision {
    match outcome {
        Outcome::Exempt => metrics::Decision::Exempt,
        Outcome::Unlimited => metrics::Decision::Unlimited,
        Outcome::Admitted => metrics::Decision::Allowed,
        Outcome::Denied { .. } => metrics::Decision::Denied,
        Outcome::NeverFits { .. } => metrics::Decision::NeverFits,
        Outcome::Failed(FailurePolicy::Allow) => metrics::Decision::Degraded,
        Outcome::Failed(FailurePolicy::Deny) => metrics::Decision::Unavailable,
    }
}

fn dimension_of(dimension: bucket::Dimension) -> Dimension {
    match dimension {
        bucket::Dimension::User => Dimension::User,
        bucket::Dimension::Key => Dimension::Key,
        bucket::Dimension::Ip => Dimension::Ip,
    }
}

fn policy_of(policy: FailurePolicy) -> Policy {
    match policy {
        FailurePolicy::Allow => Policy::Allow,
        FailurePolicy::Deny => Policy::Deny,
    }
}
