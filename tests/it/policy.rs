//! Who is charged what: identities, tiers, rules and limits together, without a store.

use crate::support;
use std::collections::HashMap;
use tidegate::bucket::{Dimension, Quota};
use tidegate::policy::api_key::{ApiKey, Digester};
use tidegate::policy::client_ip::AddressSource;
use tidegate::policy::decision::{FailurePolicy, Mode, Outcome, Unavailable, decide};
use tidegate::policy::identity::{KeySource, MetadataPath, Sources, UserSource};
use tidegate::policy::limits::{Limits, User};
use tidegate::policy::request::{Metadata, Request, Scalar};
use tidegate::policy::route::{
    COST_EXTENSION, Conditions, HeaderCondition, Oddity, PathCondition, RULE_EXTENSION, Rule, ValueCondition,
};
use tidegate::policy::tier::{Tier, TierIndex, TierSource, Tiers};
use tidegate::policy::{Plan, Policy, Step};

fn quota(max_tokens: f64) -> Option<Quota> {
    Some(Quota::parse(max_tokens, 1.0).unwrap())
}

fn limits(max_tokens: f64) -> Limits {
    Limits { user: quota(max_tokens), key: quota(max_tokens), ip: quota(max_tokens) }
}

fn claim(name: &str) -> MetadataPath {
    MetadataPath { namespace: "jwt".into(), path: vec!["claims".into(), name.into()] }
}

/// Tiers free (10), standard (60), enterprise (1500); key `sk-acme` is enterprise's with 5000; user vip has 77.
fn policy() -> Policy {
    let tier = |name: &str, max| Tier { name: name.into(), limits: limits(max), on_store_error: None };
    let acme = ApiKey { limits: Limits { key: quota(5000.0), ..Limits::default() }, ..api_key("acme", Some(2)) };
    let vip = User { tier: None, limits: Limits { user: quota(77.0), ..Limits::default() } };
    let sources = Sources {
        user: vec![UserSource::Metadata(claim("sub")), UserSource::Principal],
        key: vec![KeySource::Header("x-api-key".into())],
        ip: AddressSource::Peer,
        tier: vec![TierSource::Metadata(claim("tier")), TierSource::ApiKey],
        ..Sources::default()
    };
    let tiers = Tiers::new(tier("free", 10.0), vec![tier("standard", 60.0), tier("enterprise", 1500.0)]);
    Policy {
        api_keys: [(Digester::default().digest(b"sk-acme"), acme)].into_iter().collect(),
        users: [("vip".to_owned(), vip)].into_iter().collect(),
        ..support::policy(tiers, sources)
    }
}

fn api_key(name: &str, tier: Option<TierIndex>) -> ApiKey {
    ApiKey { name: name.into(), tier, suspended: false, limits: Limits::default() }
}

fn rule(name: &str) -> Rule {
    Rule {
        name: name.into(),
        when: Conditions::default(),
        cost: None,
        exempt: false,
        tier: None,
        dimensions: None,
        shadow: false,
        on_store_error: None,
    }
}

#[derive(Debug, Default)]
struct Claims(HashMap<&'static str, &'static str>);

impl Metadata for Claims {
    fn find(&self, namespace: &str, path: &[String]) -> Option<Scalar<'_>> {
        assert_eq!((namespace, path[0].as_str()), ("jwt", "claims"));
        self.0.get(path[1].as_str()).map(|text| Scalar::Text(text.as_bytes()))
    }
}

fn claims<const N: usize>(pairs: [(&'static str, &'static str); N]) -> Claims {
    Claims(pairs.into_iter().collect())
}

fn request(claims: &Claims) -> Request<'_> {
    Request {
        method: b"POST",
        host: b"API.example:443",
        path: b"/v1/chat/completions?stream=1",
        peer: Some(b"192.0.2.7"),
        metadata: Some(claims),
        ..Request::default()
    }
}

