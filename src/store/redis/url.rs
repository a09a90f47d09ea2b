//! The address of a Redis server, which may hold a password and never shows it.

use deadpool_redis::redis::{self, ConnectionInfo, IntoConnectionInfo, io::tcp::TcpSettings};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Where a Redis server is and how to sign in: `redis://[user][:password@]host[:port][/db]` or
/// `unix:///path[?db=0&user=…&pass=…]`. Shown, it has neither user, password nor query.
#[derive(Clone)]
pub struct RedisUrl {
    info: ConnectionInfo,
    shown: String,
}

/// Why a text is no address of a Redis server. Holds nothing of the text, which may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UrlError {
    #[error("is no Redis URL; write redis://host:port/database or unix:///path")]
    NoUrl,
    #[error("asks for TLS (rediss://), which is not supported yet; write redis://host:port/database")]
    Tls,
    #[error("has a #, ?, / or @ in its password or elsewhere; write those as %23, %3F, %2F and %40")]
    Unescaped,
}

impl FromStr for RedisUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if text.starts_with("rediss:") {
            return Err(UrlError::Tls);
        }
        let url = redis::parse_redis_url(text).ok_or(UrlError::NoUrl)?;
        // An unescaped `#`, `?` or `/` in a password ends the authority there and makes a host of the password.
        if url.fragment().is_some() || url.path().contains('@') || url.query().is_some_and(|query| query.contains('@'))
        {
            return Err(UrlError::Unescaped);
        }
        let info = text.into_connection_info().map_err(|_| UrlError::NoUrl)?;
        let host = url.host_str().unwrap_or_default();
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        Ok(Self { info, shown: format!("{}://{host}{port}{}", url.scheme(), url.path()) })
    }
}

impl RedisUrl {
    /// The same server, signed in to with `password`.
    #[must_use]
    pub fn with_password(self, password: &str) -> Self {
        let redis = self.info.redis_settings().clone().set_password(password);
        Self { info: self.info.set_redis_settings(redis), ..self }
    }

    /// For the client alone.
    pub(super) fn reveal(&self, tcp: TcpSettings) -> ConnectionInfo {
        self.info.clone().set_tcp_settings(tcp)
    }

    /// `text` with the password, should it occur, struck out.
    pub(super) fn redact(&self, text: String) -> String {
        match self.info.redis_settings().password() {
            Some(password) if !password.is_empty() => text.replace(password, "***"),
            _ => text,
        }
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn a_shown_url_has_no_password() {
        for (text, shown) in [
            ("redis://user:hunter2@h:6380/3", "redis://h:6380/3"),
            ("redis://:hunter2@[::1]:6380", "redis://[::1]:6380"),
            ("redis://h/0?protocol=resp3", "redis://h/0"),
            ("unix:///run/redis.sock?pass=hunter2", "unix:///run/redis.sock"),
        ] {
            let url = text.parse::<RedisUrl>().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), shown);
        }
    }

    #[test]
    fn a_password_given_apart_reaches_the_client_whatever_its_letters() {
        for text in ["redis://h:6379/0", "redis://user:old@h/0", "unix:///run/redis.sock?pass=old&db=1"] {
            let url = text.parse::<RedisUrl>().unwrap().with_password("p@s/s?#%&é");
            assert_eq!(url.info.redis_settings().password(), Some("p@s/s?#%&é"), "{text}");
            assert!(!format!("{url:?}{url}").contains("p@s"));
        }
    }

    #[test]
    fn what_is_no_url_is_refused_without_being_repeated() {
        for text in [
            "",
            "h:6379",
            ":hunter2@h",
            "http://hunter2@h",
            "redis://",
            "rediss://:hunter2@h",
            "redis://h/x",
            "redis://hunter2#@h",
            "redis://hunter2?@h",
        ] {
            let said = text.parse::<RedisUrl>().unwrap_err().to_string();
            assert!(!said.contains("hunter2"), "{text}");
        }
    }
}
