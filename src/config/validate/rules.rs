//! Rules: what they match, and whether what they cost can be paid at all.

use super::callers::{refuse_again, tier_at};
use super::failure::Failure;
use super::identity::WRITTEN_BY_CLIENT;
use super::text::{each, header_name, is_token, label};
use super::tiers::{Smallest, per};
use crate::bucket::Dimension;
use crate::config::fault::{Report, field, first_few, listed, quoted};
use crate::config::raw::{self, List};
use crate::policy::route::{Conditions, HeaderCondition, PathCondition, Rule, ValueCondition};
use crate::policy::tier::Tiers;
use globset::{GlobBuilder, GlobMatcher};
use std::collections::HashMap;

/// Rules at most: every request is held against them one after the other.
const MAX_RULES: usize = 10_000;

pub(super) fn rules(
    list: Option<&List<raw::Rule>>,
    tiers: &Tiers,
    smallest: &Smallest,
    failure: &Failure,
    report: &mut Report,
) -> Vec<Rule> {
    let mut seen = HashMap::new();
    let mut rules = Vec::new();
    let mut catch_all: Option<String> = None;
    if list.is_some_and(|list| list.len() > MAX_RULES) {
        report.fault("rules", format!("holds more than {MAX_RULES} rules; write fewer, with globs"));
        return rules;
    }
    each("rules", list, report, |path, raw, report| {
        let name = name(path, raw, report);
        if let Some(name) = &name {
            refuse_again(&mut seen, name.clone(), &field(path, "name"), path, report);
        }
        if let Some(first) = &catch_all {
            let only = "only Envoy's context extension tidegate.rule leads here";
            report.warn(path, format!("comes after {}, which matches everything: {only}", quoted(first)));
        }
        warn_of_chosen_by_client(path, raw, report);
        let on_store_error = raw.on_store_error.map(|policy| failure.policy(policy));
        let rule = Rule { on_store_error, ..rule(path, raw, name.unwrap_or_default(), tiers, report) };
        report_unpayable(path, &rule, tiers, smallest, report);
        if catch_all.is_none() && is_catch_all(&rule) {
            catch_all = Some(rule.name.clone());
        }
        rules.push(rule);
    });
    rules
}

fn name(path: &str, raw: &raw::Rule, report: &mut Report) -> Option<String> {
    let path = field(path, "name");
    match raw.name.as_deref() {
        Some(name) => label(&path, name, report),
        None => {
            report.fault(path, "is missing; write a name of your own, such as images");
            None
        }
    }
}

fn is_catch_all(rule: &Rule) -> bool {
    let Conditions { methods, hosts, path, headers, extensions } = &rule.when;
    methods.is_empty() && hosts.is_empty() && path.is_none() && headers.is_empty() && extensions.is_empty()
}

fn rule(path: &str, raw: &raw::Rule, name: String, tiers: &Tiers, report: &mut Report) -> Rule {
    let exempt = raw.exempt.unwrap_or_default();
    if exempt {
        report_idle(path, raw, report);
    }
    Rule {
        name,
        when: conditions(&field(path, "match"), raw.when.as_ref(), report),
        cost: cost(&field(path, "cost"), raw.cost, report),
        exempt,
        tier: tier_at(path, raw.tier.as_deref(), tiers, report),
        dimensions: dimensions(&field(path, "dimensions"), raw.dimensions.as_ref(), report),
        shadow: raw.shadow.unwrap_or_default(),
        on_store_error: None,
    }
}

/// An exempt request is not charged, so nothing may be said of how it is.
fn report_idle(path: &str, raw: &raw::Rule, report: &mut Report) {
    let stated = [
        ("cost", raw.cost.is_some()),
        ("tier", raw.tier.is_some()),
        ("dimensions", raw.dimensions.is_some()),
        ("shadow", raw.shadow == Some(true)),
        ("on_store_error", raw.on_store_error.is_some()),
    ];
    for (name, _) in stated.into_iter().filter(|(_, stated)| *stated) {
        report.fault(field(path, name), "is of no effect with exempt: true; keep one of them");
    }
}

/// A header that opens more than the caller has is the caller's to write.
fn warn_of_chosen_by_client(path: &str, raw: &raw::Rule, report: &mut Report) {
    let more_than_deny = raw.on_store_error.is_some_and(|policy| policy != raw::OnStoreError::Deny);
    let gains = [
        ("exempt", raw.exempt == Some(true)),
        ("tier", raw.tier.is_some()),
        ("shadow", raw.shadow == Some(true)),
        ("on_store_error", more_than_deny),
    ];
    let gains = listed(gains.into_iter().filter(|(_, stated)| *stated).map(|(name, _)| name));
    let headers = raw.when.as_ref().and_then(|when| when.headers.as_ref());
    if gains.is_empty() {
        return;
    }
    each(&field(&field(path, "match"), "headers"), headers, report, |path, header, report| {
        let name = header.name.as_deref().unwrap_or_default();
        let text = format!("{} {WRITTEN_BY_CLIENT}: whoever sends it chooses this rule's {gains}", quoted(name));
        report.warn(field(path, "name"), text);
    });
}

