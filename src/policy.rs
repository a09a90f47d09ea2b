//! The rules: an immutable, validated snapshot that says who is asking, what they are charged, and what they are told.
//!
//! [`Policy::draft`] reads a request, [`Policy::plan`] turns that and what is known of its API key into charges,
//! [`decision::decide`] turns what the store answered into a decision. All are pure: no await, clock, I/O, log or
//! metric. Knows no YAML, protobuf, Redis or header names of answers.

pub mod api_key;
pub mod claims;
pub mod client_ip;
pub mod decision;
pub mod identity;
pub mod key_fields;
pub mod limits;
pub mod request;
pub mod route;
pub mod tier;

use crate::bucket::{Charge, Charges, Dimension, Key};
use api_key::{ApiKey, ApiKeys, Digest};
use decision::{Answers, FailurePolicy, Mode};
use identity::{Caller, Sources, UserFrom};
use limits::{Limits, User, Users};
use request::Request;
use route::{Oddity, Route, Rule};
use std::num::NonZeroU32;
use std::sync::Arc;
use tier::{Claim, Tier, TierIndex, Tiers};

/// Everything a decision needs besides the buckets. Built by `config`.
#[derive(Debug)]
pub struct Policy {
    /// Starts every bucket's name; `rl:` by default.
    pub key_prefix: String,
    pub tiers: Tiers,
    pub sources: Sources,
    pub api_keys: ApiKeys,
    pub users: Users,
    /// First match wins.
    pub rules: Vec<Rule>,
    pub mode: Mode,
    pub on_store_error: FailurePolicy,
    pub answers: Answers,
}

/// What a request says, before anything is known of its API key that the policy does not say. Holds nothing of the
/// request itself.
#[derive(Debug)]
pub struct Draft<'p> {
    caller: Caller,
    route: Route<'p>,
    claim: Claim,
    /// The digest of the API key under the previous pepper, while that is replaced.
    previous_key: Option<Digest>,
    /// What the configuration says of the API key: it goes before what is said elsewhere.
    configured: Option<&'p ApiKey>,
    user: Option<&'p User>,
}

impl<'p> Draft<'p> {
    /// What counts of the API key, where `found` is what is known of it besides the policy.
    pub fn api_key<'k>(&self, found: Option<&'k ApiKey>) -> Option<&'k ApiKey>
    where
        'p: 'k,
    {
        self.configured.or(found)
    }

    /// The API key of which more may be known elsewhere than the policy says.
    pub fn unknown_key(&self) -> Option<Digest> {
        if self.configured.is_some() { None } else { self.caller.key }
    }

    /// Under which digest more may be known where nothing is of [`Draft::unknown_key`].
    pub fn previous_key(&self) -> Option<Digest> {
        if self.configured.is_some() { None } else { self.previous_key }
    }
}

/// What one request is to be charged, and under which rules.
#[derive(Debug)]
pub struct Plan<'p> {
    /// Of who is exempt, nobody.
    pub caller: Caller,
    pub charges: Charges,
    pub tier: &'p str,
    pub rule: Option<&'p str>,
    pub exempt: bool,
    /// The caller's API key is suspended: nothing is charged, and the request is denied.
    pub suspended: bool,
    /// The name given to the caller's API key, if it is a known one.
    pub key_name: Option<Arc<str>>,
    pub cost: f64,
    pub mode: Mode,
    pub on_store_error: FailurePolicy,
    /// Something in the operator's `context_extensions` that could not be followed.
    pub oddity: Option<Oddity>,
}

impl Plan<'_> {
    /// What the store is to be asked.
    pub fn step(&self) -> Step {
        if self.charges.is_empty() {
            Step::Nothing
        } else if self.cost == 0.0 {
            Step::Peek
        } else if self.never_fits().next().is_some() {
            Step::NeverFits
        } else {
            Step::Take
        }
    }

    /// Whether the store is to be asked something.
    pub fn asks(&self) -> bool {
        matches!(self.step(), Step::Peek | Step::Take)
    }

    /// The charges above what their bucket can ever hold.
    pub fn never_fits(&self) -> impl Iterator<Item = &Charge> {
        self.charges.iter().filter(|charge| charge.cost > charge.quota.max_tokens())
    }

    /// These charges on one of so many equal shares of their quotas. `None` when a share can never cover its cost.
    pub fn share(&self, parts: NonZeroU32) -> Option<Charges> {
        let shared = |charge: &Charge| {
            let quota = charge.quota.share(parts);
            (charge.cost <= quota.max_tokens()).then(|| Charge { quota, ..charge.clone() })
        };
        self.charges.iter().map(shared).collect()
    }
}

/// What said which tier a caller is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierFrom {
    /// The rule that the request falls under.
    Rule,
    /// What the configuration says of the user.
    User,
    Metadata,
    /// A claim of a token that was verified here.
    Jwt,
    Header,
    /// What the operator says of the API key.
    ApiKey,
    /// Nobody: the default tier.
    Default,
}

/// What a request says of its tier, where its API key is still to be heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Why {
    before_key: Option<TierFrom>,
    after_key: TierFrom,
}

impl Why {
    /// `found` is what is known of the API key.
    pub fn tier_from(self, found: Option<&ApiKey>) -> TierFrom {
        let key = found.and_then(|key| key.tier).map(|_| TierFrom::ApiKey);
        self.before_key.or(key).unwrap_or(self.after_key)
    }
}

