//! How a service is connected to: an address and perhaps files with certificates -> a channel, or what is wrong in words.

use hyper_util::rt::TokioIo;
use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use tokio::net::UnixStream;
use tonic::Status;
use tonic::codegen::{Service, http::Uri};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// Where a service listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A host and a port.
    Tcp {
        /// Without brackets.
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

impl Target {
    /// `host:port`, `[v6]:port` or `unix:/path`. What listens on every address is reached on this machine's own.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no address; write host:port, such as 127.0.0.1:50051, or unix:/path");
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(wrong()) };
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            let host = match address.ip() {
                IpAddr::V4(Ipv4Addr::UNSPECIFIED) => IpAddr::from(Ipv4Addr::LOCALHOST),
                IpAddr::V6(Ipv6Addr::UNSPECIFIED) => IpAddr::from(Ipv6Addr::LOCALHOST),
                other => other,
            };
            return Ok(Self::Tcp { host: host.to_string(), port: address.port() });
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let is_name = !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        let port = port.parse().ok().filter(|_| is_name).ok_or_else(wrong)?;
        Ok(Self::Tcp { host: host.to_owned(), port })
    }

    /// As a URI names it.
    fn authority(&self) -> String {
        match self {
            Self::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port } => format!("{host}:{port}"),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { .. } => f.write_str(&self.authority()),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// What TLS needs, as PEM.
pub(super) struct TlsFiles {
    /// Roots to trust instead of Mozilla's.
    pub(super) ca: Option<Vec<u8>>,
    /// A certificate and its key.
    pub(super) client: Option<(Vec<u8>, Vec<u8>)>,
    /// The name that the service's certificate must have, instead of the host's.
    pub(super) server_name: Option<String>,
}

/// A way to connect.
#[derive(Debug)]
pub(super) struct Dial<'a> {
    target: &'a Target,
    tls: Option<ClientTlsConfig>,
}

impl<'a> Dial<'a> {
    pub(super) fn plain(target: &'a Target) -> Self {
        Self { target, tls: None }
    }

    pub(super) fn tls(target: &'a Target, files: TlsFiles) -> Result<Self, String> {
        let host = match target {
            Target::Tcp { host, .. } => Some(host.clone()),
            Target::Unix(_) => None,
        };
        let Some(name) = files.server_name.or(host) else {
            return Err("a socket has no name that a certificate could have: give --server-name".into());
        };
        let tls = ClientTlsConfig::new().domain_name(name);
        let tls = match files.ca {
            Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
            None => tls.with_webpki_roots(),
        };
        let tls = match files.client {
            Some((cert, key)) => tls.identity(Identity::from_pem(cert, key)),
            None => tls,
        };
        Ok(Self { target, tls: Some(tls) })
    }

    /// Connects, and takes as long as it takes.
    pub(super) async fn connect(self) -> Result<Channel, String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let failed = |error: tonic::transport::Error| format!("cannot connect: {}", chain(&error));
        let endpoint = Endpoint::from_shared(format!("{scheme}://{}", self.target.authority())).map_err(failed)?;
        let endpoint = match self.tls {
            Some(tls) => endpoint.tls_config(tls).map_err(failed)?,
            None => endpoint,
        };
        match self.target {
            Target::Tcp { .. } => endpoint.connect().await.map_err(failed),
            Target::Unix(path) => endpoint.connect_with_connector(Socket(path.clone())).await.map_err(failed),
        }
    }
}

/// Connects to a unix socket, whatever the URI.
#[derive(Clone)]
struct Socket(PathBuf);

impl Service<Uri> for Socket {
    type Response = TokioIo<UnixStream>;
    type Error = std::io::Error;
    type Future = tonic::codegen::BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = self.0.clone();
        Box::pin(async move { UnixStream::connect(path).await.map(TokioIo::new) })
    }
}

/// A failed call in one line, with what it failed for.
pub(super) fn status(status: &Status) -> String {
    let why = status.source().map(|source| format!(": {}", chain(source))).unwrap_or_default();
    format!("{} {}{why}", status.code(), status.message()).trim().to_owned()
}

/// An error and what is behind it, in one line.
fn chain(error: &dyn Error) -> String {
    let mut said = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        next = source.source();
    }
    said.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn an_address_is_a_host_with_a_port_or_a_socket() {
        for (text, shown) in [
            ("127.0.0.1:50051", "127.0.0.1:50051"),
            ("[::1]:50051", "[::1]:50051"),
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
            ("limiter.mesh-1.svc:50051", "limiter.mesh-1.svc:50051"),
            ("unix:/run/t.sock", "unix:/run/t.sock"),
            ("unix:///run/t.sock", "unix:/run/t.sock"),
        ] {
            assert_eq!(Target::parse(text).unwrap().to_string(), shown);
        }
        for text in ["", "h", ":1", "h:", "h:x", "h:65536", "::1", "http://h:1", "unix:run", "h/p:1"] {
            assert!(Target::parse(text).is_err(), "{text}");
        }
    }
}
