//! One token: is its signature right, is it for us, is it its time. Pure: keys and time are given.
//!
//! jsonwebtoken checks the signature, `iss` and `aud`. `exp` and `nbf` are checked here, as it would look at a clock of
//! its own. A token is only ever read, never kept or shown.

use super::keys::KeySet;
use crate::bucket::Timestamp;
use crate::metrics::JwtVerdict;
use crate::policy::claims::{ClaimPath, Claims};
use crate::policy::request::Scalar;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation, decode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

/// The longest token that is looked at, in bytes. Most servers accept no longer header.
pub(super) const LONGEST: usize = 8 << 10;

/// What a token must say, and what is read of it.
#[derive(Debug)]
pub(super) struct Rules {
    validation: Validation,
    /// Empty: a token may be for anybody.
    audiences: Vec<String>,
    leeway: f64,
    claims: Vec<ClaimPath>,
}

/// What a good token says, and until when it does.
#[derive(Debug)]
pub(super) struct Proven {
    pub(super) claims: Claims,
    pub(super) until: Timestamp,
}

/// Why a token is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) why: JwtVerdict,
    /// When that changes by itself.
    pub(super) until: Option<Timestamp>,
}

impl From<JwtVerdict> for Refusal {
    fn from(why: JwtVerdict) -> Self {
        Self { why, until: None }
    }
}

/// A token's header (RFC 7515, 4.1), as far as it matters.
#[derive(Deserialize)]
struct Head<'t> {
    #[serde(borrow)]
    alg: Cow<'t, str>,
    #[serde(borrow)]
    kid: Option<Cow<'t, str>>,
    /// Names what must be understood; nothing of the kind is.
    crit: Option<IgnoredAny>,
}

/// Whether it has the form of a token: three parts of base64url, of which the last may be empty, as without a signature.
pub(super) fn has_form(token: &[u8]) -> bool {
    let is_base64 = |part: &[u8]| part.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    let mut parts = token.split(|byte| *byte == b'.');
    match [(); 4].map(|()| parts.next()) {
        [Some(head), Some(claims), Some(signature), None] => {
            !head.is_empty() && !claims.is_empty() && [head, claims, signature].into_iter().all(is_base64)
        }
        _ => false,
    }
}

impl Rules {
    pub(super) fn new(issuer: &str, audiences: &[String], leeway: Duration, claims: Vec<ClaimPath>) -> Self {
        let mut validation = Validation::new(Algorithm::EdDSA);
        (validation.validate_exp, validation.validate_nbf) = (false, false);
        validation.set_issuer(&[issuer]);
        validation.required_spec_claims = HashSet::from(["iss".to_owned()]);
        validation.validate_aud = !audiences.is_empty();
        validation.set_audience(audiences);
        Self { validation, audiences: audiences.to_vec(), leeway: leeway.as_secs_f64(), claims }
    }

    /// Verifies a token that has the form of one.
    pub(super) fn verify(&self, token: &[u8], keys: &KeySet, now: Timestamp) -> Result<Proven, Refusal> {
        let claims = self.signed(token, keys)?;
        if !self.audiences.is_empty() && !self.is_for_us(claims.get("aud")) {
            return Err(JwtVerdict::WrongAudience.into());
        }
        let until = self.in_time(&claims, now)?;
        let read = |path: &ClaimPath| scalar(&claims, path);
        Ok(Proven { claims: Claims::pick(&self.claims, read), until })
    }

    /// The claims of a token with a right signature, from the right issuer.
    fn signed(&self, token: &[u8], keys: &KeySet) -> Result<Map<String, Value>, Refusal> {
        let head = token.split(|byte| *byte == b'.').next().unwrap_or_default();
        let head = URL_SAFE_NO_PAD.decode(head).map_err(|_| JwtVerdict::Malformed)?;
        let Head { alg, kid, crit } = serde_json::from_slice(&head).map_err(|_| JwtVerdict::Malformed)?;
        if crit.is_some() {
            return Err(JwtVerdict::Unsupported.into());
        }
        let (algorithm, candidates) = keys.find(&alg, kid.as_deref())?;
        let mut validation = self.validation.clone();
        validation.algorithms = vec![algorithm];
        let mut why = JwtVerdict::UnknownKey;
        for key in candidates {
            match decode::<Map<String, Value>>(token, key, &validation) {
                Ok(token) => return Ok(token.claims),
                Err(error) => why = verdict(error.kind()),
            }
            if why != JwtVerdict::BadSignature {
                break;
            }
        }
        Err(why.into())
    }

    fn is_for_us(&self, audience: Option<&Value>) -> bool {
        let ours = |name: &Value| name.as_str().is_some_and(|name| self.audiences.iter().any(|ours| ours == name));
        match audience {
            Some(Value::Array(names)) => names.iter().any(ours),
            Some(name) => ours(name),
            None => false,
        }
    }

    /// Until when it is good, if it is so now.
    fn in_time(&self, claims: &Map<String, Value>, now: Timestamp) -> Result<Timestamp, Refusal> {
        let seconds = |name: &str| claims.get(name).map(|time| time.as_f64().ok_or(JwtVerdict::Malformed)).transpose();
        let until = micros(seconds("exp")?.ok_or(JwtVerdict::NoExpiry)? + self.leeway);
        if now.micros >= until.micros {
            return Err(JwtVerdict::Expired.into());
        }
        let from = seconds("nbf")?.map(|from| micros(from - self.leeway));
        match from {
            Some(from) if now.micros < from.micros => Err(Refusal { why: JwtVerdict::NotYetValid, until: Some(from) }),
            Some(_) | None => Ok(until),
        }
    }
}

/// Times before 1970 and after the end of all clocks are the nearest that there is.
fn micros(seconds: f64) -> Timestamp {
    Timestamp { micros: (seconds * 1e6) as u64 }
}

fn scalar<'c>(claims: &'c Map<String, Value>, path: &ClaimPath) -> Option<Scalar<'c>> {
    let (last, parents) = path.0.split_last()?;
    let inner = parents.iter().try_fold(claims, |claims, name| claims.get(name)?.as_object())?;
    match inner.get(last)? {
        Value::String(text) => Some(Scalar::Text(text.as_bytes())),
        Value::Number(number) => number.as_f64().map(Scalar::Number),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn verdict(error: &ErrorKind) -> JwtVerdict {
    match error {
        ErrorKind::InvalidSignature => JwtVerdict::BadSignature,
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidKeyFormat => JwtVerdict::Unsupported,
        ErrorKind::InvalidIssuer | ErrorKind::MissingRequiredClaim(_) => JwtVerdict::WrongIssuer,
        ErrorKind::InvalidAudience => JwtVerdict::WrongAudience,
        _ => JwtVerdict::Malformed,
    }
}
