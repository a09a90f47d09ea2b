//! Bearer tokens (JWT, RFC 7519) that are verified here, for gateways where Envoy asks before its jwt_authn has run.
//!
//! Takes a request, gives the claims that the policy reads, or why there are none. Who has no good token is nobody: this
//! limits and does not authenticate. No token is ever kept, only its digest. Knows no limits, and no protocol of checks.

mod crypto;
mod fetch;
mod keys;
mod memory;
mod refresh;
mod verify;

pub use fetch::RootsError;
pub use keys::JwksError;

use crate::clock::{Clock, Stopwatch};
use crate::metrics::{self, JwtVerdict};
use crate::policy::claims::{ClaimPath, Claims};
use crate::policy::request::Request;
use fetch::Origin;
use hyper::Uri;
use keys::KeySet;
use memory::{Known, Memory};
use parking_lot::Mutex;
use refresh::Keys;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use verify::Rules;

/// The largest JWKS that is read, in bytes.
pub const LARGEST_JWKS: usize = fetch::LARGEST;

/// Which tokens are believed, and what is read of them. Proven by `config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub keys: KeySource,
    /// What `iss` must be.
    pub issuer: String,
    /// What `aud` must name one of; empty: tokens may be for anybody.
    pub audiences: Vec<String>,
    /// Where the token stands, in lower case; `Bearer ` before it is no part of it.
    pub header: String,
    /// How far the issuer's clock may be from ours.
    pub leeway: Duration,
    /// Tokens at most that are remembered, good and bad ones each.
    pub cache_size: usize,
    /// What the policy reads.
    pub claims: Vec<ClaimPath>,
}

/// Where the keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The text of a JWKS.
    Jwks(Text),
    /// Where one is fetched, each time after `refresh`. `ca`: roots in PEM instead of Mozilla's.
    Url { url: JwksUrl, refresh: Duration, ca: Option<Text> },
    /// A secret that the issuer shares, for HS256.
    Secret(Text),
}

/// What a file held.
#[derive(Clone, PartialEq, Eq)]
pub struct Text(pub Arc<[u8]>);

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// `http://` or `https://` with a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksUrl(Uri);

impl JwksUrl {
    /// `None`: it is none, or holds a user or a password, which would be logged.
    pub fn parse(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let host = uri.host().filter(|host| !host.is_empty())?;
        let bare = uri.authority().is_some_and(|authority| authority.as_str() == host);
        let port = bare || uri.port_u16().is_some_and(|port| port > 0);
        let http = matches!(uri.scheme_str(), Some("http" | "https"));
        (http && port && !text.contains(['@', '#'])).then_some(Self(uri))
    }

    pub fn is_tls(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }

    fn uri(&self) -> &Uri {
        &self.0
    }

    /// Host and port to connect to.
    pub fn place(&self) -> (&str, u16) {
        let host = self.0.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        (host, self.0.port_u16().unwrap_or(if self.is_tls() { 443 } else { 80 }))
    }
}

impl fmt::Display for JwksUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Proves that a text is a JWKS with a key of use.
///
/// # Errors
/// When it is not.
pub fn prove_jwks(text: &[u8]) -> Result<(), JwksError> {
    KeySet::parse(text).map(drop)
}

/// Proves that a text holds certificates to trust, in PEM.
///
/// # Errors
/// When it does not.
pub fn prove_roots(pem: &[u8]) -> Result<(), RootsError> {
    fetch::roots(Some(pem)).map(drop)
}

/// What came of a request's token.
#[derive(Clone, Debug)]
pub struct Verified {
    pub verdict: JwtVerdict,
    claims: Option<Arc<Claims>>,
}

impl Verified {
    /// What it says, if it is to be believed.
    pub fn claims(&self) -> Option<&Claims> {
        self.claims.as_deref()
    }
}

impl From<JwtVerdict> for Verified {
    fn from(verdict: JwtVerdict) -> Self {
        Self { verdict, claims: None }
    }
}

/// Verifies the tokens of requests.
#[derive(Debug)]
pub struct Verifier {
    settings: Settings,
    rules: Rules,
    keys: Arc<Keys>,
    clock: Arc<dyn Clock>,
    memory: Mutex<Memory>,
}

