//! The rules: an immutable, validated snapshot that says who is asking, what they are charged, and what they are told.
//!
//! [`Policy::plan`] turns a request into charges, [`decision::decide`] turns what the store answered into a decision.
//! Both are pure: no await, clock, I/O, log or metric. Knows no YAML, protobuf, Redis or header names of answers.

pub mod api_key;
pub mod client_ip;
pub mod decision;
pub mod identity;
pub mod limits;
pub mod request;
pub mod route;
pub mod tier;

use crate::bucket::{Charge, Charges, Dimension, Key};
use api_key::ApiKeys;
use decision::{Answers, FailurePolicy, Mode};
use identity::{Caller, Sources};
use limits::{Limits, Users};
use request::Request;
use route::{Oddity, Route, Rule};
use tier::Tiers;

/// Everything a decision needs besides the buckets. Built by `config`, swapped whole on reload.
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

/// What one request is to be charged, and under which rules.
#[derive(Debug)]
pub struct Plan<'p> {
    pub charges: Charges,
    /// What the buckets' names begin with.
    pub key_prefix: &'p str,
    pub tier: &'p str,
    pub rule: Option<&'p str>,
    pub exempt: bool,
    /// The name configured for the caller's API key, if it is a known one.
    pub key_name: Option<&'p str>,
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

    /// The charges above what their bucket can ever hold.
    pub fn never_fits(&self) -> impl Iterator<Item = &Charge> {
        self.charges.iter().filter(|charge| charge.cost > charge.quota.max_tokens())
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
    /// Says who is asking and what that costs.
    pub fn plan(&self, request: &Request<'_>) -> Plan<'_> {
        let route = Route::find(&self.rules, request);
        let rule = route.rule;
        let caller = if route.exempt() { Caller::default() } else { self.sources.caller(request) };
        let api_key = caller.key.and_then(|digest| self.api_keys.find(&digest));
        let user = caller.user.as_deref().and_then(|id| self.users.find(id));
        let tier = self.tiers.resolve(&self.sources.tier, request, rule, api_key, user);
        let limits = tier.limits.overlaid(api_key.map(|key| &key.limits)).overlaid(user.map(|user| &user.limits));
        Plan {
            charges: self.charges(&caller, &limits, &route),
            key_prefix: &self.key_prefix,
            tier: &tier.name,
            rule: rule.map(|rule| rule.name.as_str()),
            exempt: route.exempt(),
            key_name: api_key.map(|key| key.name.as_str()),
            cost: route.cost,
            mode: if rule.is_some_and(|rule| rule.shadow) { Mode::Shadow } else { self.mode },
            on_store_error: rule.and_then(|rule| rule.on_store_error).unwrap_or(self.on_store_error),
            oddity: route.oddity,
        }
    }

    fn charges(&self, caller: &Caller, limits: &Limits, route: &Route<'_>) -> Charges {
        let mut charges = Charges::new();
        for dimension in Dimension::ALL {
            if !route.charges(dimension) {
                continue;
            }
            if let (Some(quota), Some(id)) = (limits.of(dimension), caller.id(dimension)) {
                let key = Key::new(&self.key_prefix, dimension, &id);
                charges.push(Charge { key, quota, cost: route.cost });
            }
        }
        charges
    }
}
