//! Handshakes of one listener: a socket -> the same with TLS on it, or nobody, which is counted and said.
//!
//! Whoever dawdles or talks nonsense costs a socket for a while and holds up nobody: each handshake is its connection's
//! own, has a deadline, and makes room when too many go on at once. The certificates may change meanwhile: handshakes
//! that begin later see the new ones, and connections that stand go on.

use super::spiffe::NotAllowed;
use super::{Listener, Tls};
use crate::complaint::Complaint;
use crate::metrics::{Handshake, HandshakeCounters, Metrics, catalogue};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::{CertificateError, Error, InvalidMessage};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a handshake may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Handshakes at once. The oldest makes room for one more: a client that is in earnest needs two round trips, so the oldest
/// is one that dawdles.
const MOST: usize = 256;

/// How long a client that is refused may take to hear of it, and how much it may send meanwhile, in bytes.
const LINGER: Duration = Duration::from_secs(1);
const MOST_UNREAD: u64 = 64 << 10;

/// TLS of one listener. Clones share it.
#[derive(Clone, Debug)]
pub struct Handshakes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    listener: Listener,
    tls: ArcSwap<Tls>,
    counters: HandshakeCounters,
    complaint: Complaint,
    /// Those that go on, the oldest first, some of which may have ended. To drop one ends it.
    under_way: Mutex<VecDeque<oneshot::Sender<()>>>,
}

impl Handshakes {
    /// Of a listener.
    pub fn new(listener: Listener, tls: Tls, metrics: &Metrics) -> Self {
        let counters = metrics.tls.of(listener);
        let under_way = Mutex::default();
        let tls = ArcSwap::from_pointee(tls);
        Self(Arc::new(Shared { listener, tls, counters, complaint: Complaint::default(), under_way }))
    }

    /// Has the handshakes that begin from now on see another certificate, or ask for others. Says whether anything differs.
    pub fn change(&self, tls: &Tls) -> bool {
        let differs = !self.0.tls.load().is_same(tls);
        if differs {
            self.0.tls.store(Arc::new(tls.clone()));
        }
        differs
    }

    /// Has the metrics tell when the certificates of these listeners expire.
    pub fn watch_expiry<'h>(listeners: impl IntoIterator<Item = &'h Self>, metrics: &Metrics) {
        let of: Vec<Weak<Shared>> = listeners.into_iter().map(|listener| Arc::downgrade(&listener.0)).collect();
        if of.is_empty() {
            return;
        }
        metrics.watch_each(catalogue::TLS_CERTIFICATE_EXPIRY, move || {
            let expiry = |shared: &Weak<Shared>| {
                let shared = shared.upgrade()?;
                let expires = shared.tls.load().expires()?;
                let seconds = expires.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                Some((shared.listener.word().into(), seconds as f64))
            };
            of.iter().filter_map(expiry).collect()
        });
    }

    /// Greets a client; `None` when it was refused, or did not come to an end.
    pub(in crate::server) async fn secure<S>(&self, socket: S, peer: &str) -> Option<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut crowded = self.begin();
        let (result, why, socket) = match self.greet(socket, &mut crowded).await {
            Ok(stream) => {
                self.0.counters.count(Handshake::Ok);
                return Some(stream);
            }
            Err(refused) => refused,
        };
        self.0.counters.count(result);
        let (listener, word) = (self.0.listener.word(), result.word());
        match result {
            // Load balancers do so to learn whether the port is open.
            Handshake::Left => tracing::debug!(listener, peer, why, "a client left during its TLS handshake"),
            _ => {
                self.0.complaint.say(|more| {
                    tracing::warn!(listener, peer, result = word, why, more, "a TLS handshake failed");
                });
            }
        }
        if let Some(socket) = socket {
            tokio::select! {
                () = linger(socket) => {}
                _ = crowded => {}
            }
        }
        None
    }

    async fn greet<S>(&self, socket: S, crowded: &mut oneshot::Receiver<()>) -> Result<TlsStream<S>, Refused<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Some(config) = self.0.tls.load().terms.as_ref().map(|terms| terms.config.clone()) else {
            return Err((Handshake::Protocol, "there is no certificate to show".into(), None));
        };
        let accept = timeout(DEADLINE, TlsAcceptor::from(config).accept(socket).into_fallible());
        tokio::select! {
            biased;
            accepted = accept => match accepted {
                Ok(Ok(stream)) => Ok(stream),
                Ok(Err((error, socket))) => {
                    let (result, why) = meaning(&error);
                    Err((result, why, Some(socket).filter(|_| result != Handshake::Left)))
                }
                Err(_elapsed) => Err((Handshake::Timeout, format!("it took longer than {DEADLINE:?}"), None)),
            },
            _ = crowded => Err((Handshake::Crowded, format!("{MOST} younger ones go on"), None)),
        }
    }

    /// Enters a handshake, which is to end when what this gives does.
    fn begin(&self) -> oneshot::Receiver<()> {
        let mut under_way = self.0.under_way.lock();
        if under_way.len() >= MOST {
            under_way.retain(|handshake| !handshake.is_closed());
            if under_way.len() >= MOST {
                under_way.pop_front();
            }
        }
        let (end, ended) = oneshot::channel();
        under_way.push_back(end);
        ended
    }
}

/// What it counts as, why, and the socket, if its peer is to hear of it.
type Refused<S> = (Handshake, String, Option<S>);

/// Waits until the peer has heard why it was refused. A socket that is closed with something unread is reset, and the
/// alert is lost to clients that have begun to send.
async fn linger(mut socket: impl AsyncRead + AsyncWrite + Unpin) {
    let listen = async {
        socket.shutdown().await?;
        tokio::io::copy(&mut socket.take(MOST_UNREAD), &mut tokio::io::sink()).await
    };
    // It has gone, has sent too much, or takes too long.
    let _ = timeout(LINGER, listen).await;
}

/// What a failure counts as, and what is said of it.
fn meaning(error: &io::Error) -> (Handshake, String) {
    let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return (Handshake::Left, error.to_string());
    };
    let result = match inner {
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            return (Handshake::NotTls, "the client does not speak TLS".to_owned());
        }
        Error::InvalidCertificate(CertificateError::Other(other)) => match other.0.downcast_ref::<NotAllowed>() {
            Some(why) => return (Handshake::NotAllowed, why.to_string()),
            None => Handshake::BadCertificate,
        },
        Error::NoCertificatesPresented => Handshake::NoCertificate,
        Error::InvalidCertificate(_) => Handshake::BadCertificate,
        Error::AlertReceived(_) => Handshake::RefusedByClient,
        _ => Handshake::Protocol,
    };
    (result, inner.to_string())
}
