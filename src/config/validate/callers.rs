//! Known API keys and known users, and the tiers that are named for them.

use super::text::{each, label};
use super::tiers::{Least, Smallest, limits, per};
use crate::bucket::Dimension;
use crate::config::fault::{Report, field, item, listed, nearest, quoted};
use crate::config::raw::{self, List, Raw};
use crate::policy::api_key::{ApiKey, ApiKeys, Digest};
use crate::policy::identity::stored_user;
use crate::policy::limits::{User, Users};
use crate::policy::tier::{TierIndex, Tiers};
use std::collections::HashMap;

/// The place of a tier that is named at `path`.
pub(super) fn tier_at(path: &str, name: Option<&str>, tiers: &Tiers, report: &mut Report) -> Option<TierIndex> {
    let name = name?;
    let index = tiers.index(name.as_bytes());
    let broken = report.faults.has("tiers") || report.faults.has_under(&field("tiers", name));
    if index.is_none() && !broken {
        let known = || tiers.iter().map(|tier| tier.name.as_str());
        let right = match nearest(name, known()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("write one of: {}", listed(known())),
        };
        report.fault(field(path, "tier"), format!("there is no tier {}; {right}", quoted(name)));
    }
    index
}

pub(super) fn api_keys(list: Option<&List<raw::ApiKey>>, tiers: &Tiers, report: &mut Report) -> ApiKeys {
    let mut seen = HashMap::new();
    let mut keys = Vec::new();
    each("api_keys", list, report, |path, raw, report| {
        let tier = tier_at(path, raw.tier.as_deref(), tiers, report);
        let name = raw.name.as_deref().map(|name| label(&field(path, "name"), name, report));
        let limits = limits(path, raw.per_user.as_ref(), raw.per_key.as_ref(), raw.per_ip.as_ref(), report);
        let Some(digest) = digest(&field(path, "digest"), raw.digest.as_deref(), report) else {
            return;
        };
        refuse_again(&mut seen, digest, &field(path, "digest"), path, report);
        let name = name.flatten().unwrap_or_else(|| digest.to_string()).into();
        let suspended = raw.suspended.unwrap_or_default();
        keys.push((digest, ApiKey { name, tier, suspended, limits }));
    });
    keys.into_iter().collect()
}

/// The text is not repeated: it may be the key itself, written here by mistake.
fn digest(path: &str, text: Option<&str>, report: &mut Report) -> Option<Digest> {
    const RIGHT: &str = "write the 32 lower-case hex digits that `tidegate hash-key` prints, never the key itself";
    match text.map(str::parse) {
        Some(Ok(digest)) => return Some(digest),
        Some(Err(_)) => report.fault(path, format!("is no digest; {RIGHT}")),
        None => report.fault(path, format!("is missing; {RIGHT}")),
    }
    None
}

pub(super) fn users(list: Option<&List<raw::User>>, tiers: &Tiers, report: &mut Report) -> Users {
    let mut seen = HashMap::new();
    let mut users = Vec::new();
    each("users", list, report, |path, raw, report| {
        let tier = tier_at(path, raw.tier.as_deref(), tiers, report);
        let limits = limits(path, raw.per_user.as_ref(), raw.per_key.as_ref(), raw.per_ip.as_ref(), report);
        let Some(id) = raw.id.as_deref().filter(|id| !id.is_empty()) else {
            report.fault(field(path, "id"), "is missing; write the user's id as the identity provider gives it");
            return;
        };
        let id = stored_user(id.as_bytes()).into_owned();
        refuse_again(&mut seen, id.clone(), &field(path, "id"), path, report);
        users.push((id, User { tier, limits }));
    });
    users.into_iter().collect()
}

/// Reports what was seen before, at the place where it is seen again.
pub(super) fn refuse_again<T: std::hash::Hash + Eq>(
    seen: &mut HashMap<T, String>,
    what: T,
    path: &str,
    entry: &str,
    report: &mut Report,
) {
    if let Some(before) = seen.get(&what) {
        report.fault(path, format!("is the same as that of {before}; keep one"));
    } else {
        seen.insert(what, entry.to_owned());
    }
}

/// The smallest buckets that API keys and users have instead of their tier's.
pub(super) fn smallest(raw: &Raw) -> Smallest {
    let mut smallest = Smallest::new();
    let mut note = |path: String, quotas: [Option<raw::Quota>; 3]| {
        for (dimension, quota) in Dimension::ALL.into_iter().zip(quotas) {
            let Some(max_tokens) = quota.and_then(|quota| quota.max_tokens) else {
                continue;
            };
            let name = per(dimension);
            if smallest.get(name).is_none_or(|least| max_tokens < least.max_tokens) {
                smallest.insert(name, Least { max_tokens, path: field(&path, name) });
            }
        }
    };
    for (index, key) in entries(raw.api_keys.as_ref()) {
        note(item("api_keys", index), [key.per_user, key.per_key, key.per_ip]);
    }
    for (index, user) in entries(raw.users.as_ref()) {
        note(item("users", index), [user.per_user, user.per_key, user.per_ip]);
    }
    smallest
}

fn entries<T>(list: Option<&List<T>>) -> impl Iterator<Item = (usize, &T)> {
    list.into_iter().flat_map(List::entries).filter_map(|(index, entry)| Some((index, entry?)))
}
