//! The keys that verify tokens: a JSON Web Key Set (RFC 7517), or one shared secret.
//!
//! Each key says itself for which algorithms it is, by its kind, its curve and its `alg`; what a token says only chooses
//! among those. Knows nothing of where keys come from.

use crate::metrics::JwtVerdict;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use serde::Deserialize;
use serde_json::Value;
use std::str::FromStr as _;
use thiserror::Error;

/// Keys that are tried at most for one token: where a token or the keys have no `kid`, several may fit, and each costs a
/// verification.
const MOST_TRIED: usize = 4;

/// The shortest RSA modulus that is trusted, in bytes: 2048 bits (RFC 7518, 3.3).
const SHORTEST_RSA: usize = 256;

const RSA: &[Algorithm] =
    &[Algorithm::RS256, Algorithm::RS384, Algorithm::RS512, Algorithm::PS256, Algorithm::PS384, Algorithm::PS512];

/// Why a text holds no keys of use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JwksError {
    #[error("is no JSON Web Key Set, such as {{\"keys\": [{{\"kty\": \"RSA\", …}}]}}")]
    NoSet,
    #[error("holds no key that verifies signatures: RSA of 2048 bits or more, EC on P-256 or P-384, or Ed25519")]
    NoKey,
}

/// Keys to verify with.
#[derive(Clone, Debug, Default)]
pub(super) struct KeySet {
    keys: Vec<Key>,
}

#[derive(Clone, Debug)]
struct Key {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<Value>,
}

impl KeySet {
    /// The keys of use in the JSON of a JWKS. Others, such as those for encryption, are passed over, as RFC 7517 wants it.
    ///
    /// # Errors
    /// When it is something else, or holds none of use.
    pub(super) fn parse(text: &[u8]) -> Result<Self, JwksError> {
        let set: Jwks = serde_json::from_slice(text).map_err(|_| JwksError::NoSet)?;
        let keys: Vec<Key> = set.keys.into_iter().filter_map(Key::of).collect();
        if keys.is_empty() { Err(JwksError::NoKey) } else { Ok(Self { keys }) }
    }

    /// One secret, for HS256.
    pub(super) fn of_secret(secret: &[u8]) -> Self {
        let key = Key { id: None, algorithms: vec![Algorithm::HS256], key: DecodingKey::from_secret(secret) };
        Self { keys: vec![key] }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The keys that may have signed a token with this `alg` and `kid`.
    ///
    /// # Errors
    /// When there are none, and whether that is for the `alg` or for the `kid`.
    pub(super) fn find(&self, alg: &str, kid: Option<&str>) -> Result<(Algorithm, Vec<&DecodingKey>), JwtVerdict> {
        let algorithm = Algorithm::from_str(alg).map_err(|_| JwtVerdict::Unsupported)?;
        let named = |key: &&Key| kid.is_none() || key.id.is_none() || key.id.as_deref() == kid;
        let fits = |key: &&Key| key.algorithms.contains(&algorithm);
        let found: Vec<&DecodingKey> =
            self.keys.iter().filter(named).filter(fits).map(|key| &key.key).take(MOST_TRIED).collect();
        if !found.is_empty() {
            return Ok((algorithm, found));
        }
        // Where keys are public no key that may yet come is for a shared secret.
        let never =
            !RSA.contains(&algorithm) && !matches!(algorithm, Algorithm::ES256 | Algorithm::ES384 | Algorithm::EdDSA);
        let known = kid.is_some() && self.keys.iter().any(|key| key.id.as_deref() == kid);
        Err(if never || known { JwtVerdict::Unsupported } else { JwtVerdict::UnknownKey })
    }
}

impl Key {
    /// `None`: it is of no use here.
    fn of(jwk: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(jwk).ok()?;
        let common = &jwk.common;
        let for_signatures = common.public_key_use.as_ref().is_none_or(|usage| *usage == PublicKeyUse::Signature);
        let verifies = common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
        if !for_signatures || !verifies {
            return None;
        }
        let mut algorithms = by_kind(&jwk.algorithm).to_vec();
        if let Some(stated) = common.key_algorithm {
            let stated = Algorithm::from_str(&stated.to_string()).ok()?;
            algorithms.retain(|algorithm| *algorithm == stated);
        }
        let key = DecodingKey::from_jwk(&jwk).ok().filter(|key| !algorithms.is_empty() && is_whole(key, &jwk))?;
        Some(Self { id: jwk.common.key_id, algorithms, key })
    }
}

/// A shared secret in a public set is no secret.
fn by_kind(kind: &AlgorithmParameters) -> &'static [Algorithm] {
    match kind {
        AlgorithmParameters::RSA(_) => RSA,
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => &[Algorithm::ES256],
            EllipticCurve::P384 => &[Algorithm::ES384],
            EllipticCurve::P521 | EllipticCurve::Ed25519 => &[],
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => &[Algorithm::EdDSA],
        AlgorithmParameters::OctetKeyPair(_) | AlgorithmParameters::OctetKey(_) => &[],
    }
}

/// Whether a key is as long as one of its kind must be.
fn is_whole(key: &DecodingKey, jwk: &Jwk) -> bool {
    match (key.kind(), &jwk.algorithm) {
        (DecodingKeyKind::RsaModulusExponent { n, e }, _) => {
            n.iter().skip_while(|byte| **byte == 0).count() >= SHORTEST_RSA && !e.is_empty()
        }
        (DecodingKeyKind::SecretOrDer(point), AlgorithmParameters::EllipticCurve(key)) => {
            point.len() == if key.curve == EllipticCurve::P256 { 65 } else { 97 }
        }
        (DecodingKeyKind::SecretOrDer(point), _) => point.len() == 32,
    }
}
