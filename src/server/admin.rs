//! The admin endpoint, for probes and Prometheus: `/livez`, `/readyz`, `/metrics` over HTTP/1.
//!
//! It runs on the thread that answers checks, so its clients are held short: one small request a connection, a few
//! seconds, a few connections.

use super::accept;
use super::health::{Health, Verdict};
use super::{Listen, ServerError};
use crate::complaint::Complaint;
use crate::metrics::{self, Metrics};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Connections at once. The oldest makes room for one more: a request is answered as soon as it has arrived, so the
/// oldest is one that dawdles, and a probe is always let in.
const MAX_CONNECTIONS: usize = 32;

/// How long a client may take to send its request's head, and to take the whole answer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(10);

/// How large a request's head may be, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// A bound admin endpoint that does not serve yet.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
}

/// What there is to tell.
#[derive(Clone, Debug)]
pub struct Pages {
    pub health: Health,
    pub metrics: Arc<Metrics>,
}

impl Admin {
    /// Takes the port.
    ///
    /// # Errors
    /// When the address is taken or not allowed.
    pub async fn bind(address: SocketAddr) -> Result<Self, ServerError> {
        let failed = |source| ServerError::BindAdmin { listen: Listen::Tcp(address), source };
        Ok(Self { listener: TcpListener::bind(address).await.map_err(failed)? })
    }

    /// Where it listens: with port 0 asked for, the port it got.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves for ever.
    pub async fn serve(self, pages: Pages) {
        let complaint = Complaint::default();
        let mut connections: VecDeque<AbortHandle> = VecDeque::with_capacity(MAX_CONNECTIONS);
        loop {
            let socket = accept::next(&self.listener, &complaint).await;
            connections.retain(|connection| !connection.is_finished());
            if connections.len() >= MAX_CONNECTIONS
                && let Some(oldest) = connections.pop_front()
            {
                oldest.abort();
            }
            connections.push_back(tokio::spawn(converse(socket, pages.clone())).abort_handle());
        }
    }
}

/// Answers one request.
async fn converse(socket: TcpStream, pages: Pages) {
    let service = service_fn(move |request| ready(Ok::<_, Infallible>(pages.answer(&request))));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(socket), service);
    match timeout(TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an admin connection broke"),
        Err(_) => tracing::debug!("an admin client took too long"),
    }
}

type Answer = Response<Full<Bytes>>;

impl Pages {
    fn answer(&self, request: &Request<Incoming>) -> Answer {
        let uri = request.uri();
        let page = match uri.path() {
            "/livez" => text(StatusCode::OK, "alive\n"),
            "/readyz" if is_verbose(uri.query()) => self.readiness(Detail::All),
            "/readyz" => self.readiness(Detail::Faults),
            "/metrics" => typed(StatusCode::OK, metrics::CONTENT_TYPE, self.metrics.text()),
            _ => return text(StatusCode::NOT_FOUND, "there are /livez, /readyz and /metrics\n"),
        };
        if matches!(*request.method(), Method::GET | Method::HEAD) { page } else { not_allowed() }
    }

    fn readiness(&self, detail: Detail) -> Answer {
        let checks = self.health.checks();
        let mut told = String::new();
        for (name, verdict) in checks.iter() {
            let sign = match (verdict, detail) {
                (Verdict::Fails(_), _) => '-',
                (_, Detail::Faults) => continue,
                (Verdict::Warns(_), Detail::All) => '!',
                (Verdict::Passes, Detail::All) => '+',
            };
            // Writing into a String cannot fail.
            let _ = writeln!(told, "[{sign}] {name} {verdict}");
        }
        let (status, word) =
            if checks.ready() { (StatusCode::OK, "ready") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready") };
        told.push_str(word);
        told.push('\n');
        text(status, told)
    }
}

/// Which checks are told of.
#[derive(Clone, Copy)]
enum Detail {
    Faults,
    All,
}

fn is_verbose(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|part| part.split('=').next() == Some("verbose")))
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    typed(status, "text/plain; charset=utf-8", body)
}

fn typed(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn not_allowed() -> Answer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    answer
}