fn cost(path: &str, cost: Option<f64>, report: &mut Report) -> Option<f64> {
    let cost = cost?;
    if cost.is_finite() && cost >= 0.0 {
        return Some(cost);
    }
    report.fault(path, format!("{cost} is no cost; write a finite number, 0 or more"));
    None
}

fn dimensions(path: &str, list: Option<&List<raw::Dimension>>, report: &mut Report) -> Option<Vec<Dimension>> {
    let mut dimensions = Vec::new();
    each(path, list, report, |path, raw, report| {
        let dimension = match raw {
            raw::Dimension::User => Dimension::User,
            raw::Dimension::Key => Dimension::Key,
            raw::Dimension::Ip => Dimension::Ip,
        };
        if dimensions.contains(&dimension) {
            report.fault(path, format!("{dimension} is listed twice; keep one"));
        }
        dimensions.push(dimension);
    });
    if list?.len() == 0 {
        report.fault(path, "is empty: nothing would be charged; write exempt: true, or list some of user, key, ip");
    }
    Some(dimensions)
}

/// A cost above what a bucket can ever hold is never paid, however long one waits.
fn report_unpayable(path: &str, rule: &Rule, tiers: &Tiers, smallest: &Smallest, report: &mut Report) {
    let broken = ["tiers", "api_keys", "users"].iter().any(|part| report.faults.has_under(part));
    let Some(cost) = rule.cost.filter(|_| !rule.exempt && !broken) else {
        return;
    };
    let charged = |dimension: &Dimension| rule.dimensions.as_ref().is_none_or(|chosen| chosen.contains(dimension));
    let fixed = rule.tier.map(|index| tiers.at(index));
    let met = tiers.iter().filter(|tier| fixed.is_none_or(|fixed| fixed.name == tier.name));
    let mut too_small = Vec::new();
    for tier in met {
        for dimension in Dimension::ALL.into_iter().filter(charged) {
            let quota = tier.limits.of(dimension).filter(|quota| quota.max_tokens() < cost);
            too_small
                .extend(quota.map(|quota| format!("{} of tiers.{}.{}", quota.max_tokens(), tier.name, per(dimension))));
        }
    }
    for dimension in Dimension::ALL.into_iter().filter(charged) {
        let least = smallest.get(per(dimension)).filter(|least| least.max_tokens < cost);
        too_small.extend(least.map(|least| format!("{} of {}", least.max_tokens, least.path)));
    }
    if !too_small.is_empty() {
        let (name, sizes) = (quoted(&rule.name), first_few(&too_small));
        let right = "lower the cost, raise those, or narrow the rule with tier or dimensions";
        let text =
            format!("the rule {name} costs {cost}, which is above the max_tokens {sizes}: it never passes; {right}");
        report.fault(field(path, "cost"), text);
    }
}

fn conditions(path: &str, raw: Option<&raw::Match>, report: &mut Report) -> Conditions {
    let Some(raw) = raw else {
        return Conditions::default();
    };
    Conditions {
        methods: methods(&field(path, "methods"), raw.methods.as_ref(), report),
        hosts: hosts(&field(path, "hosts"), raw.hosts.as_ref(), report),
        path: raw.path.as_ref().and_then(|raw| path_condition(&field(path, "path"), raw, report)),
        headers: headers(&field(path, "headers"), raw.headers.as_ref(), report),
        extensions: extensions(&field(path, "context_extensions"), raw, report),
    }
}

fn methods(path: &str, list: Option<&List<String>>, report: &mut Report) -> Vec<String> {
    each(path, list, report, |path, method, report| {
        if method.is_empty() || method.len() > 64 || !method.bytes().all(is_token) {
            report.fault(path, format!("{} is no HTTP method; write one such as GET", quoted(method)));
        } else if method.bytes().any(|byte| byte.is_ascii_lowercase()) {
            report.fault(path, format!("{} has lower-case letters; write {}", quoted(method), method.to_uppercase()));
        }
    });
    list.into_iter().flat_map(List::entries).filter_map(|(_, method)| method.cloned()).collect()
}