/// The plan of a request of whose key nothing is known but what the policy says.
fn plan<'p>(policy: &'p Policy, request: &Request<'_>) -> Plan<'p> {
    policy.plan(policy.draft(request), None)
}

fn charged(policy: &Policy, request: &Request<'_>) -> Vec<(String, f64)> {
    let plan = plan(policy, request);
    plan.charges.iter().map(|charge| (charge.key.as_str().to_owned(), charge.quota.max_tokens())).collect()
}

#[test]
fn a_request_is_charged_to_its_user_its_key_and_its_address() {
    let claims = claims([("sub", "alice"), ("tier", "Standard")]);
    let mut request = request(&claims);
    request.headers.push((b"x-api-key", b"sk-other"));
    let digest = Digester::default().digest(b"sk-other");
    let expected =
        [("rl:user:alice".to_owned(), 60.0), (format!("rl:key:{digest}"), 60.0), ("rl:ip:192.0.2.7".to_owned(), 60.0)];
    assert_eq!(charged(&policy(), &request), expected);
}

#[test]
fn who_has_no_identity_is_charged_to_the_address_alone() {
    let claims = claims([]);
    assert_eq!(charged(&policy(), &request(&claims)), [("rl:ip:192.0.2.7".to_owned(), 10.0)]);
    assert_eq!(charged(&policy(), &Request::default()), [("rl:ip:unknown".to_owned(), 10.0)]);
}

#[test]
fn unknown_malformed_and_missing_tiers_are_the_default_tier() {
    for tier in ["gold", "", "enterprise ", "enterprise\0", "free,enterprise", "0", "ENTERPRISEE"] {
        let claims = claims([("sub", "a"), ("tier", tier)]);
        assert_eq!(plan(&policy(), &request(&claims)).tier, "free", "{tier:?}");
    }
    let claims = claims([("tier", "EnterPrise")]);
    assert_eq!(plan(&policy(), &request(&claims)).tier, "enterprise", "the case of a name does not matter");
}

#[test]
fn a_claim_goes_before_the_keys_metadata_and_a_rule_before_both() {
    let (standard, none) = (claims([("tier", "standard")]), claims([]));
    let mut policy = policy();
    let with_key = |claims| {
        let mut request = request(claims);
        request.headers.push((b"x-api-key", b"sk-acme"));
        request
    };
    assert_eq!(plan(&policy, &with_key(&none)).tier, "enterprise");
    assert_eq!(plan(&policy, &with_key(&standard)).tier, "standard");
    policy.rules.push(Rule { tier: Some(0), ..rule("all") });
    assert_eq!(plan(&policy, &with_key(&standard)).tier, "free");
}

#[test]
fn a_keys_and_a_users_own_limits_go_before_their_tiers() {
    let claims = claims([("sub", "vip")]);
    let mut request = request(&claims);
    request.headers.push((b"x-api-key", b"sk-acme"));
    let policy = policy();
    let limits: Vec<f64> = charged(&policy, &request).into_iter().map(|(_, max)| max).collect();
    assert_eq!(limits, [77.0, 5000.0, 1500.0]);
    assert_eq!(plan(&policy, &request).key_name.as_deref(), Some("acme"));
}

#[test]
fn what_is_known_of_a_key_elsewhere_counts_like_what_the_policy_says_but_after_it() {
    let claims = claims([("sub", "alice")]);
    let with_key = |key: &'static [u8]| {
        let mut request = request(&claims);
        request.headers.push((b"x-api-key", key));
        request
    };
    let policy = policy();
    let found = ApiKey { limits: Limits { key: quota(7.0), ..Limits::default() }, ..api_key("found", Some(1)) };

    let draft = policy.draft(&with_key(b"sk-other"));
    assert_eq!(draft.unknown_key(), Some(Digester::default().digest(b"sk-other")));
    let plan = policy.plan(draft, Some(&found));
    let limits: Vec<f64> = plan.charges.iter().map(|charge| charge.quota.max_tokens()).collect();
    assert_eq!((plan.tier, plan.key_name.as_deref(), limits), ("standard", Some("found"), vec![60.0, 7.0, 60.0]));

    let draft = policy.draft(&with_key(b"sk-acme"));
    assert_eq!(draft.unknown_key(), None, "the policy knows it");
    assert_eq!(policy.plan(draft, Some(&found)).tier, "enterprise");
}

