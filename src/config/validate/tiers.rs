//! Tiers and quotas: numbers that make buckets, names that make labels, and a default that gives nothing away.

use super::failure::Failure;
use crate::bucket::{Dimension, Quota, QuotaError};
use crate::config::fault::{Report, field, listed, quoted};
use crate::config::raw::{self, Raw};
use crate::policy::limits::Limits;
use crate::policy::tier::{Tier, Tiers};
use std::collections::BTreeMap;

/// Tiers at most: their names are labels of metrics.
const MAX_TIERS: usize = 1000;

/// The tiers, always with some default one; what is broken is left out and reported.
pub(super) fn tiers(raw: &Raw, base: &Raw, failure: &Failure, report: &mut Report) -> Tiers {
    let mut stated = raw.tiers.as_ref().or(base.tiers.as_ref());
    if stated.is_some_and(|tiers| tiers.len() > MAX_TIERS) {
        report.fault(
            "tiers",
            format!("holds more than {MAX_TIERS} tiers; write fewer, and give single callers their own limits"),
        );
        stated = base.tiers.as_ref();
    }
    let mut tiers = Vec::new();
    for (name, raw) in stated.into_iter().flatten() {
        let on_store_error = raw.on_store_error.map(|policy| failure.policy(policy));
        tiers.extend(tier(name, raw, &tiers, report).map(|tier| Tier { on_store_error, ..tier }));
    }
    let default = raw.default_tier.as_deref().or(base.default_tier.as_deref()).unwrap_or_default();
    let default = match tiers.iter().position(|tier| tier.name.eq_ignore_ascii_case(default)) {
        Some(place) => tiers.remove(place),
        None => {
            report_no_default(raw.default_tier.as_deref(), default, &tiers, report);
            Tier { name: default.to_owned(), limits: Limits::default(), on_store_error: None }
        }
    };
    let broken = ["tiers", "default_tier", "allow_generous_default"].iter().any(|part| report.faults.has_under(part));
    if !raw.allow_generous_default.unwrap_or_default() && !broken {
        report_generous(&default, &tiers, report);
    }
    warn_of_shared_addresses(&default, &tiers, report);
    Tiers::new(default, tiers)
}

/// The name under which a dimension's quota stands.
pub(super) fn per(dimension: Dimension) -> &'static str {
    match dimension {
        Dimension::User => "per_user",
        Dimension::Key => "per_key",
        Dimension::Ip => "per_ip",
    }
}

fn tier(name: &str, raw: &raw::Tier, others: &[Tier], report: &mut Report) -> Option<Tier> {
    const MAX: usize = 64;
    let path = field("tiers", name);
    let lower = name.to_ascii_lowercase();
    let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
    let limits = limits(&path, raw.per_user.as_ref(), raw.per_key.as_ref(), raw.per_ip.as_ref(), report);
    if !(1..=MAX).contains(&lower.len()) || !lower.bytes().all(fits) {
        let right = format!("write 1 to {MAX} of a-z, 0-9, _ and -");
        report.fault(path, format!("{} is no name for a tier; {right}", quoted(name)));
        return None;
    }
    if others.iter().any(|other| other.name == lower) {
        report.fault(path, format!("the tier {} is given twice, in different case; keep one", quoted(&lower)));
        return None;
    }
    warn_of_unlimited(&path, &limits, report);
    Some(Tier { name: lower, limits, on_store_error: None })
}

/// Addresses need no limit where users and keys have theirs: many callers may sit behind one.
fn warn_of_unlimited(path: &str, limits: &Limits, report: &mut Report) {
    let identified = limits.user.is_some() && limits.key.is_some();
    let missed =
        |dimension: &Dimension| limits.of(*dimension).is_none() && !(*dimension == Dimension::Ip && identified);
    for dimension in Dimension::ALL.into_iter().filter(missed) {
        let whose = match dimension {
            Dimension::User => "users",
            Dimension::Key => "API keys",
            Dimension::Ip => "addresses",
        };
        report.warn(path, format!("{} is left out: {whose} are not limited in this tier", per(dimension)));
    }
}

fn report_no_default(stated: Option<&str>, name: &str, tiers: &[Tier], report: &mut Report) {
    if report.faults.has("tiers") || report.faults.has("default_tier") || report.faults.has_under(&field("tiers", name))
    {
        return;
    }
    let known = listed(tiers.iter().map(|tier| tier.name.as_str()));
    let right = if known.is_empty() { "define it under tiers".into() } else { format!("write one of: {known}") };
    match stated {
        Some(_) => report.fault("default_tier", format!("there is no tier {}; {right}", quoted(name))),
        None => report.fault("default_tier", format!("is left out, and there is no tier {}; {right}", quoted(name))),
    }
}

