//! Binds, serves and drains the gRPC endpoint: Authorization and health, on TCP or a unix socket.

mod coalesced;
pub mod health;

use crate::ext_authz::Service;
use crate::ext_authz::proto::authorization_server::AuthorizationServer;
use coalesced::Coalesced;
use health::Health;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::transport::server::{Router, TcpIncoming};

/// How many checks one connection may have in flight. Envoy opens further connections beyond it and does not queue, so
/// it is high: the shipped Envoy configuration allows 8192 requests in all.
const MAX_CONCURRENT_STREAMS: u32 = 8192;

/// How large a check may be, in bytes. Envoy sends bodies when its filter has `with_request_body`, and a check that is
/// refused for its size is one that Envoy may let pass: so it is more than any Envoy buffers.
const MAX_CHECK_BYTES: usize = 1 << 30;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why the endpoint does not stand.
#[derive(Debug, Error)]
pub enum ServerError {
    #[error("cannot listen on {listen}: {source}")]
    Bind { listen: Listen, source: io::Error },
    #[error("{path} exists and is no socket, so it is not replaced")]
    NotASocket { path: String },
    #[error("the gRPC server failed: {0}")]
    Serve(#[from] tonic::transport::Error),
}

/// A bound endpoint that does not serve yet.
#[derive(Debug)]
pub struct Endpoint {
    bound: Bound,
}

#[derive(Debug)]
enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener, Socket),
}

impl Endpoint {
    /// Takes the port or the socket. A socket file that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// When the address is taken or not allowed.
    pub async fn bind(listen: &Listen) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Bind { listen: listen.clone(), source };
        let bound = match listen {
            Listen::Tcp(address) => Bound::Tcp(TcpListener::bind(address).await.map_err(failed)?),
            Listen::Unix(path) => {
                clear_stale_socket(path)?;
                let listener = UnixListener::bind(path).map_err(failed)?;
                Bound::Unix(listener, Socket::at(path).map_err(failed)?)
            }
        };
        Ok(Self { bound })
    }

    /// Where it listens: with port 0 asked for, the port it got.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub fn address(&self) -> io::Result<Listen> {
        match &self.bound {
            Bound::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
            Bound::Unix(_, socket) => Ok(Listen::Unix(socket.path.clone())),
        }
    }

    /// Serves until `stop`, then sends GOAWAY and finishes what is in flight.
    ///
    /// # Errors
    /// When the server breaks down.
    pub async fn serve(
        self,
        service: Service,
        health: &Health,
        stop: impl Future<Output = ()>,
    ) -> Result<(), ServerError> {
        let router = router(service, health);
        match self.bound {
            Bound::Tcp(listener) => {
                // tonic leaves Nagle's algorithm on for a listener of one's own: 45 ms on some answers.
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true)).map(|socket| socket.map(Coalesced));
                router.serve_with_incoming_shutdown(incoming, stop).await?;
            }
            Bound::Unix(listener, socket) => {
                let incoming = UnixListenerStream::new(listener).map(|socket| socket.map(Coalesced));
                router.serve_with_incoming_shutdown(incoming, stop).await?;
                socket.remove();
            }
        }
        Ok(())
    }
}

/// A socket file of ours.
#[derive(Debug)]
struct Socket {
    path: PathBuf,
    /// Device and inode: another process may have put its own in the same place since.
    identity: (u64, u64),
}

impl Socket {
    fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: Self::identity(path)? })
    }

    fn identity(path: &Path) -> io::Result<(u64, u64)> {
        path.symlink_metadata().map(|metadata| (metadata.dev(), metadata.ino()))
    }

    /// Removes the file if it is still ours. That it cannot be removed is no reason to end otherwise.
    fn remove(&self) {
        if Self::identity(&self.path).is_ok_and(|found| found == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn router(service: Service, health: &Health) -> Router {
    Server::builder()
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .add_service(health.service())
        .add_service(AuthorizationServer::new(service).max_decoding_message_size(MAX_CHECK_BYTES))
}

fn clear_stale_socket(path: &Path) -> Result<(), ServerError> {
    let Ok(metadata) = path.symlink_metadata() else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        return Err(ServerError::NotASocket { path: path.display().to_string() });
    }
    let refused = UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if refused {
        // If it cannot be removed, binding says why.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}
