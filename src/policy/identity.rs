//! Who is asking: the user, the API key and the address, each in the form in which it is stored.
//!
//! Gives identities; knows nothing of limits. What may be trusted is the operator's choice of sources.

use super::api_key::{Digest, Digester};
use super::claims::ClaimPath;
use super::client_ip::{AddressSource, ClientAddress, Prefixes};
use super::request::Request;
use super::tier::TierSource;
use crate::bucket::Dimension;
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;

/// Where identities are read, in order of preference.
#[derive(Debug, Default)]
pub struct Sources {
    pub user: Vec<UserSource>,
    pub key: Vec<KeySource>,
    pub ip: AddressSource,
    pub prefixes: Prefixes,
    pub tier: Vec<TierSource>,
    pub digester: Digester,
}

/// A place in Envoy's dynamic metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataPath {
    pub namespace: String,
    pub path: Vec<String>,
}

impl MetadataPath {
    /// The text found there.
    pub fn read<'a>(&self, request: &Request<'a>) -> Option<Cow<'a, [u8]>> {
        request.metadata?.find(&self.namespace, &self.path)?.text()
    }
}

/// Where the user's id is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserSource {
    Metadata(MetadataPath),
    /// A claim of a token that was verified here.
    Jwt(ClaimPath),
    /// The identity in the client's certificate.
    Principal,
    /// A header, which the client writes unless Envoy overwrites it.
    Header(String),
}

/// What kind of source named the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserFrom {
    Metadata,
    Jwt,
    Principal,
    Header,
}

/// Where the API key is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    Header(String),
    /// `authorization: Bearer <key>`.
    Bearer,
}

impl KeySource {
    /// The header that carries the key.
    pub fn header(&self) -> &str {
        match self {
            Self::Header(name) => name,
            Self::Bearer => "authorization",
        }
    }

    fn read<'a>(&self, request: &Request<'a>) -> Option<Cow<'a, [u8]>> {
        let value = request.header(self.header())?;
        let key = match self {
            Self::Header(_) => value,
            Self::Bearer => bearer(&value)?.to_vec().into(),
        };
        (!key.is_empty()).then_some(key)
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let (scheme, key) = value.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then(|| key.trim_ascii())
}

/// The stored forms of one caller's identities.
#[derive(Debug, Default)]
pub struct Caller {
    pub user: Option<String>,
    pub key: Option<Digest>,
    pub ip: Option<ClientAddress>,
}

impl Caller {
    /// The identity in a dimension, as it stands in the bucket's name.
    pub fn id(&self, dimension: Dimension) -> Option<Cow<'_, str>> {
        match dimension {
            Dimension::User => self.user.as_deref().map(Cow::Borrowed),
            Dimension::Key => self.key.map(|digest| Cow::Owned(digest.to_string())),
            Dimension::Ip => self.ip.as_ref().map(|ip| Cow::Owned(ip.to_string())),
        }
    }
}

impl Sources {
    /// Reads all three identities. An address is always found, if only `unknown`.
    pub fn caller(&self, request: &Request<'_>) -> Caller {
        Caller {
            user: self.user(request),
            key: self.key(request).map(|key| self.digester.digest(&key)),
            ip: Some(self.ip.read(request, &self.prefixes)),
        }
    }

    /// The digest under which the caller's API key was known before the pepper was changed, while that goes on.
    pub(super) fn previous_key(&self, request: &Request<'_>) -> Option<Digest> {
        if !self.digester.has_previous() {
            return None;
        }
        self.digester.previous_digest(&self.key(request)?)
    }

    fn key<'a>(&self, request: &Request<'a>) -> Option<Cow<'a, [u8]>> {
        self.key.iter().find_map(|source| source.read(request))
    }

    /// The first source that names someone; an id that is there but empty counts only where no other is found.
    fn user(&self, request: &Request<'_>) -> Option<String> {
        self.named(request).map(|(_, id)| stored_user(&id).into_owned())
    }

    /// What kind of source that was.
    pub(super) fn user_from(&self, request: &Request<'_>) -> Option<UserFrom> {
        self.named(request).map(|(source, _)| source.kind())
    }

    fn named<'s, 'a>(&'s self, request: &Request<'a>) -> Option<(&'s UserSource, Cow<'a, [u8]>)> {
        let mut named = self.user.iter().filter_map(|source| Some((source, source.read(request)?)));
        let first = named.next()?;
        Some(if first.1.is_empty() { named.find(|(_, id)| !id.is_empty()).unwrap_or(first) } else { first })
    }

    /// The claims that are read of a verified token.
    pub fn claims(&self) -> impl Iterator<Item = &ClaimPath> {
        let users = self.user.iter().filter_map(|source| match source {
            UserSource::Jwt(path) => Some(path),
            UserSource::Metadata(_) | UserSource::Principal | UserSource::Header(_) => None,
        });
        let tiers = self.tier.iter().filter_map(|source| match source {
            TierSource::Jwt(path) => Some(path),
            TierSource::Metadata(_) | TierSource::ApiKey | TierSource::Header(_) => None,
        });
        users.chain(tiers)
    }
}

