//! Quotas by dimension: a tier's, and what differs from them for one key or one user.

use super::tier::TierIndex;
use crate::bucket::{Dimension, Quota};
use std::collections::HashMap;
use std::fmt;

/// A quota for each dimension; none means not limited there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    pub user: Option<Quota>,
    pub key: Option<Quota>,
    pub ip: Option<Quota>,
}

impl Limits {
    pub fn of(&self, dimension: Dimension) -> Option<Quota> {
        match dimension {
            Dimension::User => self.user,
            Dimension::Key => self.key,
            Dimension::Ip => self.ip,
        }
    }

    /// These limits, for buckets that are used under `others` as well.
    #[must_use]
    pub fn kept_as_long_as(&self, others: &Self) -> Self {
        let kept = |dimension| match (self.of(dimension), others.of(dimension)) {
            (Some(mine), Some(theirs)) => Some(mine.kept_as_long_as(&theirs)),
            (mine, _) => mine,
        };
        Self { user: kept(Dimension::User), key: kept(Dimension::Key), ip: kept(Dimension::Ip) }
    }

    /// These limits, but for what `over` states.
    pub fn overlaid(&self, over: Option<&Self>) -> Self {
        let over = over.map(|over| over.kept_as_long_as(self)).unwrap_or_default();
        Self { user: over.user.or(self.user), key: over.key.or(self.key), ip: over.ip.or(self.ip) }
    }

    /// The dimensions in which these limits let more pass than `other`'s.
    pub fn more_generous_than(&self, other: &Self) -> Vec<Dimension> {
        Dimension::ALL
            .into_iter()
            .filter(|dimension| match (self.of(*dimension), other.of(*dimension)) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some(mine), Some(theirs)) => {
                    mine.max_tokens() > theirs.max_tokens() || mine.refill_rate() > theirs.refill_rate()
                }
            })
            .collect()
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, dimension) in Dimension::ALL.into_iter().enumerate() {
            let space = if place == 0 { "" } else { " " };
            match self.of(dimension) {
                Some(quota) => write!(f, "{space}{dimension}={}@{}/s", quota.max_tokens(), quota.refill_rate())?,
                None => write!(f, "{space}{dimension}=unlimited")?,
            }
        }
        Ok(())
    }
}

/// What the operator says of one user.
#[derive(Clone, Debug, PartialEq)]
pub struct User {
    pub tier: Option<TierIndex>,
    /// What differs from the tier.
    pub limits: Limits,
}

/// The known users, by the stored form of their id.
#[derive(Clone, Debug, Default)]
pub struct Users {
    by_id: HashMap<String, User>,
}

impl Users {
    pub fn find(&self, stored_id: &str) -> Option<&User> {
        self.by_id.get(stored_id)
    }
}

impl FromIterator<(String, User)> for Users {
    fn from_iter<I: IntoIterator<Item = (String, User)>>(users: I) -> Self {
        Self { by_id: users.into_iter().collect() }
    }
}
