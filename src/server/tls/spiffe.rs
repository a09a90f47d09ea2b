//! SPIFFE ids of clients: which are let in, and whether a certificate has one of them.
//!
//! An id is `spiffe://trust-domain/path`, the one URI among the names of a certificate (SPIFFE X509-SVID, 2). Who vouches
//! for a certificate is checked first, by somebody else.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use thiserror::Error as ThisError;
use x509_parser::extensions::GeneralName;

/// The longest id, and the longest name of a trust domain, in bytes (SPIFFE-ID, 2.1 and 2.3).
const MAX_ID: usize = 2048;
const MAX_DOMAIN: usize = 255;

const SCHEME: &str = "spiffe://";

/// One id, or all below one: `spiffe://mesh.example/ns/gateways/*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    Exact(String),
    /// Up to the slash before the star, and that slash included.
    Below(String),
}

/// Why a text is no pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum PatternError {
    #[error("is no SPIFFE id; write spiffe://trust-domain/path")]
    NoId,
    #[error("has a star elsewhere than as its last part; write spiffe://trust-domain/path/*")]
    Star,
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let bare = text.strip_suffix("/*");
        if bare.unwrap_or(text).contains('*') {
            return Err(PatternError::Star);
        }
        match bare {
            Some(bare) if is_id(bare) => Ok(Self::Below(format!("{bare}/"))),
            // The id of a trust domain itself is nobody's who connects.
            None if is_id(text) && has_path(text) => Ok(Self::Exact(text.to_owned())),
            _ => Err(PatternError::NoId),
        }
    }
}

impl Pattern {
    pub fn matches(&self, id: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == id,
            Self::Below(start) => id.len() > start.len() && id.starts_with(start.as_str()),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(id) => f.write_str(id),
            Self::Below(start) => write!(f, "{start}*"),
        }
    }
}

fn has_path(id: &str) -> bool {
    id.strip_prefix(SCHEME).is_some_and(|rest| rest.contains('/'))
}

/// Whether a text is an id as the standard writes it (SPIFFE-ID, 2), with or without a path.
fn is_id(text: &str) -> bool {
    let Some(rest) = text.strip_prefix(SCHEME).filter(|_| text.len() <= MAX_ID) else { return false };
    let (domain, path) = rest.split_once('/').map_or((rest, None), |(domain, path)| (domain, Some(path)));
    let of_domain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
    let of_path = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(of_path);
    (1..=MAX_DOMAIN).contains(&domain.len())
        && domain.bytes().all(of_domain)
        && path.is_none_or(|path| path.split('/').all(is_part))
}

/// The certificate of a client is good, and it is none of those who are let in. The id is as the certificate states it,
/// on one line and not longer than an id may be.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
pub(super) enum NotAllowed {
    #[error("the client's certificate has {0}, which client_spiffe_ids does not name")]
    Other(String),
    #[error("the client's certificate has no SPIFFE id, or more than one URI")]
    NoId,
}

/// Lets clients in by their SPIFFE id, once another has found their certificates good.
#[derive(Debug)]
pub(super) struct AllowedIds {
    ids: Vec<Pattern>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl AllowedIds {
    pub(super) fn new(ids: Vec<Pattern>, verifier: Arc<dyn ClientCertVerifier>) -> Self {
        Self { ids, verifier }
    }

    fn admit(&self, certificate: &[u8]) -> Result<(), NotAllowed> {
        let id = id_of(certificate).ok_or(NotAllowed::NoId)?;
        if self.ids.iter().any(|pattern| pattern.matches(&id)) { Ok(()) } else { Err(NotAllowed::Other(id)) }
    }
}

/// The one URI of a certificate, if it is an id with a path.
fn id_of(certificate: &[u8]) -> Option<String> {
    let (_, read) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let names = read.subject_alternative_name().ok()??;
    let mut uris = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let only = uris.next().filter(|_| uris.next().is_none())?;
    (is_id(only) && has_path(only)).then(|| only.to_owned())
}

impl ClientCertVerifier for AllowedIds {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(end_entity, intermediates, now)?;
        match self.admit(end_entity) {
            Ok(()) => Ok(verified),
            Err(why) => Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why))))),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn an_id_is_matched_as_it_is_or_by_what_it_is_below() {
        let one: Pattern = "spiffe://mesh.example/ns/gateways/sa/envoy".parse().unwrap();
        assert!(one.matches("spiffe://mesh.example/ns/gateways/sa/envoy"));
        for other in ["spiffe://mesh.example/ns/gateways/sa/envoy2", "spiffe://mesh.example/ns/gateways/sa", ""] {
            assert!(!one.matches(other), "{other}");
        }
        let all: Pattern = "spiffe://mesh.example/ns/gateways/*".parse().unwrap();
        assert!(all.matches("spiffe://mesh.example/ns/gateways/sa/envoy"));
        for other in [
            "spiffe://mesh.example/ns/gateways",
            "spiffe://mesh.example/ns/gateways/",
            "spiffe://mesh.example/ns/gateways-of-others/sa/envoy",
            "spiffe://mesh.example.evil.example/ns/gateways/sa/envoy",
        ] {
            assert!(!all.matches(other), "{other}");
        }
        assert!("spiffe://mesh.example/*".parse::<Pattern>().unwrap().matches("spiffe://mesh.example/x"));
        for pattern in [one, all] {
            assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in [
            "",
            "mesh.example/ns/a",
            "https://mesh.example/ns/a",
            "SPIFFE://mesh.example/a",
            "spiffe://",
            "spiffe:///a",
            "spiffe://mesh.example",
            "spiffe://mesh.example/",
            "spiffe://Mesh.example/a",
            "spiffe://mesh.example:443/a",
            "spiffe://user@mesh.example/a",
            "spiffe://mesh.example/a/",
            "spiffe://mesh.example//a",
            "spiffe://mesh.example/a/../b",
            "spiffe://mesh.example/a%20b",
            "spiffe://mesh.example/a?b",
            "spiffe://mesh.example/a b",
        ] {
            assert_eq!(text.parse::<Pattern>(), Err(PatternError::NoId), "{text}");
        }
        for text in
            ["*", "spiffe://*", "spiffe://*/a", "spiffe://m/*/a", "spiffe://m/a*", "spiffe://m/**", "spiffe://*/*"]
        {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
        let long = format!("spiffe://m/{}", "a".repeat(MAX_ID));
        assert_eq!(long.parse::<Pattern>(), Err(PatternError::NoId));
    }
}
