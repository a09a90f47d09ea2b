//! Takes connections from a listener, and goes on when the system cannot give any for a while.

use crate::complaint::Complaint;
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// How long to wait after the system could not give a connection. Without a pause this would spin: what is wrong, most
/// often that no file descriptor is left, is as wrong a microsecond later, and the connection still waits.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Who is at its other end, for logs.
    fn peer(&self) -> String;
}

impl Socket for TcpStream {
    fn peer(&self) -> String {
        self.peer_addr().map_or_else(|_| "unknown".to_owned(), |address| address.to_string())
    }
}

impl Socket for UnixStream {
    fn peer(&self) -> String {
        "a unix socket".to_owned()
    }
}

/// A bound socket that gives connections.
pub(super) trait Listener: Send + Sync + 'static {
    type Socket: Socket;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Socket>> + Send;
}

impl Listener for TcpListener {
    type Socket = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (socket, _) = self.accept().await?;
        // Nagle's algorithm costs 45 ms on some answers. Where it cannot be switched off, they are late but right.
        let _ = socket.set_nodelay(true);
        Ok(socket)
    }
}

impl Listener for UnixListener {
    type Socket = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        let (socket, _) = self.accept().await?;
        Ok(socket)
    }
}

/// Waits for the next connection, however long that takes. What the system says against it goes to `complaint`.
pub(super) async fn next<L: Listener>(listener: &L, complaint: &Complaint) -> L::Socket {
    loop {
        match listener.accept().await {
            Ok(socket) => return socket,
            Err(error) if concerns_one_peer(&error) => tracing::debug!(%error, "a peer left before it was accepted"),
            Err(error) => {
                complaint.say(|more| tracing::error!(%error, more, "cannot accept connections for now"));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Whether the failure is gone with the connection that it came with.
fn concerns_one_peer(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