#[test]
fn the_order_of_tier_sources_holds_around_a_key_that_is_known_elsewhere() {
    let mut policy = policy();
    let (before, after) = (TierSource::Metadata(claim("before")), TierSource::Metadata(claim("after")));
    policy.sources.tier = vec![before, TierSource::ApiKey, after];
    let tier = |said: &'static [&'static str], key: Option<TierIndex>| {
        let claims = Claims(said.iter().map(|name| (*name, "standard")).collect());
        let mut request = request(&claims);
        request.headers.push((b"x-api-key", b"sk-other"));
        policy.plan(policy.draft(&request), Some(&api_key("found", key))).tier.to_owned()
    };
    assert_eq!(tier(&["before", "after"], Some(2)), "standard");
    assert_eq!(tier(&["after"], Some(2)), "enterprise");
    assert_eq!(tier(&["after"], None), "standard");
    assert_eq!(tier(&[], None), "free");
    policy.sources.tier.retain(|source| *source != TierSource::ApiKey);
    let request = with_other_key();
    assert_eq!(policy.plan(policy.draft(&request), Some(&api_key("found", Some(2)))).tier, "free");
}

fn with_other_key() -> Request<'static> {
    let mut request = Request::default();
    request.headers.push((b"x-api-key", b"sk-other"));
    request
}

#[test]
fn a_suspended_key_is_charged_nothing_and_denied_but_where_a_rule_exempts() {
    let mut policy = policy();
    let suspended = ApiKey { suspended: true, ..api_key("bad", Some(2)) };
    let decided = |policy: &Policy| {
        let plan = policy.plan(policy.draft(&with_other_key()), Some(&suspended));
        assert_eq!(plan.step(), Step::Nothing, "nothing is taken from anyone");
        let decision = decide(&plan, Err(Unavailable { error: "timeout", local: None }));
        (decision.passes(), decision.outcome)
    };
    assert_eq!(decided(&policy), (false, Outcome::Suspended));
    policy.mode = Mode::Shadow;
    assert_eq!(decided(&policy), (true, Outcome::Suspended));
    policy.mode = Mode::Enforce;
    policy.rules = vec![Rule { exempt: true, ..rule("health") }];
    let draft = policy.draft(&with_other_key());
    assert_eq!(draft.unknown_key(), None, "of who is exempt no identity is read");
    assert_eq!(decide(&policy.plan(draft, None), Ok(None)).outcome, Outcome::Exempt);
}

#[test]
fn the_principal_names_the_user_where_no_claim_does() {
    let claims = claims([]);
    let request = Request { principal: b"spiffe://mesh/agent", ..request(&claims) };
    assert_eq!(charged(&policy(), &request)[0].0, "rl:user:spiffe://mesh/agent");
}

