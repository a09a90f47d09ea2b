//! Tiers, and how a caller comes by one. Whatever is unknown, malformed or missing is the default tier, never more.

use super::api_key::ApiKey;
use super::decision::FailurePolicy;
use super::identity::MetadataPath;
use super::limits::{Limits, User};
use super::request::Request;
use super::route::Rule;

/// A tier's place in [`Tiers`].
pub type TierIndex = usize;

/// A class of callers and what they may spend.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// In lower case.
    pub name: String,
    pub limits: Limits,
    /// Instead of the whole policy's.
    pub on_store_error: Option<FailurePolicy>,
}

/// Where a caller's tier is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierSource {
    Metadata(MetadataPath),
    /// What the operator says of the API key.
    ApiKey,
    /// A header, which the client writes unless Envoy overwrites it.
    Header(String),
}

/// All tiers; there is always a default one.
#[derive(Clone, Debug)]
pub struct Tiers {
    default: Tier,
    others: Vec<Tier>,
}

impl Tiers {
    /// `others` may not hold the default's name again: `config` sees to that.
    pub fn new(default: Tier, others: Vec<Tier>) -> Self {
        Self { default, others }
    }

    pub fn default_tier(&self) -> &Tier {
        &self.default
    }

    pub fn iter(&self) -> impl Iterator<Item = &Tier> {
        std::iter::once(&self.default).chain(&self.others)
    }

    /// The place of a tier, whatever the case of its name.
    pub fn index(&self, name: &[u8]) -> Option<TierIndex> {
        self.iter().position(|tier| tier.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// The tier at a place that [`Tiers::index`] gave; the default for any other.
    pub fn at(&self, index: TierIndex) -> &Tier {
        index.checked_sub(1).and_then(|other| self.others.get(other)).unwrap_or(&self.default)
    }

    /// The caller's tier: the rule's, the user's own, then the first source that names a known one, then the default.
    pub(super) fn resolve(
        &self,
        sources: &[TierSource],
        request: &Request<'_>,
        rule: Option<&Rule>,
        api_key: Option<&ApiKey>,
        user: Option<&User>,
    ) -> &Tier {
        let fixed = rule.and_then(|rule| rule.tier).or_else(|| user.and_then(|user| user.tier));
        let index = fixed.or_else(|| sources.iter().find_map(|source| self.read(source, request, api_key)));
        index.map_or(&self.default, |index| self.at(index))
    }

    fn read(&self, source: &TierSource, request: &Request<'_>, api_key: Option<&ApiKey>) -> Option<TierIndex> {
        match source {
            TierSource::Metadata(path) => self.index(&path.read(request)?),
            TierSource::ApiKey => api_key?.tier,
            TierSource::Header(name) => self.index(&request.header(name)?),
        }
    }
}