/// What a plan asks of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// No bucket is concerned.
    Nothing,
    /// Cost 0: look, take nothing.
    Peek,
    Take,
    /// The cost is above a bucket's maximum: no use in asking.
    NeverFits,
}

impl Policy {
    /// Says who is asking, for what, and by which rule.
    pub fn draft(&self, request: &Request<'_>) -> Draft<'_> {
        let route = Route::find(&self.rules, request);
        let caller = if route.exempt() { Caller::default() } else { self.sources.caller(request) };
        let previous_key = caller.key.and_then(|_| self.sources.previous_key(request));
        let known = |digest: Option<Digest>| digest.and_then(|digest| self.api_keys.find(&digest));
        let configured = known(caller.key).or_else(|| known(previous_key));
        let user = caller.user.as_deref().and_then(|id| self.users.find(id));
        let fixed = route.rule.and_then(|rule| rule.tier).or_else(|| user.and_then(|user| user.tier));
        let claim = match fixed {
            Some(tier) => Claim::Settled(tier),
            None => self.tiers.claimed(&self.sources.tier, request),
        };
        Draft { caller, route, claim, previous_key, configured, user }
    }

    /// Says what that costs. `found` is what is known of [`Draft::unknown_key`], else of [`Draft::previous_key`].
    pub fn plan<'p>(&'p self, draft: Draft<'p>, found: Option<&ApiKey>) -> Plan<'p> {
        let api_key = draft.api_key(found);
        let Draft { caller, route, claim, user, .. } = draft;
        let (rule, suspended) = (route.rule, api_key.is_some_and(|key| key.suspended));
        let tier = self.tiers.chosen(claim, api_key);
        let limits = tier.limits.overlaid(api_key.map(|key| &key.limits)).overlaid(user.map(|user| &user.limits));
        Plan {
            charges: if suspended { Charges::new() } else { self.charges(&caller, &limits, &route) },
            caller,
            tier: &tier.name,
            rule: rule.map(|rule| rule.name.as_str()),
            exempt: route.exempt(),
            suspended,
            key_name: api_key.map(|key| key.name.clone()),
            cost: route.cost,
            mode: if rule.is_some_and(|rule| rule.shadow) { Mode::Shadow } else { self.mode },
            on_store_error: self.on_store_error(rule, tier),
            oddity: route.oddity,
        }
    }

    /// Where the caller's tier comes from, for people who ask. `draft` is that of the same request.
    pub fn why(&self, draft: &Draft<'_>, request: &Request<'_>) -> Why {
        let settled = |tier_from| Why { before_key: Some(tier_from), after_key: TierFrom::Default };
        if draft.route.rule.is_some_and(|rule| rule.tier.is_some()) {
            settled(TierFrom::Rule)
        } else if draft.user.is_some_and(|user| user.tier.is_some()) {
            settled(TierFrom::User)
        } else {
            self.tiers.why(&self.sources.tier, request)
        }
    }

    /// Where the caller's user id was read, for people who ask. `draft` is that of the same request.
    pub fn user_from(&self, draft: &Draft<'_>, request: &Request<'_>) -> Option<UserFrom> {
        draft.caller.user.as_ref().and_then(|_| self.sources.user_from(request))
    }

    /// The rule's, else the tier's, else the whole policy's.
    fn on_store_error(&self, rule: Option<&Rule>, tier: &Tier) -> FailurePolicy {
        let closer = rule.and_then(|rule| rule.on_store_error).or(tier.on_store_error);
        closer.unwrap_or(self.on_store_error)
    }

    fn charges(&self, caller: &Caller, limits: &Limits, route: &Route<'_>) -> Charges {
        let charges: Charges = Dimension::ALL
            .into_iter()
            .filter(|dimension| route.charges(*dimension))
            .filter_map(|dimension| {
                let (quota, id) = (limits.of(dimension)?, caller.id(dimension)?);
                Some(Charge { key: self.key(dimension, &id, route), quota, cost: route.cost })
            })
            .collect();
        if charges.is_empty() { self.last_resort(caller, route) } else { charges }
    }

    /// One bucket is never refilled at two rates: a tier that a rule sets has buckets of its own.
    fn key(&self, dimension: Dimension, id: &str, route: &Route<'_>) -> Key {
        self.bucket(dimension, id, route.rule.and_then(|rule| rule.tier))
    }

    /// The bucket of an identity in its stored form; with `tier`, that of the rules which set this tier.
    pub fn bucket(&self, dimension: Dimension, id: &str, tier: Option<TierIndex>) -> Key {
        match tier {
            Some(tier) => Key::of_tier(&self.key_prefix, dimension, &self.tiers.at(tier).name, id),
            None => Key::new(&self.key_prefix, dimension, id),
        }
    }

    /// Who has no identity in any dimension that is limited is limited by address, as someone of the default tier.
    /// Else a token without a subject would be a way around all limits. Of who is exempt not even the address is read.
    fn last_resort(&self, caller: &Caller, route: &Route<'_>) -> Charges {
        let quota = self.tiers.default_tier().limits.ip;
        let charge = quota.zip(caller.id(Dimension::Ip)).map(|(quota, id)| {
            let key = Key::new(&self.key_prefix, Dimension::Ip, &id);
            Charge { key, quota, cost: route.cost }
        });
        charge.into_iter().collect()
    }
}
