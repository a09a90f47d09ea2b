//! Binds, serves and drains the gRPC endpoint: Authorization and health, on TCP or a unix socket.

mod accept;
pub mod admin;
mod coalesced;
mod connection;
mod dispatch;
pub mod health;
pub mod tls;

pub use connection::Lifetime;

use crate::complaint::Complaint;
use crate::ext_authz::Service;
use accept::Listener;
use connection::Protocol;
use dispatch::Dispatch;
use health::Health;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::pin;
use thiserror::Error;
use tls::Handshakes;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

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
    #[error("admin.listen: cannot listen on {listen}: {source}; give another address there, or off")]
    BindAdmin { listen: Listen, source: io::Error },
}

/// A bound endpoint that does not serve yet.
#[derive(Debug)]
pub struct Endpoint {
    bound: Bound,
    tls: Option<Handshakes>,
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
        Ok(Self { bound, tls: None })
    }

    /// The same with TLS, if there is any.
    #[must_use]
    pub fn secured(self, tls: Option<Handshakes>) -> Self {
        Self { tls, ..self }
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

    /// Serves until `stop`, then sends GOAWAY and ends when the last call in flight has. Dropping it drops those calls.
    pub async fn serve(self, service: Service, health: &Health, lifetime: Lifetime, stop: impl Future<Output = ()>) {
        let protocol = Protocol::new(Dispatch::new(service, health), lifetime, self.tls);
        match self.bound {
            Bound::Tcp(listener) => serve(listener, protocol, stop).await.drained().await,
            Bound::Unix(listener, socket) => {
                let connections = serve(listener, protocol, stop).await;
                socket.remove();
                connections.drained().await;
            }
        }
    }
}

/// Connections that are served, each by a task of its own. Dropping this drops them.
struct Connections {
    tasks: JoinSet<()>,
    stop: watch::Sender<()>,
}

/// Accepts connections until `stop`, closes the listener and gives the connections that are left.
async fn serve<L: Listener>(listener: L, protocol: Protocol, stop: impl Future<Output = ()>) -> Connections {
    let mut connections = Connections { tasks: JoinSet::new(), stop: watch::Sender::new(()) };
    let complaint = Complaint::default();
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => return connections,
            socket = accept::next(&listener, &complaint) => {
                connections.tasks.spawn(protocol.clone().serve(socket, connections.stop.subscribe()));
            }
            Some(_) = connections.tasks.join_next() => {}
        }
    }
}

impl Connections {
    /// Sends GOAWAY on all of them and waits until their last call has ended.
    async fn drained(mut self) {
        self.stop.send_replace(());
        while self.tasks.join_next().await.is_some() {}
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
