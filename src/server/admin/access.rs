//! Who may ask of the admin endpoint more than whether the process is well.
//!
//! Where a token is set, whoever sends it. Where none is, whoever is on this machine, and on a port that others reach nobody.
//! A browser is on this machine too, and does what any page says: so without a token nothing is answered that names another
//! host (DNS rebinding) or comes from a page (`Origin`).

use super::{Answer, Told, json};
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use subtle::ConstantTimeEq as _;

/// The rule of one endpoint.
pub struct Access {
    /// Whether only this machine reaches it.
    local: bool,
    /// The SHA-256 of the token: of equal length whatever the token's, so that comparing tells nothing of it.
    token: Mutex<Option<[u8; 32]>>,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It has no token, or another.
    WrongToken,
    /// Nobody may ask here until there is a token.
    NoTokenSet,
    /// It comes, or may come, from a page in a browser.
    Browser,
}

impl Access {
    /// Of an endpoint that listens at `address`.
    pub fn new(address: SocketAddr, token: Option<&[u8]>) -> Self {
        let access = Self { local: address.ip().to_canonical().is_loopback(), token: Mutex::default() };
        access.set_token(token);
        access
    }

    /// Has another token asked for from now on.
    pub fn set_token(&self, token: Option<&[u8]>) {
        *self.token.lock() = token.map(hash);
    }

    /// Whether nobody may ask for more than whether the process is well.
    pub fn is_closed(&self) -> bool {
        !self.local && self.token.lock().is_none()
    }

    pub(super) fn admit(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        match *self.token.lock() {
            Some(token) => {
                let given = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes())).map(hash);
                let right = given.is_some_and(|given| bool::from(given.ct_eq(&token)));
                if right { Ok(()) } else { Err(Refusal::WrongToken) }
            }
            None if !self.local => Err(Refusal::NoTokenSet),
            None if headers.contains_key(ORIGIN) || !headers.get(HOST).is_none_or(names_this_machine) => {
                Err(Refusal::Browser)
            }
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.lock().is_some();
        f.debug_struct("Access").field("local", &self.local).field("token", &token).finish()
    }
}

impl Refusal {
    pub(super) fn answer(self) -> Answer {
        const SET: &str = "set TIDEGATE_ADMIN_TOKEN or TIDEGATE_ADMIN_TOKEN_FILE";
        const SEND: &str = "send `authorization: Bearer <token>`";
        match self {
            Self::WrongToken => {
                let mut answer =
                    json(Told::fault(StatusCode::UNAUTHORIZED, format!("no token, or another one: {SEND}")));
                answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                answer
            }
            Self::NoTokenSet => {
                let why = "the admin endpoint listens beyond this machine and no token is set";
                json(Told::fault(StatusCode::FORBIDDEN, format!("{why}: {SET}, and {SEND}")))
            }
            Self::Browser => {
                let why = "without a token only this machine is answered, by its address or as localhost, and no page";
                json(Told::fault(StatusCode::FORBIDDEN, format!("{why}: {SET} to be asked otherwise")))
            }
        }
    }
}

fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Whether a Host header is an address, or a name that no DNS answers for.
fn names_this_machine(host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else { return false };
    let bare = host.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(inside, _)| inside);
    let name = bare.unwrap_or_else(|| host.rsplit_once(':').map_or(host, |(name, _)| name));
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok() || host.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn admitted(address: &str, token: Option<&str>, headers: &[(&'static str, &str)]) -> Result<(), Refusal> {
        let headers: HeaderMap =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        Access::new(address.parse().unwrap(), token.map(str::as_bytes)).admit(&headers)
    }

    #[test]
    fn a_token_that_is_set_is_asked_for_wherever_it_listens() {
        for address in ["127.0.0.1:1", "0.0.0.0:1", "[::]:1"] {
            assert_eq!(admitted(address, Some("s3"), &[("authorization", "Bearer s3"), ("host", "any")]), Ok(()));
            assert_eq!(admitted(address, Some("s3"), &[("authorization", "bearer  s3 ")]), Ok(()));
            for wrong in ["Bearer s4", "Bearer s33", "Bearer", "Basic s3", "s3", ""] {
                assert_eq!(
                    admitted(address, Some("s3"), &[("authorization", wrong)]),
                    Err(Refusal::WrongToken),
                    "{wrong}"
                );
            }
            assert_eq!(admitted(address, Some("s3"), &[]), Err(Refusal::WrongToken));
        }
    }

    #[test]
    fn without_a_token_only_this_machine_asks() {
        for local in ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(admitted(local, None, &[]), Ok(()), "{local}");
        }
        for open in ["0.0.0.0:1", "[::]:1", "10.1.2.3:1"] {
            assert_eq!(admitted(open, None, &[("host", "127.0.0.1")]), Err(Refusal::NoTokenSet), "{open}");
            assert!(Access::new(open.parse().unwrap(), None).is_closed());
        }
    }

    #[test]
    fn no_page_in_a_browser_asks() {
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]:8080", "::1", "10.0.0.1"] {
            assert_eq!(admitted("127.0.0.1:1", None, &[("host", host)]), Ok(()), "{host}");
        }
        for host in ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example:80"] {
            assert_eq!(admitted("127.0.0.1:1", None, &[("host", host)]), Err(Refusal::Browser), "{host}");
        }
        let page = [("host", "localhost"), ("origin", "http://localhost")];
        assert_eq!(admitted("127.0.0.1:1", None, &page), Err(Refusal::Browser));
    }
}
