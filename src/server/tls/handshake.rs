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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a handshake may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Handshakes at once. The oldest makes room for one more: a client that is in earnest needs two round trips, so the oldest
/// is one that dawdles.
const MOST: usize = 256;

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
        let (result, why) = match self.greet(socket).await {
            Ok(stream) => {
                self.0.counters.count(Handshake::Ok);
                return Some(stream);
            }
            Err(refused) => refused,
        };
        self.0.counters.count(result);
        let (listener, result_word) = (self.0.listener.word(), result.word());
        match result {
            // Load balancers do so to learn whether the port is open.
            Handshake::Left => tracing::debug!(listener, peer, why, "a client left during its TLS handshake"),
            _ => self.0.complaint.say(|more| {
                tracing::warn!(listener, peer, result = result_word, why, more, "a TLS handshake failed");
            }),
        }
        None
    }

    async fn greet<S>(&self, socket: S) -> Result<TlsStream<S>, (Handshake, String)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Some(config) = self.0.tls.load().terms.as_ref().map(|terms| terms.config.clone()) else {
            return Err((Handshake::Protocol, "there is no certificate to show".into()));
        };
        let mut crowded = self.begin();
        let accept = timeout(DEADLINE, TlsAcceptor::from(config).accept(socket));
        tokio::select! {
            biased;
            accepted = accept => match accepted {
                Ok(Ok(stream)) => Ok(stream),
                Ok(Err(error)) => Err((meaning(&error), error.to_string())),
                Err(_elapsed) => Err((Handshake::Timeout, format!("it took longer than {DEADLINE:?}"))),
            },
            _ = &mut crowded => Err((Handshake::Crowded, format!("{MOST} younger ones go on"))),
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

/// What a failure counts as.
fn meaning(error: &io::Error) -> Handshake {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        None => Handshake::Left,
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => Handshake::NotTls,
        Some(Error::NoCertificatesPresented) => Handshake::NoCertificate,
        Some(Error::InvalidCertificate(CertificateError::Other(other))) if other.0.is::<NotAllowed>() => {
            Handshake::NotAllowed
        }
        Some(Error::InvalidCertificate(_)) => Handshake::BadCertificate,
        Some(Error::AlertReceived(_)) => Handshake::RefusedByClient,
        Some(_) => Handshake::Protocol,
    }
}