fn report_generous(default: &Tier, others: &[Tier], report: &mut Report) {
    let name = &default.name;
    for other in others {
        for dimension in default.limits.more_generous_than(&other.limits) {
            let path = field(&field("tiers", name), per(dimension));
            let right = "lower it, or set allow_generous_default: true";
            let more = format!("the default tier {name} allows more than the tier {}", other.name);
            report.fault(
                path,
                format!(
                    "{more} ({} against {}); {right}",
                    amount(&default.limits, dimension),
                    amount(&other.limits, dimension)
                ),
            );
        }
    }
}

/// A bucket's name holds the address and not the tier. So whoever asks says how large that bucket is and how it refills.
fn warn_of_shared_addresses(default: &Tier, others: &[Tier], report: &mut Report) {
    let mut limited = std::iter::once(default).chain(others).filter(|tier| tier.limits.ip.is_some());
    let Some(first) = limited.next() else {
        return;
    };
    for tier in limited.filter(|tier| tier.limits.ip != first.limits.ip) {
        let [mine, theirs] = [tier, first].map(|tier| amount(&tier.limits, Dimension::Ip));
        let shared = "callers of both behind one address share one bucket, refilled at the rate of whoever asks";
        let right = "give the same numbers or leave per_ip out of the tiers that are identified otherwise";
        let name = &first.name;
        report.warn(
            field(&field("tiers", &tier.name), per(Dimension::Ip)),
            format!("{mine} differs from {theirs} of tiers.{name}: {shared}; {right}"),
        );
    }
}

fn amount(limits: &Limits, dimension: Dimension) -> String {
    match limits.of(dimension) {
        Some(quota) => format!("{} at {} per second", quota.max_tokens(), quota.refill_rate()),
        None => "no limit".into(),
    }
}

pub(super) fn limits(
    path: &str,
    user: Option<&raw::Quota>,
    key: Option<&raw::Quota>,
    ip: Option<&raw::Quota>,
    report: &mut Report,
) -> Limits {
    let mut read =
        |dimension, raw: Option<&raw::Quota>| raw.and_then(|raw| quota(&field(path, per(dimension)), raw, report));
    Limits { user: read(Dimension::User, user), key: read(Dimension::Key, key), ip: read(Dimension::Ip, ip) }
}

fn quota(path: &str, raw: &raw::Quota, report: &mut Report) -> Option<Quota> {
    let max_tokens = positive(&field(path, "max_tokens"), raw.max_tokens, report);
    let refill_rate = positive(&field(path, "refill_rate"), raw.refill_rate, report);
    let (max_tokens, refill_rate) = (max_tokens?, refill_rate?);
    match Quota::parse(max_tokens, refill_rate) {
        Ok(quota) => {
            if max_tokens < 1.0 {
                let never = "is below 1, the usual cost of a request: no such request ever passes";
                report.warn(field(path, "max_tokens"), format!("{max_tokens} {never}"));
            }
            Some(quota)
        }
        Err(error @ (QuotaError::MaxTokens | QuotaError::TooManyTokens)) => {
            refuse(&field(path, "max_tokens"), max_tokens, error, report)
        }
        Err(error @ QuotaError::RefillRate) => refuse(&field(path, "refill_rate"), refill_rate, error, report),
        Err(error @ QuotaError::FillsTooSlowly) => {
            let right = "raise refill_rate, or lower max_tokens";
            report.fault(path, format!("{max_tokens} tokens at {refill_rate} per second: {error}; {right}"));
            None
        }
    }
}

fn refuse(path: &str, number: f64, error: QuotaError, report: &mut Report) -> Option<Quota> {
    report.fault(path, format!("{number} does not do; {error}"));
    None
}

fn positive(path: &str, number: Option<f64>, report: &mut Report) -> Option<f64> {
    match number {
        Some(number) if number.is_finite() && number > 0.0 => Some(number),
        Some(number) => {
            report.fault(path, format!("{number} is no amount; write a finite number above 0"));
            None
        }
        None => {
            report.fault(path, "is missing; write a finite number above 0");
            None
        }
    }
}

/// The least that a bucket may hold, and where that is said.
#[derive(Clone, Debug)]
pub(super) struct Least {
    pub(super) max_tokens: f64,
    pub(super) path: String,
}

/// The smallest buckets among those that stand apart from tiers, by the name of their dimension.
pub(super) type Smallest = BTreeMap<&'static str, Least>;