#[test]
fn the_first_rule_that_fits_is_the_one() {
    let conditions = |path| Conditions { path: Some(path), ..Conditions::default() };
    let mut policy = policy();
    let glob = |text| globset::GlobBuilder::new(text).literal_separator(true).build().unwrap().compile_matcher();
    policy.rules = vec![
        Rule { when: conditions(PathCondition::Exact("/healthz".into())), exempt: true, ..rule("health") },
        Rule {
            when: Conditions {
                methods: vec!["POST".into()],
                hosts: vec![glob("*.example")],
                headers: vec![HeaderCondition { name: "x-batch".into(), value: ValueCondition::Present }],
                ..conditions(PathCondition::Prefix("/v1/".into()))
            },
            cost: Some(4.0),
            ..rule("batch")
        },
        Rule { when: conditions(PathCondition::Glob(glob("/v1/*/completions"))), cost: Some(2.0), ..rule("chat") },
        Rule { when: conditions(PathCondition::Prefix("/v1/".into())), cost: Some(0.0), ..rule("look") },
    ];
    let claims = claims([]);
    let name = |path: &'static str, headers: &[(&'static [u8], &'static [u8])]| {
        let mut request = Request { path: path.as_bytes(), ..request(&claims) };
        request.headers.extend_from_slice(headers);
        let plan = plan(&policy, &request);
        (plan.rule.map(str::to_owned), plan.cost, plan.step())
    };
    let said = |rule: &str, cost, step| (Some(rule.to_owned()), cost, step);
    assert_eq!(name("/healthz?x", &[]), said("health", 1.0, Step::Nothing));
    assert_eq!(name("/healthz/x", &[]), (None, 1.0, Step::Take));
    assert_eq!(name("/v1/chat/completions", &[(b"x-batch", b"")]), said("batch", 4.0, Step::Take));
    assert_eq!(name("/v1/chat/completions?a=/b", &[]), said("chat", 2.0, Step::Take));
    assert_eq!(name("/v1/a/b/completions", &[]), said("look", 0.0, Step::Peek));
}

