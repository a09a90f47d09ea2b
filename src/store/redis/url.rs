//! The address of a Redis server and how to sign in to it. It may hold a password and never shows it.

use deadpool_redis::redis::io::tcp::TcpSettings;
use deadpool_redis::redis::{
    self, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use thiserror::Error;

/// Where a Redis server is and how to sign in: `redis://[user][:password@]host[:port][/db]`, the same with `rediss://`
/// for TLS, or `unix:///path[?db=0&user=…&pass=…]`. Shown, it has neither user, password nor query.
#[derive(Clone)]
pub struct RedisUrl {
    info: ConnectionInfo,
    shown: String,
}

/// Where a server is, as Sentinel and Cluster tell it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Why a text is no address of a Redis server. Holds nothing of the text, which may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UrlError {
    #[error("is no Redis URL; write redis://host:port/database, rediss://host:port/database or unix:///path")]
    NoUrl,
    #[error("has a #, ?, / or @ in its password or elsewhere; write those as %23, %3F, %2F and %40")]
    Unescaped,
    #[error("has a comma or blank in its host or path: is it several URLs? Give each apart")]
    Several,
    #[error("has a # at its end; certificates are always checked, so #insecure and the like do nothing here")]
    Fragment,
    #[error("has a query that is not known; only unix:///path?db=…&user=…&pass=… has one")]
    Query,
    #[error("names a database that is no number of 0 or more")]
    Database,
}

/// Why certificates cannot be used. The text names what is wrong with which of them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct TlsError(String);

/// What TLS needs besides the roots that are built in (Mozilla's), as PEM.
#[derive(Clone, Default)]
pub struct TlsFiles {
    /// Roots to trust instead of those built in.
    pub ca: Option<Vec<u8>>,
    /// This client's certificate chain and its key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

impl TlsFiles {
    /// Finds out now what connecting would find out later: that a file holds no certificate, or the key of another.
    fn prove(&self) -> Result<(), TlsError> {
        let certificates = |pem: &[u8], name: &str| {
            let read: Result<Vec<_>, _> =
                CertificateDer::pem_slice_iter(pem).map(|c| c.map(CertificateDer::into_owned)).collect();
            match read {
                Ok(list) if !list.is_empty() => Ok(list),
                _ => Err(TlsError(format!("{name} holds no certificate in PEM"))),
            }
        };
        let mut roots = RootCertStore::empty();
        for certificate in
            self.ca.iter().map(|pem| certificates(pem, "ca_file")).collect::<Result<Vec<_>, _>>()?.concat()
        {
            roots.add(certificate).map_err(|error| TlsError(format!("ca_file: {error}")))?;
        }
        let Some((chain, key)) = &self.client else {
            return Ok(());
        };
        let chain = certificates(chain, "cert_file")?;
        let none = |_| TlsError("key_file holds no private key in PEM".to_owned());
        let key = PrivateKeyDer::from_pem_slice(key).map_err(none)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|error| TlsError(error.to_string()))?.with_root_certificates(roots);
        let unfit = |error| TlsError(format!("cert_file and key_file do not go together: {error}"));
        config.with_client_auth_cert(chain, key).map(drop).map_err(unfit)
    }
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsFiles").field("ca", &self.ca.is_some()).field("client", &self.client.is_some()).finish()
    }
}

