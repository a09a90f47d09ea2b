//! What happens while the store is away: the policies, the share of a replica, and what such a share can never cover.

use super::tiers::{Smallest, per};
use crate::bucket::{Dimension, Quota};
use crate::config::fault::{Report, field, first_few, item};
use crate::config::raw::{self, OnStoreError, Raw};
use crate::policy::decision::FailurePolicy;
use crate::policy::route::Rule;
use crate::policy::tier::{Tier, TierIndex, Tiers};
use std::num::NonZeroU32;

const MAX_REPLICAS: u32 = 10_000;

/// `on_store_error`, wherever it is said, with the number of replicas that `local` needs.
#[derive(Debug)]
pub(super) struct Failure {
    global: OnStoreError,
    /// `None`: left out, or not to be used.
    replicas: Option<NonZeroU32>,
}

impl Failure {
    pub(super) fn read(raw: &Raw, report: &mut Report) -> Self {
        let replicas = raw.replicas_hint.and_then(|stated| replicas(stated, report));
        match (local_at(raw), raw.replicas_hint) {
            (Some(path), None) => {
                let why = "shares the limits among the replicas of tidegate";
                report.fault("replicas_hint", format!("is missing; {path}: local {why}: write how many there are"));
            }
            (None, Some(_)) => report.warn("replicas_hint", "is of no effect: no on_store_error is local"),
            _ => {}
        }
        Self { global: raw.on_store_error.unwrap_or(OnStoreError::Allow), replicas }
    }

    pub(super) fn global(&self) -> FailurePolicy {
        self.policy(self.global)
    }

    pub(super) fn policy(&self, stated: OnStoreError) -> FailurePolicy {
        match (stated, self.replicas) {
            (OnStoreError::Allow, _) => FailurePolicy::Allow,
            (OnStoreError::Local, Some(replicas)) => FailurePolicy::Local { replicas },
            // `local` without a number of replicas is a fault, which was told: this is not to be used.
            (OnStoreError::Deny, _) | (OnStoreError::Local, None) => FailurePolicy::Deny,
        }
    }

    /// Whether `local` is what counts, where a rule and a tier say this much.
    fn is_local(&self, rule: Option<&Rule>, tier: &Tier) -> bool {
        let closer = rule.and_then(|rule| rule.on_store_error).or(tier.on_store_error);
        matches!(closer.unwrap_or(self.global()), FailurePolicy::Local { .. })
    }

    /// Warns of what no share ever covers: it is refused for as long as the store is away.
    pub(super) fn warn_of_small_shares(&self, tiers: &Tiers, smallest: &Smallest, rules: &[Rule], report: &mut Report) {
        let Some(replicas) = self.replicas else { return };
        let under_rules = |index, tier| rules.iter().any(|rule| meets(rule, index) && self.is_local(Some(rule), tier));
        let mut warn = |path: &str, max_tokens: f64| {
            if max_tokens >= 1.0 && max_tokens < f64::from(replicas.get()) {
                let text = format!("{max_tokens} is less than 1, the usual cost, for each of {replicas} replicas");
                report.warn(field(path, "max_tokens"), format!("{text}: {REFUSED}"));
            }
        };
        let mut anywhere = false;
        for (index, tier) in tiers.iter().enumerate() {
            if self.is_local(None, tier) || under_rules(index, tier) {
                anywhere = true;
                quotas(tier).for_each(|(path, quota)| warn(&path, quota.max_tokens()));
            }
        }
        smallest.values().filter(|_| anywhere).for_each(|least| warn(&least.path, least.max_tokens));
        for (place, rule) in rules.iter().enumerate() {
            self.warn_of_dear_rule(&item("rules", place), rule, tiers, replicas, report);
        }
    }

