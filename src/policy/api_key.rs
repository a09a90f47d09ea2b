//! API keys: their digests, and what the operator says of the known ones. A raw key never leaves this file.

use super::limits::Limits;
use super::tier::TierIndex;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use thiserror::Error;

/// The first 16 bytes of a hash, shown as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 16]);

/// Why a text is no digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a digest is 32 lower-case hex digits, as `tidegate hash-key` prints them")]
pub struct DigestError;

impl Digest {
    pub(super) fn first_half(hash: &[u8]) -> Self {
        let mut half = [0; 16];
        half.copy_from_slice(&hash[..16]);
        Self(half)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let canonical = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let number = u128::from_str_radix(text, 16).map_err(|_| DigestError)?;
        if canonical { Ok(Self(number.to_be_bytes())) } else { Err(DigestError) }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 32];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = HEX[usize::from(byte >> 4)];
            pair[1] = HEX[usize::from(byte & 15)];
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Turns keys into digests: SHA-256, or HMAC-SHA-256 under a pepper.
#[derive(Clone, Default)]
pub struct Digester {
    pepper: Option<Hmac<Sha256>>,
    /// That of the digests under which some keys are still known.
    previous: Option<Hmac<Sha256>>,
}

impl Digester {
    /// With a pepper, a stolen dump of Redis cannot be searched for guessed keys.
    pub fn new(pepper: Option<&[u8]>) -> Self {
        // HMAC takes keys of any length, so there is no error to lose.
        Self { pepper: pepper.and_then(|pepper| Hmac::new_from_slice(pepper).ok()), previous: None }
    }

    /// While another pepper is replaced by this one.
    #[must_use]
    pub fn with_previous(self, pepper: &[u8]) -> Self {
        Self { previous: Hmac::new_from_slice(pepper).ok(), ..self }
    }

    pub fn digest(&self, key: &[u8]) -> Digest {
        match &self.pepper {
            Some(pepper) => under(pepper, key),
            None => Digest::first_half(&Sha256::digest(key)),
        }
    }

    /// The digest under the pepper that is replaced, if one is.
    pub fn previous_digest(&self, key: &[u8]) -> Option<Digest> {
        self.previous.as_ref().map(|pepper| under(pepper, key))
    }

    /// Whether a pepper is replaced.
    pub fn has_previous(&self) -> bool {
        self.previous.is_some()
    }
}

fn under(pepper: &Hmac<Sha256>, key: &[u8]) -> Digest {
    Digest::first_half(&pepper.clone().chain_update(key).finalize().into_bytes())
}

impl fmt::Debug for Digester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = if self.pepper.is_some() { "HMAC-SHA-256" } else { "SHA-256" };
        f.debug_tuple("Digester").field(&hash).finish()
    }
}

/// What the operator says of one API key.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiKey {
    /// For logs and metadata: not a secret.
    pub name: Arc<str>,
    pub tier: Option<TierIndex>,
    /// Always denied.
    pub suspended: bool,
    /// What differs from the tier.
    pub limits: Limits,
}

/// The known API keys, by digest.
#[derive(Clone, Debug, Default)]
pub struct ApiKeys {
    by_digest: HashMap<Digest, ApiKey>,
}

impl ApiKeys {
    pub fn find(&self, digest: &Digest) -> Option<&ApiKey> {
        self.by_digest.get(digest)
    }

    pub fn len(&self) -> usize {
        self.by_digest.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }
}

impl FromIterator<(Digest, ApiKey)> for ApiKeys {
    fn from_iter<I: IntoIterator<Item = (Digest, ApiKey)>>(keys: I) -> Self {
        Self { by_digest: keys.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn digests_are_the_first_32_hex_digits_of_the_standard_hashes() {
        // printf sk-test | sha256sum; printf sk-test | openssl dgst -sha256 -hmac pepper
        assert_eq!(Digester::new(None).digest(b"sk-test").to_string(), SHA256_SK_TEST);
        assert_eq!(Digester::new(Some(b"pepper")).digest(b"sk-test").to_string(), HMAC_SK_TEST);
    }

    #[test]
    fn during_a_rotation_a_key_has_two_digests_of_which_the_new_one_counts() {
        let digester = Digester::new(Some(b"new")).with_previous(b"pepper");
        assert_eq!(digester.digest(b"sk-test"), Digester::new(Some(b"new")).digest(b"sk-test"));
        assert_eq!(digester.previous_digest(b"sk-test").unwrap().to_string(), HMAC_SK_TEST);
        assert_eq!(Digester::new(Some(b"new")).previous_digest(b"sk-test"), None);
    }

    const SHA256_SK_TEST: &str = "f3abf2a6cc4f00987743db5f544ba345";
    const HMAC_SK_TEST: &str = "a84029a881ee3a5626797adc981f0106";

    #[test]
    fn a_digest_reads_back_and_nothing_else_reads() {
        let digest = Digester::default().digest(b"k");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for bad in ["", "abc", "+0000000000000000000000000000000", &digest.to_string().to_uppercase(), "sk-secret"] {
            assert_eq!(bad.parse::<Digest>(), Err(DigestError), "{bad}");
        }
    }
}
