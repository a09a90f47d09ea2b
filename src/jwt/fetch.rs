//! Fetches the text of a JWKS over HTTP: one GET on a connection of its own, bounded in time and size.
//!
//! Follows no redirect: who may say which keys are trusted is the address that the operator wrote. Knows nothing of keys.

use super::JwksUrl;
use crate::metrics::JwksRefresh;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// How long a fetch may take in all.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The largest answer that is read, in bytes. Sets are a few KiB, with certificates some ten.
pub(super) const LARGEST: usize = 512 << 10;

/// Why there is no text.
#[derive(Debug, Error)]
pub(super) enum FetchError {
    #[error("no connection: {0}")]
    Connect(#[source] io::Error),
    #[error("no whole answer within {TIMEOUT:?}")]
    Timeout,
    #[error("broken off: {0}")]
    Broken(#[source] hyper::Error),
    #[error("answered {0} instead of 200")]
    Status(StatusCode),
    #[error("answered with more than {LARGEST} bytes, or stopped in the middle: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
}

impl FetchError {
    /// What it counts as.
    pub(super) fn result(&self) -> JwksRefresh {
        match self {
            Self::Connect(_) | Self::Timeout | Self::Broken(_) => JwksRefresh::Unreachable,
            Self::Status(_) => JwksRefresh::BadStatus,
            Self::Body(_) => JwksRefresh::BadBody,
        }
    }
}

/// Why nobody could be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RootsError {
    #[error("holds no certificate in PEM")]
    None,
    #[error("holds a certificate that cannot be read")]
    Broken,
}

/// The roots in a PEM file; without one, Mozilla's.
///
/// # Errors
/// When the file holds none, or a broken one.
pub(super) fn roots(pem: Option<&[u8]>) -> Result<RootCertStore, RootsError> {
    let Some(pem) = pem else {
        return Ok(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|_| RootsError::Broken)?;
        roots.add(certificate).map_err(|_| RootsError::Broken)?;
    }
    if roots.is_empty() { Err(RootsError::None) } else { Ok(roots) }
}

/// Where a JWKS is fetched, and who is believed there.
#[derive(Clone)]
pub(super) struct Origin {
    url: JwksUrl,
    tls: Option<TlsConnector>,
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Origin {
    /// `ca`: roots in PEM instead of Mozilla's.
    pub(super) fn new(url: JwksUrl, ca: Option<&[u8]>) -> Result<Self, RootsError> {
        let tls = if url.is_tls() { Some(connector(roots(ca)?)) } else { None };
        Ok(Self { url, tls })
    }

    pub(super) fn url(&self) -> &JwksUrl {
        &self.url
    }

    pub(super) async fn fetch(&self) -> Result<Bytes, FetchError> {
        tokio::time::timeout(TIMEOUT, self.connect_and_get()).await.unwrap_or(Err(FetchError::Timeout))
    }

    async fn connect_and_get(&self) -> Result<Bytes, FetchError> {
        let (host, port) = self.url.place();
        let stream = TcpStream::connect((host, port)).await.map_err(FetchError::Connect)?;
        let Some(tls) = &self.tls else {
            return get(stream, self.url.uri()).await;
        };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other).map_err(FetchError::Connect)?;
        get(tls.connect(name, stream).await.map_err(FetchError::Connect)?, self.url.uri()).await
    }
}

fn connector(roots: RootCertStore) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has suites for TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

async fn get(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, url: &Uri) -> Result<Bytes, FetchError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(FetchError::Broken)?;
    // It ends with this fetch.
    let mut connections = JoinSet::new();
    connections.spawn(connection);
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let target = url.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = Uri::try_from(target).unwrap_or_default();
    let fields = request.headers_mut();
    let own = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
    for (name, value) in [(header::HOST, authority), (header::ACCEPT, "application/json"), (header::USER_AGENT, own)] {
        fields.extend(value.parse().map(|value| (name, value)));
    }
    let answer = sender.send_request(request).await.map_err(FetchError::Broken)?;
    if answer.status() != StatusCode::OK {
        return Err(FetchError::Status(answer.status()));
    }
    let body = Limited::new(answer.into_body(), LARGEST).collect().await.map_err(FetchError::Body)?;
    Ok(body.to_bytes())
}
