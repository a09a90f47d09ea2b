//! What a decision counts as.

use crate::bucket::{self, Taken};
use crate::metrics::{self, Dimension, Metrics, Policy, Source, TierSeries};
use crate::policy::Plan;
use crate::policy::decision::{Decision, FailurePolicy, Outcome};
use crate::store::StoreError;

/// Counts a check that was decided upon what the store answered.
pub(super) fn count(
    metrics: &Metrics,
    tiers: &TierSeries,
    plan: &Plan<'_>,
    decision: &Decision,
    answer: &Result<Option<Taken>, StoreError>,
) {
    tiers.checked(plan.tier, counted_as(&decision.outcome));
    if let Outcome::Denied { exhausted, .. } = &decision.outcome {
        for dimension in exhausted {
            tiers.denied(plan.tier, dimension_of(*dimension), source(answer));
        }
    }
    if let Err(failure) = answer {
        metrics.store_failed(failure.kind());
        metrics.degraded(policy_of(plan.on_store_error));
    }
}

/// Who said that a bucket is exhausted, or covers its cost.
pub(super) fn source(answer: &Result<Option<Taken>, StoreError>) -> Source {
    match answer {
        Err(_) => Source::Local,
        Ok(Some(Taken { source: bucket::Source::DenyCache, .. })) => Source::DenyCache,
        Ok(_) => Source::Store,
    }
}

/// Whether the store itself was called for this answer: of what was not sent at all, it was not.
pub(super) fn called(answer: &Result<Option<Taken>, StoreError>) -> bool {
    match answer {
        Ok(taken) => taken.as_ref().is_some_and(|taken| taken.source == bucket::Source::Store),
        Err(error) => !matches!(error, StoreError::BreakerOpen(_) | StoreError::Overloaded(_)),
    }
}

/// What a decision counts as, whether or not it is carried out.
pub fn counted_as(outcome: &Outcome) -> metrics::Decision {
    match outcome {
        Outcome::Exempt => metrics::Decision::Exempt,
        Outcome::Unlimited => metrics::Decision::Unlimited,
        Outcome::Admitted => metrics::Decision::Allowed,
        Outcome::Denied { .. } => metrics::Decision::Denied,
        Outcome::NeverFits { .. } => metrics::Decision::NeverFits,
        Outcome::Suspended => metrics::Decision::Suspended,
        Outcome::Failed(FailurePolicy::Allow) => metrics::Decision::Degraded,
        Outcome::Failed(FailurePolicy::Deny | FailurePolicy::Local { .. }) => metrics::Decision::Unavailable,
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
        FailurePolicy::Local { .. } => Policy::Local,
    }
}
