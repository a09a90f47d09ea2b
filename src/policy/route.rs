//! Rules for parts of the traffic: which one a request falls under, and what it costs there.

use super::decision::FailurePolicy;
use super::request::Request;
use super::tier::TierIndex;
use crate::bucket::Dimension;
use globset::GlobMatcher;

/// The context extension that names a rule, whatever the rule's own conditions.
pub const RULE_EXTENSION: &str = "tidegate.rule";
/// The context extension that states a cost in tokens.
pub const COST_EXTENSION: &str = "tidegate.cost";

/// What a request costs where nothing is said.
pub const DEFAULT_COST: f64 = 1.0;

/// One rule of the operator's.
#[derive(Clone, Debug)]
pub struct Rule {
    pub name: String,
    pub when: Conditions,
    /// Tokens; 0 looks and takes nothing.
    pub cost: Option<f64>,
    pub exempt: bool,
    pub tier: Option<TierIndex>,
    /// The dimensions that are charged; all when `None`.
    pub dimensions: Option<Vec<Dimension>>,
    /// Count and tell, but never deny.
    pub shadow: bool,
    pub on_store_error: Option<FailurePolicy>,
}

/// What a request must be for a rule to apply: everything stated here. Nothing stated fits all.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    /// Any of these; upper case, as HTTP has them.
    pub methods: Vec<String>,
    /// Any of these, against the host in lower case without its port and without a dot at its end.
    pub hosts: Vec<GlobMatcher>,
    pub path: Option<PathCondition>,
    pub headers: Vec<HeaderCondition>,
    /// Name and value, all of them.
    pub extensions: Vec<(String, String)>,
}

/// What the path, without its query, must be. As Envoy sends it: raw, unless its connection manager normalises.
#[derive(Clone, Debug)]
pub enum PathCondition {
    Exact(String),
    Prefix(String),
    /// `*` within a segment, `**` across.
    Glob(GlobMatcher),
}

/// What a header must be.
#[derive(Clone, Debug)]
pub struct HeaderCondition {
    /// In lower case.
    pub name: String,
    pub value: ValueCondition,
}

#[derive(Clone, Debug)]
pub enum ValueCondition {
    Present,
    Exact(String),
    Prefix(String),
}

/// Something the operator wrote in `context_extensions` that could not be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oddity {
    /// `tidegate.rule` names no rule.
    UnknownRule,
    /// `tidegate.cost` is no finite number of 0 or more.
    BadCost,
}

/// The rule a request falls under, and its cost.
#[derive(Debug)]
pub(super) struct Route<'p> {
    pub(super) rule: Option<&'p Rule>,
    pub(super) cost: f64,
    pub(super) oddity: Option<Oddity>,
}

impl<'p> Route<'p> {
    /// The rule named by `tidegate.rule`, else the first whose conditions hold; the cost of `tidegate.cost`, else the
    /// rule's, else 1.
    pub(super) fn find(rules: &'p [Rule], request: &Request<'_>) -> Self {
        let (named, unknown) = named(rules, request);
        let rule = named.or_else(|| rules.iter().find(|rule| rule.when.hold(request)));
        let (stated, bad) = stated_cost(request);
        let cost = stated.or_else(|| rule?.cost).unwrap_or(DEFAULT_COST);
        Self { rule, cost, oddity: unknown.or(bad) }
    }

    pub(super) fn exempt(&self) -> bool {
        self.rule.is_some_and(|rule| rule.exempt)
    }

    pub(super) fn charges(&self, dimension: Dimension) -> bool {
        let chosen = self.rule.and_then(|rule| rule.dimensions.as_ref());
        chosen.is_none_or(|chosen| chosen.contains(&dimension))
    }
}

fn named<'p>(rules: &'p [Rule], request: &Request<'_>) -> (Option<&'p Rule>, Option<Oddity>) {
    let Some(name) = request.extension(RULE_EXTENSION) else {
        return (None, None);
    };
    match rules.iter().find(|rule| rule.name.as_bytes() == name) {
        Some(rule) => (Some(rule), None),
        None => (None, Some(Oddity::UnknownRule)),
    }
}

fn stated_cost(request: &Request<'_>) -> (Option<f64>, Option<Oddity>) {
    let Some(text) = request.extension(COST_EXTENSION) else {
        return (None, None);
    };
    let cost = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse::<f64>().ok());
    match cost.filter(|cost| cost.is_finite() && *cost >= 0.0) {
        Some(cost) => (Some(cost), None),
        None => (None, Some(Oddity::BadCost)),
    }
}

impl Conditions {
    fn hold(&self, request: &Request<'_>) -> bool {
        (self.methods.is_empty() || self.methods.iter().any(|method| method.as_bytes() == request.method))
            && (self.hosts.is_empty() || self.host_holds(request.host))
            && self.path.as_ref().is_none_or(|path| path.holds(request.bare_path()))
            && self.headers.iter().all(|header| header.holds(request))
            && self.extensions.iter().all(|(name, value)| request.extension(name) == Some(value.as_bytes()))
    }

    fn host_holds(&self, host: &[u8]) -> bool {
        let host = String::from_utf8_lossy(host).to_ascii_lowercase();
        let host = without_port(&host);
        let host = host.strip_suffix('.').unwrap_or(host);
        self.hosts.iter().any(|glob| glob.is_match(host))
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|b| b.is_ascii_digit()) && (!name.contains(':') || name.ends_with(']')) =>
        {
            name
        }
        _ => host,
    }
}

impl PathCondition {
    fn holds(&self, path: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => path == exact.as_bytes(),
            Self::Prefix(prefix) => path.starts_with(prefix.as_bytes()),
            Self::Glob(glob) => glob.is_match(&*String::from_utf8_lossy(path)),
        }
    }
}

impl HeaderCondition {
    fn holds(&self, request: &Request<'_>) -> bool {
        let Some(value) = request.header(&self.name) else {
            return false;
        };
        match &self.value {
            ValueCondition::Present => true,
            ValueCondition::Exact(exact) => *value == *exact.as_bytes(),
            ValueCondition::Prefix(prefix) => value.starts_with(prefix.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_no_part_of_a_host() {
        for (host, bare) in [
            ("a.example:443", "a.example"),
            ("a.example", "a.example"),
            ("[::1]:80", "[::1]"),
            ("[::1]", "[::1]"),
            ("", ""),
        ] {
            assert_eq!(without_port(host), bare);
        }
    }

    #[test]
    fn a_cost_that_is_no_number_is_said_and_not_followed() {
        for (text, cost) in [("5", Some(5.0)), ("0", Some(0.0)), ("2.5", Some(2.5)), (" 3 ", Some(3.0))] {
            let mut request = Request::default();
            request.extensions.push((COST_EXTENSION.as_bytes(), text.as_bytes()));
            assert_eq!(stated_cost(&request), (cost, None));
        }
        for text in ["", "many", "-1", "NaN", "inf", "1e999", "\u{661}"] {
            let mut request = Request::default();
            request.extensions.push((COST_EXTENSION.as_bytes(), text.as_bytes()));
            assert_eq!(stated_cost(&request), (None, Some(Oddity::BadCost)), "{text}");
        }
    }
}