fn hosts(path: &str, list: Option<&List<String>>, report: &mut Report) -> Vec<GlobMatcher> {
    let mut hosts = Vec::new();
    each(path, list, report, |path, host, report| {
        let host = host.to_ascii_lowercase();
        // An IPv6 address in brackets is no set of characters.
        let is_address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).is_some_and(is_ipv6);
        let bare = if is_address { "" } else { host.as_str() };
        if host.is_empty() || bare.contains(['/', ':']) || bare.contains(char::is_whitespace) {
            let right = "write a name such as api.example.com or *.example.com, without scheme, port and path";
            report.fault(path, format!("{} is no host; {right}", quoted(&host)));
        } else {
            hosts.extend(glob(path, &if is_address { globset::escape(&host) } else { host }, report));
        }
    });
    hosts
}

fn is_ipv6(text: &str) -> bool {
    text.parse::<std::net::Ipv6Addr>().is_ok()
}

fn glob(path: &str, text: &str, report: &mut Report) -> Option<GlobMatcher> {
    const MAX: usize = 1024;
    if text.len() > MAX {
        report.fault(path, format!("{} is longer than {MAX} bytes", quoted(text)));
        return None;
    }
    match GlobBuilder::new(text).literal_separator(true).build() {
        Ok(glob) => Some(glob.compile_matcher()),
        Err(error) => {
            report.fault(path, format!("{} is no glob: {}; use *, **, ?, [ab], {{a,b}}", quoted(text), error.kind()));
            None
        }
    }
}

fn path_condition(path: &str, raw: &raw::PathMatch, report: &mut Report) -> Option<PathCondition> {
    match raw {
        raw::PathMatch::Exact(text) => plain_path(&field(path, "exact"), text, report).map(PathCondition::Exact),
        raw::PathMatch::Prefix(text) => plain_path(&field(path, "prefix"), text, report).map(PathCondition::Prefix),
        raw::PathMatch::Glob(text) => {
            let path = field(path, "glob");
            if !text.starts_with(['/', '*', '{', '[']) {
                report.fault(path, format!("{} matches no path; start it with / or **", quoted(text)));
                return None;
            }
            glob(&path, text, report).map(PathCondition::Glob)
        }
    }
}

fn plain_path(path: &str, text: &str, report: &mut Report) -> Option<String> {
    let wrong = if !text.starts_with('/') {
        "is no path; start it with /"
    } else if text.contains(['?', '#']) {
        "holds a query or fragment, and the path is matched without them; cut it at ? or #"
    } else {
        return Some(text.to_owned());
    };
    report.fault(path, format!("{} {wrong}", quoted(text)));
    None
}

fn headers(path: &str, list: Option<&List<raw::HeaderMatch>>, report: &mut Report) -> Vec<HeaderCondition> {
    let mut headers = Vec::new();
    each(path, list, report, |path, raw, report| {
        let place = field(path, "name");
        let name = match raw.name.as_deref() {
            Some(name) => header_name(&place, name, report),
            None => {
                report.fault(place, "is missing; write a header's name such as x-team");
                None
            }
        };
        if let (Some(name), Some(value)) = (name, value_condition(path, raw, report)) {
            headers.push(HeaderCondition { name, value });
        }
    });
    headers
}

fn value_condition(path: &str, raw: &raw::HeaderMatch, report: &mut Report) -> Option<ValueCondition> {
    const RIGHT: &str = "write one of: exact: text, prefix: text, present: true";
    let broken = ["exact", "prefix", "present"].iter().any(|key| report.faults.has(&field(path, key)));
    match (&raw.exact, &raw.prefix, raw.present) {
        (Some(exact), None, None) => Some(ValueCondition::Exact(exact.clone())),
        (None, Some(prefix), None) => Some(ValueCondition::Prefix(prefix.clone())),
        (None, None, Some(true)) => Some(ValueCondition::Present),
        (None, None, Some(false)) => {
            report.fault(field(path, "present"), format!("false is not supported; {RIGHT}"));
            None
        }
        (None, None, None) if broken => None,
        (None, None, None) => {
            report.fault(path, format!("does not say what the header must be; {RIGHT}"));
            None
        }
        _ => {
            report.fault(path, format!("says more than one thing of the header; {RIGHT}"));
            None
        }
    }
}

fn extensions(path: &str, raw: &raw::Match, report: &mut Report) -> Vec<(String, String)> {
    let stated = raw.context_extensions.iter().flatten();
    if stated.clone().any(|(name, _)| name.is_empty()) {
        report.fault(path, "holds an empty name; write the name that the Envoy route states");
    }
    stated.map(|(name, value)| (name.clone(), value.clone())).collect()
}
