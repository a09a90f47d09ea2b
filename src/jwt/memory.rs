//! What came of tokens, by digest: a good one is known until it expires, a bad one for a while. Bounded in size.
//!
//! Two maps, so that a flood of bad tokens drives no good one out. Knows nothing of what a token says.

use super::verify::Refusal;
use crate::bucket::Timestamp;
use crate::metrics::JwtVerdict;
use crate::policy::claims::Claims;
use crate::recent::Recent;
use std::sync::Arc;

/// The SHA-256 of a token.
pub(super) type TokenDigest = [u8; 32];

/// Which of the key sets, one after the other, a token was verified with.
pub(super) type Generation = u64;

/// How long a refusal is remembered, in microseconds: a client that tries again and again pays nothing for it, and who
/// mends a thing does not wait long.
const REFUSAL_MICROS: u64 = 60_000_000;

/// What is known of a token.
#[derive(Clone, Debug)]
pub(super) enum Known {
    Good(Arc<Claims>),
    Bad(JwtVerdict),
}

#[derive(Debug)]
pub(super) struct Memory {
    good: Recent<TokenDigest, Good>,
    bad: Recent<TokenDigest, Bad>,
}

#[derive(Debug)]
struct Good {
    claims: Arc<Claims>,
    until: Timestamp,
    keys: Generation,
}

#[derive(Debug)]
struct Bad {
    why: JwtVerdict,
    /// A clock that is set back makes it unknown, and not known for longer.
    from: Timestamp,
    until: Timestamp,
    keys: Generation,
}

impl Memory {
    /// For so many tokens at most of either kind.
    pub(super) fn new(size: usize) -> Self {
        Self { good: Recent::new(size), bad: Recent::new(size) }
    }

    /// Good tokens and bad ones that are held.
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.good.len(), self.bad.len()]
    }

    /// What is known of a token under these keys.
    pub(super) fn find(&mut self, token: &TokenDigest, keys: Generation, now: Timestamp) -> Option<Known> {
        if let Some(good) = self.good.get(token) {
            if good.keys == keys && now.micros < good.until.micros {
                return Some(Known::Good(good.claims.clone()));
            }
            self.good.remove(token);
            return None;
        }
        let bad = self.bad.get(token)?;
        let holds = bad.keys == keys && (bad.from.micros..bad.until.micros).contains(&now.micros);
        holds.then_some(Known::Bad(bad.why))
    }

    pub(super) fn remember(&mut self, token: TokenDigest, claims: Arc<Claims>, until: Timestamp, keys: Generation) {
        self.good.insert(token, Good { claims, until, keys });
    }

    pub(super) fn refuse(&mut self, token: TokenDigest, refusal: Refusal, keys: Generation, now: Timestamp) {
        let Refusal { why, until } = refusal;
        let latest = now.micros.saturating_add(REFUSAL_MICROS);
        let until = Timestamp { micros: until.map_or(latest, |until| until.micros.min(latest)) };
        self.bad.insert(token, Bad { why, from: now, until, keys });
    }
}
