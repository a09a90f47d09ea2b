//! Tiers, and how a caller comes by one. Whatever is unknown, malformed or missing is the default tier, never more.

use super::api_key::ApiKey;
use super::claims::ClaimPath;
use super::decision::FailurePolicy;
use super::identity::MetadataPath;
use super::limits::Limits;
use super::request::Request;
use super::{TierFrom, Why};

/// A tier's place in [`Tiers`].
pub type TierIndex = usize;

/// The place of the default tier.
const DEFAULT: TierIndex = 0;

/// What a request says of its tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// Whatever is said of the API key.
    Settled(TierIndex),
    /// The API key's, and where it has none, this.
    KeyFirst { otherwise: TierIndex },
}

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
    /// A claim of a token that was verified here.
    Jwt(ClaimPath),
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
    ///
    /// A caller may be of one tier now and of another later, with the same bucket. So a bucket is kept as long as the
    /// slowest of the tiers' needs to fill it, else a small and fast quota would have a large and slow one filled anew.
    pub fn new(default: Tier, others: Vec<Tier>) -> Self {
        let mut tiers = Self { default, others };
        let all: Vec<Limits> = tiers.iter().map(|tier| tier.limits).collect();
        for tier in std::iter::once(&mut tiers.default).chain(&mut tiers.others) {
            tier.limits = all.iter().fold(tier.limits, |limits, others| limits.kept_as_long_as(others));
        }
        tiers
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

    /// What the sources say of the caller's tier, up to the first that names a known one.
    pub(super) fn claimed(&self, sources: &[TierSource], request: &Request<'_>) -> Claim {
        let mut after_key = false;
        for source in sources {
            let named = match source {
                TierSource::Metadata(path) => path.read(request).and_then(|name| self.index(&name)),
                TierSource::Jwt(path) => self.claimed_in_token(path, request),
                TierSource::Header(name) => request.header(name).and_then(|name| self.index(&name)),
                TierSource::ApiKey => {
                    after_key = true;
                    None
                }
            };
            match named {
                Some(tier) if after_key => return Claim::KeyFirst { otherwise: tier },
                Some(tier) => return Claim::Settled(tier),
                None => {}
            }
        }
        if after_key { Claim::KeyFirst { otherwise: DEFAULT } } else { Claim::Settled(DEFAULT) }
    }

    fn claimed_in_token(&self, path: &ClaimPath, request: &Request<'_>) -> Option<TierIndex> {
        request.claims?.find(path).and_then(|name| self.index(name))
    }

    /// As [`Tiers::claimed`], but who said it.
    pub(super) fn why(&self, sources: &[TierSource], request: &Request<'_>) -> Why {
        let at_key = sources.iter().position(|source| *source == TierSource::ApiKey);
        let names = |source: &TierSource| match source {
            TierSource::Metadata(path) => {
                path.read(request).and_then(|name| self.index(&name)).map(|_| TierFrom::Metadata)
            }
            TierSource::Jwt(path) => self.claimed_in_token(path, request).map(|_| TierFrom::Jwt),
            TierSource::Header(name) => {
                request.header(name).and_then(|name| self.index(&name)).map(|_| TierFrom::Header)
            }
            TierSource::ApiKey => None,
        };
        let first = |sources: &[TierSource]| sources.iter().find_map(names);
        match at_key {
            Some(at) => {
                Why { before_key: first(&sources[..at]), after_key: first(&sources[at..]).unwrap_or(TierFrom::Default) }
            }
            None => Why { before_key: Some(first(sources).unwrap_or(TierFrom::Default)), after_key: TierFrom::Default },
        }
    }

    /// The caller's tier, now that it is known what the operator says of the API key.
    pub(super) fn chosen(&self, claim: Claim, api_key: Option<&ApiKey>) -> &Tier {
        match claim {
            Claim::Settled(tier) => self.at(tier),
            Claim::KeyFirst { otherwise } => self.at(api_key.and_then(|key| key.tier).unwrap_or(otherwise)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::bucket::Quota;

    #[test]
    fn a_bucket_is_kept_as_long_as_the_slowest_tier_needs_to_fill_it() {
        let user = |max_tokens, rate| Limits { user: Quota::parse(max_tokens, rate).ok(), ..Limits::default() };
        let tier = |name: &str, limits| Tier { name: name.into(), limits, on_store_error: None };
        let tiers = Tiers::new(tier("slow", user(1000.0, 0.3)), vec![tier("fast", user(100.0, 50.0))]);
        let kept: Vec<u64> = tiers.iter().map(|tier| tier.limits.user.unwrap().ttl()).collect();
        assert_eq!(kept, [6667, 6667]);
        let over = tiers.at(1).limits.overlaid(Some(&user(10.0, 10.0)));
        assert_eq!(over.user.map(|quota| (quota.max_tokens(), quota.ttl())), Some((10.0, 6667)));
        assert_eq!(over.key, None);
    }
}