#[test]
fn the_operators_context_extensions_choose_rule_and_cost() {
    let mut policy = policy();
    let never = Conditions { methods: vec!["NEVER".into()], ..Conditions::default() };
    policy.rules =
        vec![Rule { when: never, cost: Some(3.0), dimensions: Some(vec![Dimension::Ip]), ..rule("embeddings") }];
    let claims = claims([("sub", "alice")]);
    let plan = |extensions: &[(&'static str, &'static str)]| {
        let mut request = request(&claims);
        request.extensions.extend(extensions.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        let plan = plan(&policy, &request);
        (plan.rule.map(str::to_owned), plan.cost, plan.charges.len(), plan.oddity)
    };
    assert_eq!(plan(&[]), (None, 1.0, 2, None));
    assert_eq!(plan(&[(RULE_EXTENSION, "embeddings")]), (Some("embeddings".into()), 3.0, 1, None));
    assert_eq!(plan(&[(RULE_EXTENSION, "embeddings"), (COST_EXTENSION, "7")]).1, 7.0);
    assert_eq!(plan(&[(RULE_EXTENSION, "typo")]), (None, 1.0, 2, Some(Oddity::UnknownRule)));
    assert_eq!(plan(&[(COST_EXTENSION, "-7")]), (None, 1.0, 2, Some(Oddity::BadCost)));
}

#[test]
fn a_cost_above_a_bucket_never_fits_and_is_not_asked_of_the_store() {
    let claims = claims([("sub", "alice")]);
    let mut request = request(&claims);
    request.extensions.push((COST_EXTENSION.as_bytes(), b"11"));
    assert_eq!(plan(&policy(), &request).step(), Step::NeverFits);
}

#[test]
fn a_request_without_any_limited_identity_is_charged_to_its_address_as_of_the_default_tier() {
    let mut policy = policy();
    let tier = |name: &str, limits| Tier { name: name.into(), limits, on_store_error: None };
    let standard = tier("standard", Limits { ip: None, ..limits(60.0) });
    policy.tiers = Tiers::new(tier("free", limits(10.0)), vec![standard]);
    let no_subject = claims([("tier", "standard")]);
    assert_eq!(charged(&policy, &request(&no_subject)), [("rl:ip:192.0.2.7".to_owned(), 10.0)]);
    policy.rules = vec![Rule { dimensions: Some(vec![Dimension::Key]), ..rule("keys only") }];
    assert_eq!(charged(&policy, &request(&no_subject)), [("rl:ip:192.0.2.7".to_owned(), 10.0)]);
    policy.rules = vec![Rule { exempt: true, ..rule("exempt") }];
    assert_eq!(charged(&policy, &request(&no_subject)), []);
}

#[test]
fn a_tier_that_a_rule_sets_has_buckets_of_its_own_so_that_none_is_refilled_at_two_rates() {
    let mut policy = policy();
    policy.rules = vec![Rule { tier: Some(2), ..rule("models") }];
    let claims = claims([("sub", "alice")]);
    let expected = [("rl:user.enterprise:alice".to_owned(), 1500.0), ("rl:ip.enterprise:192.0.2.7".to_owned(), 1500.0)];
    assert_eq!(charged(&policy, &request(&claims)), expected);
    assert_eq!(plan(&policy, &request(&claims)).charges[0].key.id(), "alice");
}

#[test]
fn an_empty_id_does_not_hide_the_next_source_and_is_a_caller_where_there_is_none() {
    let claims = claims([("sub", "")]);
    let with_principal = Request { principal: b"spiffe://mesh/agent", ..request(&claims) };
    assert_eq!(charged(&policy(), &with_principal)[0].0, "rl:user:spiffe://mesh/agent");
    assert!(charged(&policy(), &request(&claims))[0].0.starts_with("rl:user:~"));
}

#[test]
fn the_rules_failure_policy_goes_before_the_tiers_and_that_before_the_whole_policys() {
    let local = FailurePolicy::Local { replicas: 3.try_into().unwrap() };
    let tier = |name: &str, on_store_error| Tier { name: name.into(), limits: limits(10.0), on_store_error };
    let (free, standard) = (tier("free", Some(FailurePolicy::Deny)), tier("standard", None));
    let mut policy = Policy {
        tiers: Tiers::new(free, vec![standard, tier("enterprise", Some(FailurePolicy::Allow))]),
        on_store_error: local,
        ..policy()
    };
    let of = |policy: &Policy, tier| plan(policy, &request(&claims([("tier", tier)]))).on_store_error;
    let of_all = |policy: &Policy| ["free", "standard", "enterprise"].map(|tier| of(policy, tier));
    assert_eq!(of_all(&policy), [FailurePolicy::Deny, local, FailurePolicy::Allow]);
    policy.rules = vec![Rule { on_store_error: Some(FailurePolicy::Allow), ..rule("all") }];
    assert_eq!(of_all(&policy), [FailurePolicy::Allow; 3]);
    policy.rules = vec![Rule { tier: Some(0), ..rule("as free") }];
    assert_eq!(of_all(&policy), [FailurePolicy::Deny; 3], "the tier that a rule sets is the one that counts");
}

#[test]
fn the_share_of_a_plan_is_its_charges_over_so_many_replicas() {
    let (policy, claims) = (policy(), claims([("sub", "alice")]));
    let plan = plan(&policy, &request(&claims));
    let share = plan.share(4.try_into().unwrap()).unwrap();
    let numbers: Vec<(&str, f64, f64)> =
        share.iter().map(|c| (c.key.as_str(), c.quota.max_tokens(), c.quota.refill_rate())).collect();
    assert_eq!(numbers, [("rl:user:alice", 2.5, 0.25), ("rl:ip:192.0.2.7", 2.5, 0.25)]);
    assert_eq!(plan.share(11.try_into().unwrap()), None, "a share of ten elevenths never covers a cost of 1");
}

#[test]
fn shadow_and_failure_policy_are_the_rules_before_the_whole_policys() {
    let mut policy = policy();
    policy.rules = vec![Rule { shadow: true, on_store_error: Some(FailurePolicy::Deny), ..rule("all") }];
    let plan = plan(&policy, &Request::default());
    assert_eq!((plan.mode, plan.on_store_error), (Mode::Shadow, FailurePolicy::Deny));
}