impl UserSource {
    fn read<'a>(&self, request: &Request<'a>) -> Option<Cow<'a, [u8]>> {
        match self {
            Self::Metadata(path) => path.read(request),
            Self::Jwt(path) => request.claims?.find(path).map(Cow::Borrowed),
            Self::Principal => Some(request.principal).filter(|principal| !principal.is_empty()).map(Cow::Borrowed),
            Self::Header(name) => request.header(name),
        }
    }

    fn kind(&self) -> UserFrom {
        match self {
            Self::Metadata(_) => UserFrom::Metadata,
            Self::Jwt(_) => UserFrom::Jwt,
            Self::Principal => UserFrom::Principal,
            Self::Header(_) => UserFrom::Header,
        }
    }
}

/// The longest user id, in bytes, that is stored as it is.
const MAX_PLAIN_USER: usize = 128;

/// The form in which a user id is stored: itself when it is 1 to 128 bytes of printable ASCII without space, `{`, `}`
/// and a leading `~`; else `~` and the first 32 hex digits of its SHA-256.
///
/// So no id can choose a cluster slot, blow up a key, forge another's, or break a line in a log.
pub fn stored_user(raw: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(raw) {
        Ok(text) if is_plain(raw) => Cow::Borrowed(text),
        _ => Cow::Owned(format!("~{}", sha256(raw))),
    }
}

fn is_plain(raw: &[u8]) -> bool {
    (1..=MAX_PLAIN_USER).contains(&raw.len())
        && raw[0] != b'~'
        && raw.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}'))
}

/// The first half of a SHA-256: enough to tell identities apart, and to hide them.
pub fn sha256(raw: &[u8]) -> Digest {
    Digest::first_half(&Sha256::digest(raw))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn hostile_user_ids_never_share_a_bucket_nor_forge_one() {
        let long = "x".repeat(10_000);
        let also_long = format!("{long}y");
        let ids: [&[u8]; 14] = [
            b"",
            long.as_bytes(),
            also_long.as_bytes(),
            b"a{b}c",
            b"{b}",
            b"user:ip:1.2.3.4",
            b"new\nline",
            b"nul\0",
            "\u{1f980}".as_bytes(),
            b"~abc",
            b"a b",
            b"\xff\xfe",
            b"\xff\xff",
            b"alice",
        ];
        let stored: HashSet<String> = ids.iter().map(|id| stored_user(id).into_owned()).collect();
        assert_eq!(stored.len(), ids.len());
        for id in &stored {
            assert!(id.len() <= 128 && id.bytes().all(|b| b.is_ascii_graphic() && b != b'{' && b != b'}'), "{id}");
            assert_eq!(id.starts_with('~'), !["alice", "user:ip:1.2.3.4"].contains(&id.as_str()), "{id}");
        }
        let hashed = stored_user(b"a{b}c").into_owned();
        assert_ne!(stored_user(hashed.as_bytes()), hashed, "an id in the hashed form is not the id it hashes");
    }

    #[test]
    fn a_bearer_key_is_read_whatever_the_case_of_the_scheme() {
        assert_eq!(bearer(b"Bearer sk-1"), Some(&b"sk-1"[..]));
        assert_eq!(bearer(b"bearer  sk-1 "), Some(&b"sk-1"[..]));
        for none in [&b"Basic abc"[..], b"Bearer", b"", b"Bearersk-1"] {
            assert_eq!(bearer(none), None);
        }
    }

    #[test]
    fn an_empty_key_is_no_key() {
        let mut request = Request::default();
        request.headers.extend([(&b"x-api-key"[..], &b""[..]), (b"authorization", b"Bearer ")]);
        assert_eq!(KeySource::Header("x-api-key".into()).read(&request), None);
        assert_eq!(KeySource::Bearer.read(&request), None);
    }
}