impl FromStr for RedisUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let url = redis::parse_redis_url(text).ok_or(UrlError::NoUrl)?;
        // An unescaped `#`, `?` or `/` in a password ends the authority there and makes a host of the password.
        let tail = [url.path(), url.query().unwrap_or_default(), url.fragment().unwrap_or_default()];
        if tail.iter().any(|part| part.contains('@')) {
            return Err(UrlError::Unescaped);
        }
        if url.fragment().is_some() {
            return Err(UrlError::Fragment);
        }
        let host = url.host_str().unwrap_or_default();
        if [host, url.path()].iter().any(|part| part.contains([',', ' ']) || part.contains("%20")) {
            return Err(UrlError::Several);
        }
        let unix = url.scheme().ends_with("unix");
        let known = |name: &str| matches!(name, "db" | "user" | "pass") && unix || name == "protocol";
        if !url.query_pairs().all(|(name, _)| known(&name)) {
            return Err(UrlError::Query);
        }
        let info = text.into_connection_info().map_err(|error| match error.to_string() {
            text if text.contains("database") => UrlError::Database,
            _ => UrlError::NoUrl,
        })?;
        if info.redis_settings().db() < 0 {
            return Err(UrlError::Database);
        }
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

    /// The same server, signed in to as `username`.
    #[must_use]
    pub fn with_username(self, username: &str) -> Self {
        let redis = self.info.redis_settings().clone().set_username(username);
        Self { info: self.info.set_redis_settings(redis), ..self }
    }

    /// The same server, its database with this number.
    #[must_use]
    pub fn with_database(self, database: u32) -> Self {
        let redis = self.info.redis_settings().clone().set_db(i64::from(database));
        Self { info: self.info.set_redis_settings(redis), ..self }
    }

    /// The same server, its certificate checked with `files`. Of effect with `rediss://` alone.
    ///
    /// # Errors
    /// When a certificate or key cannot be read.
    pub fn with_tls(self, files: &TlsFiles) -> Result<Self, TlsError> {
        if !self.is_tls() {
            return Ok(self);
        }
        files.prove()?;
        let client_tls =
            files.client.clone().map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        let certificates = TlsCertificates { client_tls, root_cert: files.ca.clone() };
        let client = Client::build_with_tls(self.info.clone(), certificates);
        let client = client.map_err(|error| TlsError(super::fault::one_line(&error)))?;
        Ok(Self { info: client.get_connection_info().clone(), ..self })
    }

    /// What Sentinel or a Cluster says is the address of another server, which is signed in to as this one is.
    #[must_use]
    pub(super) fn at(&self, address: &Address) -> Self {
        let Address { host, port } = address.clone();
        let (scheme, there) = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                let (insecure, tls_params) = (*insecure, tls_params.clone());
                ("rediss", ConnectionAddr::TcpTls { host, port, insecure, tls_params })
            }
            _ => ("redis", ConnectionAddr::Tcp(host, port)),
        };
        Self { info: self.info.clone().set_addr(there), shown: format!("{scheme}://{address}") }
    }

    /// The same server, signed in to as another is.
    #[must_use]
    pub(super) fn signed_in_as(&self, other: &Self) -> Self {
        let info = self.info.clone().set_redis_settings(other.info.redis_settings().clone());
        let info = match (self.info.addr().clone(), other.info.addr()) {
            (ConnectionAddr::TcpTls { host, port, insecure, .. }, ConnectionAddr::TcpTls { tls_params, .. }) => {
                let tls_params = tls_params.clone();
                info.set_addr(ConnectionAddr::TcpTls { host, port, insecure, tls_params })
            }
            _ => info,
        };
        Self { info, shown: self.shown.clone() }
    }

    /// Whether both are one server, however it is signed in to and whichever of its databases is meant.
    pub fn is_at_same_place(&self, other: &Self) -> bool {
        let place = |url: &Self| match url.info.addr() {
            ConnectionAddr::Tcp(host, port) => (false, host.clone(), *port),
            ConnectionAddr::TcpTls { host, port, .. } => (true, host.clone(), *port),
            ConnectionAddr::Unix(path) => (false, path.display().to_string(), 0),
            // There are no others.
            _ => (false, url.shown.clone(), 0),
        };
        let protocol = |url: &Self| url.info.redis_settings().protocol();
        place(self) == place(other) && protocol(self) == protocol(other)
    }

    /// The same address, with nothing of how this one is signed in to.
    #[must_use]
    pub fn without_credentials(self) -> Self {
        // Only the protocol's version is kept.
        let protocol = self.info.redis_settings().protocol();
        let redis = redis::RedisConnectionInfo::default().set_protocol(protocol);
        Self { info: self.info.set_redis_settings(redis), ..self }
    }

    pub fn is_tls(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::TcpTls { .. })
    }

    pub fn is_unix(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::Unix(_))
    }

    /// The number of the database.
    pub fn database(&self) -> i64 {
        self.info.redis_settings().db()
    }

    /// The host of a server that is reached over TCP.
    pub(super) fn host(&self) -> Option<&str> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host),
            _ => None,
        }
    }

    /// Where a server is that is reached over TCP.
    pub(super) fn address(&self) -> Option<Address> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some(Address { host: host.clone(), port: *port })
            }
            _ => None,
        }
    }

    /// For the client alone.
    pub(super) fn reveal(&self) -> ConnectionInfo {
        let tcp = TcpSettings::default().set_nodelay(true);
        let redis = self.info.redis_settings().clone().set_lib_name("tidegate", env!("CARGO_PKG_VERSION"));
        self.info.clone().set_tcp_settings(tcp).set_redis_settings(redis)
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
            ("rediss://user:hunter2@h:6380/3", "rediss://h:6380/3"),
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
    fn a_password_may_be_escaped_in_the_url() {
        for (text, password) in [
            ("redis://:p%40s%2Fs%3F%23%25@h", "p@s/s?#%"),
            ("redis://:a@b@h", "a@b"),
            ("redis://:100%@h", "100%"),
            ("redis://:%E2%82%AC@h", "€"),
        ] {
            let url = text.parse::<RedisUrl>().unwrap();
            assert_eq!(url.info.redis_settings().password(), Some(password), "{text}");
            assert_eq!(url.to_string(), "redis://h");
        }
    }

    #[test]
    fn what_is_no_url_is_refused_without_being_repeated() {
        for (text, error) in [
            ("", UrlError::NoUrl),
            ("h:6379", UrlError::NoUrl),
            (":hunter2@h", UrlError::NoUrl),
            ("http://hunter2@h", UrlError::NoUrl),
            ("redis://", UrlError::NoUrl),
            ("redis://h/x", UrlError::Database),
            ("redis://h/-1", UrlError::Database),
            ("redis://hunter2#@h", UrlError::Unescaped),
            ("redis://hunter2?@h", UrlError::Unescaped),
            ("redis://:hunter2@a:6379,redis://:hunter2@b:6379", UrlError::NoUrl),
            ("redis://:hunter2@a,b", UrlError::Several),
            ("redis://:hunter2@a:6379,", UrlError::NoUrl),
            ("redis://:hunter2@a:6379/0,", UrlError::Several),
            ("rediss://:hunter2@h#insecure", UrlError::Fragment),
            ("redis://h/0?password=hunter2", UrlError::Query),
        ] {
            let said = text.parse::<RedisUrl>().unwrap_err();
            assert_eq!(said, error, "{text}");
            assert!(!said.to_string().contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn another_server_is_signed_in_to_as_the_first() {
        let url = "redis://user:hunter2@a:1/2"
            .parse::<RedisUrl>()
            .unwrap()
            .at(&Address { host: "fe80::1".to_owned(), port: 7000 });
        assert_eq!(url.to_string(), "redis://[fe80::1]:7000");
        let settings = url.info.redis_settings();
        assert_eq!((settings.username(), settings.password(), settings.db()), (Some("user"), Some("hunter2"), 2));
        let bare = url.without_credentials();
        assert_eq!((bare.info.redis_settings().username(), bare.info.redis_settings().password()), (None, None));
    }
}