impl Verifier {
    /// Begins to fetch the keys, where they are fetched. `before` is what this one replaces: its keys go on, if they
    /// come from the same place.
    ///
    /// # Panics
    /// Outside a tokio runtime, where keys are fetched.
    pub fn start(
        settings: Settings,
        before: Option<&Self>,
        clock: Arc<dyn Clock>,
        stopwatch: Arc<dyn Stopwatch>,
        metrics: metrics::Jwt,
    ) -> Self {
        crypto::install();
        let keys = match before.filter(|before| before.settings.keys == settings.keys) {
            Some(before) => before.keys.clone(),
            None => Arc::new(keys(&settings.keys, before, stopwatch, metrics)),
        };
        let rules = Rules::new(&settings.issuer, &settings.audiences, settings.leeway, settings.claims.clone());
        let memory = Mutex::new(Memory::new(settings.cache_size));
        Self { settings, rules, keys, clock, memory }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Keys in force.
    pub fn key_count(&self) -> usize {
        self.keys.current().set.len()
    }

    /// How long ago the keys were fetched, or since when they are asked for in vain; `None` where they are given.
    pub fn key_age(&self) -> Option<Duration> {
        matches!(self.settings.keys, KeySource::Url { .. }).then(|| self.keys.age())
    }

    /// Tokens that are remembered: good ones, and bad ones.
    pub fn remembered(&self) -> [usize; 2] {
        self.memory.lock().sizes()
    }

    /// Waits until the keys were fetched once, or could not be. For who asks once, and not for checks.
    pub async fn keys_tried(&self) {
        self.keys.tried().await;
    }

    /// Says what a request's token says, if it is to be believed.
    pub fn verify(&self, request: &Request<'_>) -> Verified {
        let Some(value) = request.header(&self.settings.header) else {
            return JwtVerdict::Missing.into();
        };
        match token_of(&value, &self.settings.header) {
            None => JwtVerdict::Missing.into(),
            Some(token) if token.len() > verify::LONGEST => JwtVerdict::TooLong.into(),
            Some(token) if !verify::has_form(token) => JwtVerdict::Malformed.into(),
            Some(token) => self.known_or_verified(token),
        }
    }

    fn known_or_verified(&self, token: &[u8]) -> Verified {
        let (digest, keys, now) = (Sha256::digest(token).into(), self.keys.current(), self.clock.now());
        let known = self.memory.lock().find(&digest, keys.generation, now);
        let verified = match known {
            Some(Known::Good(claims)) => Verified { verdict: JwtVerdict::Cached, claims: Some(claims) },
            Some(Known::Bad(why)) => why.into(),
            None => match self.rules.verify(token, &keys.set, now) {
                Ok(proven) => {
                    let claims = Arc::new(proven.claims);
                    self.memory.lock().remember(digest, claims.clone(), proven.until, keys.generation);
                    Verified { verdict: JwtVerdict::Verified, claims: Some(claims) }
                }
                Err(refusal) => {
                    self.memory.lock().refuse(digest, refusal, keys.generation, now);
                    refusal.why.into()
                }
            },
        };
        if verified.verdict == JwtVerdict::UnknownKey {
            self.keys.want();
        }
        verified
    }
}

fn keys(source: &KeySource, before: Option<&Verifier>, stopwatch: Arc<dyn Stopwatch>, metrics: metrics::Jwt) -> Keys {
    match source {
        // They were proven with the configuration.
        KeySource::Jwks(text) => Keys::fixed(KeySet::parse(&text.0).unwrap_or_default(), stopwatch),
        KeySource::Secret(secret) => Keys::fixed(KeySet::of_secret(&secret.0), stopwatch),
        KeySource::Url { url, refresh, ca } => {
            let ca = ca.as_ref().map(|text| &*text.0);
            let same_place =
                |before: &&Verifier| matches!(&before.settings.keys, KeySource::Url { url: there, .. } if there == url);
            let last = before.filter(same_place).map(|before| before.keys.current().set.clone()).unwrap_or_default();
            match Origin::new(url.clone(), ca) {
                Ok(origin) => Keys::fetched(origin, *refresh, last, stopwatch, metrics),
                Err(_) => Keys::fixed(last, stopwatch),
            }
        }
    }
}

/// The token in a header. In `authorization` it stands behind a scheme, elsewhere it may.
fn token_of<'v>(value: &'v [u8], header: &str) -> Option<&'v [u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let value = value.trim_ascii();
    let bare = match value.split_at_checked(SCHEME.len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(SCHEME) => token.trim_ascii(),
        _ if header == "authorization" => return None,
        _ => value,
    };
    (!bare.is_empty()).then_some(bare)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn an_address_of_keys_is_a_scheme_a_host_and_perhaps_a_port() {
        for (good, host, port) in [
            ("https://issuer.example/.well-known/jwks.json", "issuer.example", 443),
            ("http://h", "h", 80),
            ("https://h:8443/keys?tenant=1", "h", 8443),
            ("http://[::1]:8080/", "::1", 8080),
            ("HTTPS://H/", "H", 443),
        ] {
            assert_eq!(JwksUrl::parse(good).unwrap().place(), (host, port), "{good}");
        }
        for bad in [
            "",
            "h",
            "h/keys",
            "/keys",
            "ftp://h/",
            "https://",
            "https:///keys",
            "https://:443/",
            "https://h:/",
            "https://h:0/",
        ] {
            assert_eq!(JwksUrl::parse(bad), None, "{bad}");
        }
        for bad in
            ["https://u:hunter2@h/", "https://u@h/", "https://h:65536/", "https://h/#x", "https://a b/", "https://h\n/"]
        {
            assert_eq!(JwksUrl::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_token_stands_behind_its_scheme_and_elsewhere_it_may() {
        let of = |value: &'static str, header| {
            token_of(value.as_bytes(), header).map(|token| str::from_utf8(token).unwrap())
        };
        for value in ["Bearer a.b.c", "bearer a.b.c", "BEARER   a.b.c ", " Bearer a.b.c"] {
            assert_eq!(of(value, "authorization"), Some("a.b.c"), "{value:?}");
            assert_eq!(of(value, "x-jwt"), Some("a.b.c"), "{value:?}");
        }
        assert_eq!((of("a.b.c", "authorization"), of("a.b.c", "x-jwt")), (None, Some("a.b.c")));
        for none in ["", " ", "Bearer", "Bearer ", "Basic a.b.c", "Bearera.b.c"] {
            assert_eq!(of(none, "authorization"), None, "{none:?}");
        }
    }

    #[test]
    fn neither_secrets_nor_keys_are_shown() {
        let secret = KeySource::Secret(Text(b"hunter2"[..].into()));
        assert!(!format!("{secret:?} {:?}", KeySet::of_secret(b"hunter2")).contains("hunter2"));
        assert!(!format!("{:?}", KeySet::of_secret(&[77; 32])).contains("77"));
    }
}
