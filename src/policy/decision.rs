//! What the caller is told: admitted or denied, why, and when to come again.
//!
//! Failing open, closed or into buckets of one's own is a rule like any other, so it is decided here and tested without
//! a broken store.

use super::{Plan, Step};
use crate::bucket::{Charge, Charges, Dimension, Level, Taken};
use smallvec::SmallVec;
use std::num::NonZeroU32;

/// Whether denials are carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Enforce,
    /// Everything is counted and told, nothing is denied.
    Shadow,
}

impl Mode {
    /// As the configuration spells it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
        }
    }
}

/// What to do while the store does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// Let the request pass: over-admission for a while beats a total outage.
    #[default]
    Allow,
    /// Let nothing pass.
    Deny,
    /// Go on with buckets in this process, each with its share of the limits.
    Local {
        /// How many processes there are to share them.
        replicas: NonZeroU32,
    },
}

impl FailurePolicy {
    /// As the configuration spells it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Local { .. } => "local",
        }
    }
}

/// How decisions are told to Envoy and to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answers {
    /// Send `x-ratelimit-limit`, `-remaining` and `-reset`.
    pub x_ratelimit: bool,
    /// Send the IETF draft's `RateLimit` and `RateLimit-Policy`.
    pub ietf: bool,
    pub error_answer: ErrorAnswer,
    pub suspended: SuspendedAnswer,
    /// Remove the headers that carry API keys before the request goes upstream.
    pub strip_api_key: bool,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            x_ratelimit: true,
            ietf: false,
            error_answer: ErrorAnswer::default(),
            suspended: SuspendedAnswer::default(),
            strip_api_key: false,
        }
    }
}

/// How a suspended API key is denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SuspendedAnswer {
    /// 403, and PERMISSION_DENIED for gRPC clients.
    #[default]
    Forbidden,
    /// 429, and RESOURCE_EXHAUSTED.
    TooManyRequests,
}

/// How Envoy is told that the store failed and that the policy is to deny.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorAnswer {
    /// `error_response`: Envoy 1.37 and later count it as their own `error`.
    #[default]
    ErrorResponse,
    /// The call itself fails, for Envoys that do not know `error_response`.
    GrpcStatus,
}

/// The store did not answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unavailable<'a> {
    /// The kind of its failure, a short constant name.
    pub error: &'static str,
    /// What this process's own buckets answered instead, if the plan is to ask them.
    pub local: Option<&'a Local>,
}

/// What buckets of this process made of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Local {
    /// The plan's charges, on the share of their quotas that is this process's: [`Plan::share`].
    pub charges: Charges,
    pub taken: Taken,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// A rule takes it out of all limits.
    Exempt,
    /// The API key is suspended: no waiting helps.
    Suspended,
    /// No limit is configured that concerns it.
    Unlimited,
    /// Every bucket covered its cost.
    Admitted,
    /// A bucket did not cover its cost.
    Denied {
        /// Seconds, at least 1.
        retry_after: u64,
        exhausted: SmallVec<[Dimension; 3]>,
    },
    /// The cost is above what a bucket can ever hold: no waiting helps.
    NeverFits { exceeded: SmallVec<[Dimension; 3]> },
    /// The store did not answer, and neither did buckets of this process: [`FailurePolicy::Local`] stands here where no
    /// share ever covers the cost.
    Failed(FailurePolicy),
}

/// How one bucket stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    pub dimension: Dimension,
    /// Whole tokens in a full bucket.
    pub limit: u64,
    /// Whole tokens left.
    pub remaining: u64,
    /// Seconds until the bucket is full.
    pub reset: u64,
    /// Seconds an empty bucket takes to fill.
    pub window: u64,
}

/// What came of a request, to be told with its [`Plan`].
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub outcome: Outcome,
    pub mode: Mode,
    /// The bucket with the fewest requests left, of a denial the one with the longest wait: its place among the plan's
    /// charges, and how it stands.
    pub binding: Option<(usize, Standing)>,
    /// The kind of the store's failure, where this was decided without it.
    pub store_error: Option<&'static str>,
}

impl Decision {
    /// Whether this was decided without the store that was asked.
    pub fn degraded(&self) -> bool {
        self.store_error.is_some()
    }

    /// Whether the request goes on.
    pub fn passes(&self) -> bool {
        use Outcome::{Admitted, Exempt, Failed, Unlimited};
        self.mode == Mode::Shadow
            || matches!(self.outcome, Exempt | Unlimited | Admitted | Failed(FailurePolicy::Allow))
    }
}

/// Says what the caller is told. `answer` is what the store made of [`Plan::step`], and `None` where it was not to be
/// asked.
pub fn decide(plan: &Plan<'_>, answer: Result<Option<&Taken>, Unavailable<'_>>) -> Decision {
    let (outcome, binding) = match (plan.step(), answer) {
        _ if plan.suspended => (Outcome::Suspended, None),
        (Step::NeverFits, _) => never_fits(plan),
        (Step::Nothing, _) => (if plan.exempt { Outcome::Exempt } else { Outcome::Unlimited }, None),
        (_, Ok(Some(taken))) => weigh(&plan.charges, taken),
        (_, Err(Unavailable { local: Some(local), .. })) => weigh(&local.charges, &local.taken),
        (_, Ok(None) | Err(Unavailable { local: None, .. })) => (Outcome::Failed(plan.on_store_error), None),
    };
    Decision { outcome, mode: plan.mode, binding, store_error: answer.err().map(|unavailable| unavailable.error) }
}

type Binding = Option<(usize, Standing)>;

fn never_fits(plan: &Plan<'_>) -> (Outcome, Binding) {
    let exceeded = plan.never_fits().map(|charge| charge.key.dimension).collect();
    (Outcome::NeverFits { exceeded }, None)
}

fn weigh(charges: &[Charge], taken: &Taken) -> (Outcome, Binding) {
    let buckets = || charges.iter().zip(taken.levels.iter()).enumerate();
    if taken.admitted {
        let least = buckets().min_by(|(_, a), (_, b)| requests_left(a).total_cmp(&requests_left(b)));
        return (Outcome::Admitted, least.map(|(place, (charge, level))| (place, standing(charge, level))));
    }
    let exhausted = buckets().filter(|(_, (charge, level))| level.tokens(&charge.quota) < charge.cost);
    let dimensions = exhausted.clone().map(|(_, (charge, _))| charge.key.dimension).collect();
    let waits =
        exhausted.map(|(place, (charge, level))| (level.wait(&charge.quota, charge.cost), place, charge, level));
    let longest = waits.max_by_key(|(wait, ..)| *wait);
    let retry_after = longest.map_or(1, |(wait, ..)| wait.max(1));
    let binding =
        longest.map(|(_, place, charge, level)| (place, Standing { remaining: 0, ..standing(charge, level) }));
    (Outcome::Denied { retry_after, exhausted: dimensions }, binding)
}

/// How many more requests of this cost a bucket covers; a free one is weighed as if it cost 1.
fn requests_left((charge, level): &(&Charge, &Level)) -> f64 {
    let cost = if charge.cost > 0.0 { charge.cost } else { 1.0 };
    (level.tokens(&charge.quota) / cost).floor()
}

fn standing(charge: &Charge, level: &Level) -> Standing {
    let quota = &charge.quota;
    Standing {
        dimension: charge.key.dimension,
        limit: quota.max_tokens().floor() as u64,
        remaining: level.tokens(quota).max(0.0).floor() as u64,
        reset: level.wait(quota, quota.max_tokens()),
        window: quota.fill_seconds(),
    }
}
