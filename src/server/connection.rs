//! One connection's life: greeting, calls, and an end that loses none of them.

use super::accept::Socket;
use super::coalesced::Coalesced;
use super::dispatch::Dispatch;
use super::tls::Handshakes;
use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::future::pending;
use std::io;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// How many checks one connection may have in flight. Envoy opens further connections beyond it and does not queue, so
/// it is high: an Envoy is to be held back by its own circuit breaker, as the shipped configuration does.
const MAX_CONCURRENT_STREAMS: u32 = 8192;

/// After how long without a word the peer is asked whether it is still there, and how long it has to answer.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a peer may take to begin with HTTP/2. After that the keepalive watches over it.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// What every HTTP/2 client sends first (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// By how much the ages of connections differ, as a share of the age: so that those which were opened at the same
/// moment, as all are when a fleet starts, are not renewed at the same moment.
const JITTER: f64 = 0.1;

/// How long connections live.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime {
    /// When a connection is old, give or take a tenth; `None` for never. Its calls end, and its peer opens another.
    pub max_age: Option<Duration>,
    /// How long the calls of an old connection may take to end.
    pub grace: Duration,
}

/// How to serve connections. Clones share the services.
#[derive(Clone, Debug)]
pub(super) struct Protocol {
    http2: Builder<TokioExecutor>,
    dispatch: Dispatch,
    lifetime: Lifetime,
    tls: Option<Handshakes>,
}

impl Protocol {
    /// Without `tls`, in plain text.
    pub(super) fn new(dispatch: Dispatch, lifetime: Lifetime, tls: Option<Handshakes>) -> Self {
        let mut http2 = Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
            .keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT);
        Self { http2, dispatch, lifetime, tls }
    }

    /// Serves one connection until its peer leaves it, it is old, or `stop` changes; then its calls in flight end.
    pub(super) async fn serve(self, socket: impl Socket, mut stop: watch::Receiver<()>) {
        let Some(tls) = &self.tls else {
            return self.converse(socket, stop).await;
        };
        let peer = socket.peer();
        let secured = tokio::select! {
            secured = tls.secure(socket, &peer) => secured,
            _ = stop.changed() => None,
        };
        if let Some(socket) = secured {
            self.converse(socket, stop).await;
        }
    }

    async fn converse<S>(self, mut socket: S, mut stop: watch::Receiver<()>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        tokio::select! {
            greeted = greeted(&mut socket, GREETING_TIMEOUT) => {
                if let Err(why) = greeted {
                    return tracing::debug!(%why, "closing a connection that does not speak HTTP/2");
                }
            }
            _ = stop.changed() => return,
        }
        let socket = TokioIo::new(Coalesced::new(socket, PREFACE));
        let mut connection = pin!(self.http2.serve_connection(socket, self.dispatch));
        tokio::select! {
            biased;
            served = &mut connection => return note(served),
            () = old(self.lifetime.max_age) => {}
            _ = stop.changed() => {
                connection.as_mut().graceful_shutdown();
                // Whoever stopped it says how long this may take.
                return note(connection.await);
            }
        }
        tracing::debug!("a connection is old: GOAWAY");
        connection.as_mut().graceful_shutdown();
        match timeout(self.lifetime.grace, connection).await {
            Ok(served) => note(served),
            // No check takes that long, the store has its timeout: this is a peer that watches the health, or is gone.
            Err(_) => tracing::debug!(grace = ?self.lifetime.grace, "dropping what an old connection has in flight"),
        }
    }
}

/// A peer that breaks the connection or the protocol is its own affair.
fn note(served: hyper::Result<()>) {
    if let Err(error) = served {
        tracing::debug!(%error, "a connection broke");
    }
}

/// Reads [`PREFACE`], and nothing beyond it.
async fn greeted(socket: &mut (impl AsyncRead + Unpin), patience: Duration) -> io::Result<()> {
    timeout(patience, async {
        let (mut read, mut filled) = ([0; PREFACE.len()], 0);
        while filled < PREFACE.len() {
            match socket.read(&mut read[filled..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => filled += more,
            }
            if !PREFACE.starts_with(&read[..filled]) {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(())
    })
    .await?
}

/// Waits until a connection that begins now is old.
async fn old(max_age: Option<Duration>) {
    match max_age {
        Some(age) => sleep(jittered(age, fastrand::f64())).await,
        None => pending().await,
    }
}

/// The age at which one connection is old. `chance` is between 0 and 1.
fn jittered(age: Duration, chance: f64) -> Duration {
    age.mul_f64(1.0 - JITTER + 2.0 * JITTER * chance)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use tokio::io::{AsyncWriteExt as _, duplex};

    const LONG: Duration = Duration::from_secs(60);

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn ages_differ_by_a_tenth_up_and_down() {
        let age = Duration::from_secs(300);
        let ages = [0.0, 0.5, 1.0].map(|chance| jittered(age, chance).as_secs_f64().round());
        assert_eq!(ages, [270.0, 300.0, 330.0]);
    }

    #[test]
    fn a_greeting_in_pieces_is_read_and_what_follows_is_left() {
        block_on(async {
            let (mut client, mut server) = duplex(1);
            let sending = async {
                client.write_all(PREFACE).await.unwrap();
                client.write_all(b"x").await.unwrap();
            };
            let (_, byte) = tokio::join!(sending, async {
                greeted(&mut server, LONG).await.unwrap();
                server.read_u8().await.unwrap()
            });
            assert_eq!(byte, b'x');
        });
    }

    #[test]
    fn another_protocol_is_refused_at_its_first_wrong_byte() {
        block_on(async {
            for text in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01", b"PRI * HTTP/1.1"] {
                let (mut client, mut server) = duplex(64);
                client.write_all(text).await.unwrap();
                let error = greeted(&mut server, LONG).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{text:?}");
            }
        });
    }

    #[test]
    fn whoever_says_nothing_or_stops_midway_is_given_up() {
        block_on(async {
            for text in [&b""[..], b"PRI * HTTP/2.0\r\n"] {
                let (mut client, mut server) = duplex(64);
                client.write_all(text).await.unwrap();
                let error = greeted(&mut server, Duration::from_millis(1)).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                drop(client);
                let error = greeted(&mut server, LONG).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            }
        });
    }
}