    /// Warns of a default tier to which an outage is kinder than to another.
    pub(super) fn warn_of_kind_default(&self, tiers: &Tiers, report: &mut Report) {
        let policy = |tier: &Tier| kindness(tier.on_store_error.unwrap_or(self.global()));
        let default = tiers.default_tier();
        let strictest = tiers.iter().min_by_key(|tier| policy(tier).0).filter(|tier| policy(tier) < policy(default));
        if let Some(other) = strictest {
            let (mine, theirs) = (policy(default).1, policy(other).1);
            let more = format!("{mine} of the default tier lets more pass than {theirs} of tiers.{}", other.name);
            let text = format!("{more}: who hides who they are gain by it while Redis is away");
            report.warn(field(&field("tiers", &default.name), "on_store_error"), text);
        }
    }

    fn warn_of_dear_rule(&self, path: &str, rule: &Rule, tiers: &Tiers, replicas: NonZeroU32, report: &mut Report) {
        let Some(cost) = rule.cost.filter(|cost| *cost > 1.0) else { return };
        let charged = |charge: Dimension| rule.dimensions.as_ref().is_none_or(|chosen| chosen.contains(&charge));
        let local = |(index, tier): &(TierIndex, &Tier)| meets(rule, *index) && self.is_local(Some(rule), tier);
        let small = |quota: &Quota| quota.max_tokens() >= cost && quota.share(replicas).max_tokens() < cost;
        let short: Vec<String> = tiers
            .iter()
            .enumerate()
            .filter(local)
            .flat_map(|(_, tier)| Dimension::ALL.into_iter().map(move |dimension| (tier, dimension)))
            .filter(|(tier, dimension)| charged(*dimension) && tier.limits.of(*dimension).as_ref().is_some_and(small))
            .map(|(tier, dimension)| place_of(tier, dimension))
            .collect();
        if !short.is_empty() {
            let text = format!("{cost} is above what one of {replicas} replicas holds of {}", first_few(&short));
            report.warn(field(path, "cost"), format!("{text}: {REFUSED}"));
        }
    }
}

const REFUSED: &str = "under on_store_error: local such requests are answered 503";

/// Policies in the order of what they let pass, with their names.
fn kindness(policy: FailurePolicy) -> (u8, &'static str) {
    match policy {
        FailurePolicy::Deny => (0, "deny"),
        FailurePolicy::Local { .. } => (1, "local"),
        FailurePolicy::Allow => (2, "allow"),
    }
}

fn quotas(tier: &Tier) -> impl Iterator<Item = (String, Quota)> {
    Dimension::ALL.into_iter().filter_map(|dimension| Some((place_of(tier, dimension), tier.limits.of(dimension)?)))
}

/// Where a tier's quota stands.
fn place_of(tier: &Tier, dimension: Dimension) -> String {
    field(&field("tiers", &tier.name), per(dimension))
}

/// The first place where `local` is said.
fn local_at(raw: &Raw) -> Option<String> {
    let local = |stated: Option<OnStoreError>| matches!(stated, Some(OnStoreError::Local));
    let tier = |(name, tier): (&String, &raw::Tier)| local(tier.on_store_error).then(|| field("tiers", name));
    let rule = |(index, rule): (usize, Option<&raw::Rule>)| local(rule?.on_store_error).then(|| item("rules", index));
    let inside = || {
        let tiers = raw.tiers.iter().flatten().find_map(tier);
        tiers.or_else(|| raw.rules.iter().flat_map(raw::List::entries).find_map(rule))
    };
    let base = if local(raw.on_store_error) { Some(String::new()) } else { inside() };
    base.map(|base| field(&base, "on_store_error"))
}

fn replicas(stated: u64, report: &mut Report) -> Option<NonZeroU32> {
    let number = u32::try_from(stated).ok().filter(|number| *number <= MAX_REPLICAS).and_then(NonZeroU32::new);
    if number.is_none() {
        report.fault("replicas_hint", format!("{stated} is out of range; write 1 to {MAX_REPLICAS}"));
    }
    number
}

/// Whether requests of that tier may fall under a rule.
fn meets(rule: &Rule, tier: TierIndex) -> bool {
    !rule.exempt && rule.tier.is_none_or(|fixed| fixed == tier)
}
