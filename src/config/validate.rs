//! Raw config -> proven config, with every fault at once.
//!
//! Each part reports what it finds and gives what it can, so that one fault does not hide another. Where a part is
//! broken, the checks that compare it with others are left out: their faults would be consequences.

mod audit;
mod callers;
mod failure;
mod identity;
mod jwt;
mod redis;
mod rules;
mod settings;
mod text;
mod tiers;
mod tls;
mod traces;

use super::env::Overrides;
use super::fault::Report;
use super::raw::{self, Raw};
use super::settings::Settings;
use crate::policy::Policy;
use crate::policy::decision::{Answers, ErrorAnswer, Mode, SuspendedAnswer};
use crate::policy::identity::Sources;
use failure::Failure;

/// Checks `raw`, overridden by `overrides`. `None`, or something that is not to be used, when there are faults.
pub(super) fn validate(raw: Raw, overrides: &Overrides, report: &mut Report) -> Option<(Policy, Settings)> {
    let base = builtin();
    let key_prefix = key_prefix(raw.key_prefix.as_deref(), report);
    let settings = settings::settings(&raw, key_prefix.as_deref(), overrides, report);
    let sources = identity::sources(raw.identity.as_ref(), base.identity.as_ref(), overrides, report);
    let jwt = jwt::jwt(raw.identity.as_ref(), sources.as_ref(), overrides.files, report);
    let failure = Failure::read(&raw, report);
    let tiers = tiers::tiers(&raw, &base, &failure, report);
    let api_keys = callers::api_keys(raw.api_keys.as_ref(), &tiers, report);
    let users = callers::users(raw.users.as_ref(), &tiers, report);
    let smallest = callers::smallest(&raw);
    let rules = rules::rules(raw.rules.as_ref(), &tiers, &smallest, &failure, report);
    failure.warn_of_kind_default(&tiers, report);
    failure.warn_of_small_shares(&tiers, &smallest, &rules, report);
    if let Some(sources) = &sources {
        warn_of_unread(&raw, sources, report);
    }
    let policy = Policy {
        key_prefix: key_prefix?,
        tiers,
        sources: sources?,
        api_keys,
        users,
        rules,
        mode: mode(raw.mode),
        on_store_error: failure.global(),
        answers: answers(&raw, report),
    };
    Some((policy, Settings { jwt: jwt?, ..settings? }))
}

/// A filter for logs, given at `path`.
pub(super) fn log_filter(path: &str, text: &str, report: &mut Report) -> Option<String> {
    settings::filter_of(&super::env::Given::new(path, text), report)
}

/// What is used of the built-in config where the file says nothing. Read through the very same steps.
fn builtin() -> Raw {
    let mut report = Report::default();
    let tree = super::builtin_tree(&mut report.faults);
    let raw = super::structure::read(tree, &mut report.faults);
    debug_assert!(report.faults.is_empty(), "the built-in config has no faults: {}", report.faults);
    raw
}

fn key_prefix(prefix: Option<&str>, report: &mut Report) -> Option<String> {
    let prefix = prefix.unwrap_or("rl:");
    if is_of_key(prefix) {
        return Some(prefix.to_owned());
    }
    let right = format!("write at most {MAX_OF_KEY} bytes of printable ASCII without blanks, {{ and }}");
    report.fault("key_prefix", format!("{} cannot start a key; {right}", super::fault::quoted(prefix)));
    None
}

/// What an operator may choose of a key in Redis, in bytes.
const MAX_OF_KEY: usize = 64;

/// Whether a text may stand in a key in Redis: it chooses no slot of a Cluster.
fn is_of_key(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
    text.len() <= MAX_OF_KEY && text.bytes().all(fits)
}

fn mode(mode: Option<raw::Mode>) -> Mode {
    match mode {
        Some(raw::Mode::Shadow) => Mode::Shadow,
        Some(raw::Mode::Enforce) | None => Mode::Enforce,
    }
}

fn answers(raw: &Raw, report: &mut Report) -> Answers {
    let usual = Answers::default();
    text::each("headers", raw.headers.as_ref(), report, |_, _, _| {});
    let error_answer = match raw.error_answer {
        Some(raw::ErrorAnswer::GrpcStatus) => ErrorAnswer::GrpcStatus,
        Some(raw::ErrorAnswer::ErrorResponse) | None => ErrorAnswer::ErrorResponse,
    };
    let (mut x_ratelimit, mut ietf) = (usual.x_ratelimit, usual.ietf);
    if let Some(sets) = &raw.headers {
        let has = |wanted: fn(&raw::HeaderSet) -> bool| sets.entries().any(|(_, set)| set.is_some_and(wanted));
        x_ratelimit = has(|set| matches!(set, raw::HeaderSet::XRatelimit));
        ietf = has(|set| matches!(set, raw::HeaderSet::Ietf));
    }
    let suspended = suspended_answer(raw.suspended_answer, report);
    let strip_api_key = raw.strip_api_key.unwrap_or(usual.strip_api_key);
    Answers { x_ratelimit, ietf, error_answer, suspended, strip_api_key }
}

fn suspended_answer(status: Option<u64>, report: &mut Report) -> SuspendedAnswer {
    match status {
        Some(403) | None => SuspendedAnswer::Forbidden,
        Some(429) => SuspendedAnswer::TooManyRequests,
        Some(other) => {
            report.fault("suspended_answer", format!("{other} is no status for a suspended key; write 403 or 429"));
            SuspendedAnswer::default()
        }
    }
}

/// Warns of what is configured but never read, because `identity` has no source for it.
fn warn_of_unread(raw: &Raw, sources: &Sources, report: &mut Report) {
    use crate::policy::tier::TierSource;
    let keys_with_tier =
        raw.api_keys.iter().flat_map(raw::List::entries).any(|(_, key)| key.is_some_and(|key| key.tier.is_some()));
    if keys_with_tier && !sources.tier.contains(&TierSource::ApiKey) {
        report.warn("identity.tier", "does not list api_key: the tiers that api_keys states are never read");
    }
    if sources.user.is_empty() {
        report.warn("identity.user", "is empty: no user is known, and per_user limits nobody");
    }
    if sources.key.is_empty() {
        report.warn("identity.key", "is empty: no API key is read, and per_key limits nobody");
    }
}
