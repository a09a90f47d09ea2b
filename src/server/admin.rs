//! The admin endpoint over HTTP/1, with TLS or without: `/livez`, `/readyz` and `/metrics` for probes and Prometheus, and what operators ask and
//! do, for those who may.
//!
//! Knows who may ask what and how it is asked; what is done then is [`Operations`]'. It runs on the thread that answers checks, so its clients are held short: one small request a connection, a few
//! seconds, a few connections.

mod access;

pub use access::Access;

use super::accept;
use super::health::{Health, Verdict};
use super::tls::Handshakes;
use super::{Listen, ServerError};
use crate::complaint::Complaint;
use crate::metrics::{self, Metrics};
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::{self, Write as _};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
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

/// How large a request's body may be, in bytes: a CheckRequest with all its headers and metadata.
const MAX_BODY: usize = 1 << 20;

/// A bound admin endpoint that does not serve yet.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
    tls: Option<Handshakes>,
}

/// What there is to tell, and who may hear and do it.
#[derive(Clone, Debug)]
pub struct Pages {
    pub health: Health,
    pub metrics: Arc<Metrics>,
    pub access: Arc<Access>,
    pub operations: Arc<dyn Operations>,
}

/// What operators ask and do. Texts are what clients of the endpoint sent, percent-decoded.
pub trait Operations: fmt::Debug + Send + Sync {
    /// The configuration that is in force, without secrets.
    fn config(&self) -> Told;

    /// Reads the configuration anew.
    fn reload<'a>(&'a self, by: &'a str) -> BoxFuture<'a, Told>;

    /// How a bucket stands.
    fn bucket<'a>(&'a self, which: Which<'a>) -> BoxFuture<'a, Told>;

    /// Forgets a bucket, which makes it full.
    fn reset<'a>(&'a self, which: Which<'a>, by: &'a str) -> BoxFuture<'a, Told>;

    /// What a CheckRequest in JSON would come to. Takes nothing.
    fn explain<'a>(&'a self, check: &'a [u8]) -> BoxFuture<'a, Told>;

    /// What is logged.
    fn log_filter(&self) -> Told;

    /// Has something else logged.
    fn filter_log(&self, filter: &[u8], by: &str) -> Told;
}

/// A bucket, as a path names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Which<'a> {
    pub dimension: &'a str,
    pub id: &'a [u8],
    /// The tier of the rule that it is charged by, if it is one of those kept apart.
    pub tier: Option<&'a str>,
}

/// A status, and what is said with it: an object. Faults stand in `error`.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    pub status: StatusCode,
    pub body: serde_json::Value,
}

impl Told {
    pub fn ok(body: serde_json::Value) -> Self {
        Self { status: StatusCode::OK, body }
    }

    pub fn fault(status: StatusCode, error: impl Into<String>) -> Self {
        Self { status, body: serde_json::json!({"error": error.into()}) }
    }
}

impl Admin {
    /// Takes the port.
    ///
    /// # Errors
    /// When the address is taken or not allowed.
    pub async fn bind(address: SocketAddr) -> Result<Self, ServerError> {
        let failed = |source| ServerError::BindAdmin { listen: Listen::Tcp(address), source };
        Ok(Self { listener: TcpListener::bind(address).await.map_err(failed)?, tls: None })
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
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves for ever.
    pub async fn serve(self, pages: Pages) {
        let complaint = Complaint::default();
        let mut connections: VecDeque<AbortHandle> = VecDeque::with_capacity(MAX_CONNECTIONS);
        loop {
            let socket = accept::next(&self.listener, &complaint).await;
            // Of a peer that left already nobody is answered.
            let Ok(peer) = socket.peer_addr() else { continue };
            connections.retain(|connection| !connection.is_finished());
            if connections.len() >= MAX_CONNECTIONS
                && let Some(oldest) = connections.pop_front()
            {
                oldest.abort();
            }
            let welcome = welcome(socket, peer, self.tls.clone(), pages.clone());
            connections.push_back(tokio::spawn(welcome).abort_handle());
        }
    }
}

async fn welcome(socket: TcpStream, peer: SocketAddr, tls: Option<Handshakes>, pages: Pages) {
    let Some(tls) = tls else {
        return converse(socket, peer, pages).await;
    };
    if let Some(socket) = tls.secure(socket, &peer.to_string()).await {
        converse(socket, peer, pages).await;
    }
}

/// Answers one request.
async fn converse(socket: impl AsyncRead + AsyncWrite + Unpin, peer: SocketAddr, pages: Pages) {
    let service = service_fn(|request| {
        let pages = pages.clone();
        async move { Ok::<_, Infallible>(pages.answer(request, peer).await) }
    });
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

const THERE: &str = "\
there are GET /livez, /readyz[?verbose], /metrics, /config, /buckets/{user|key|ip}/{id}[?tier=], /log;
POST /reload, /explain; PUT /log; DELETE /buckets/{user|key|ip}/{id}
";

impl Pages {
    async fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Answer {
        let uri = request.uri();
        let page = match uri.path() {
            "/livez" => text(StatusCode::OK, "alive\n"),
            "/readyz" if is_verbose(uri.query()) => self.readiness(Detail::All),
            "/readyz" => self.readiness(Detail::Faults),
            "/metrics" => typed(StatusCode::OK, metrics::CONTENT_TYPE, self.metrics.text()),
            _ => return self.operate(request, peer).await,
        };
        if matches!(*request.method(), Method::GET | Method::HEAD) { page } else { not_allowed(&["GET", "HEAD"]) }
    }

    /// Answers what not everybody may ask.
    async fn operate(&self, request: Request<Incoming>, peer: SocketAddr) -> Answer {
        let uri = request.uri().clone();
        let Some(allowed) = methods(uri.path()) else { return text(StatusCode::NOT_FOUND, THERE) };
        if let Err(refusal) = self.access.admit(request.headers()) {
            return refusal.answer();
        }
        let method = request.method().clone();
        if !allowed.contains(&method.as_str()) {
            return not_allowed(allowed);
        }
        let Ok(body) = Limited::new(request.into_body(), MAX_BODY).collect().await else {
            let what = format!("the body is larger than {MAX_BODY} bytes, or broke off");
            return json(Told::fault(StatusCode::PAYLOAD_TOO_LARGE, what));
        };
        json(self.operation(&method, uri.path(), uri.query(), &body.to_bytes(), &peer.to_string()).await)
    }

    async fn operation(&self, method: &Method, path: &str, query: Option<&str>, body: &[u8], by: &str) -> Told {
        let reads = matches!(*method, Method::GET | Method::HEAD);
        match path {
            "/config" => self.operations.config(),
            "/reload" => self.operations.reload(by).await,
            "/explain" => self.operations.explain(body).await,
            "/log" if reads => self.operations.log_filter(),
            "/log" => self.operations.filter_log(body, by),
            _ => {
                let (dimension, id) = bucket_of(path).unwrap_or_default();
                let (id, tier) = (decoded(id), query.and_then(|query| value_of(query, "tier")));
                let tier = tier.map(|tier| String::from_utf8_lossy(&decoded(tier)).into_owned());
                let which = Which { dimension, id: &id, tier: tier.as_deref() };
                if reads { self.operations.bucket(which).await } else { self.operations.reset(which, by).await }
            }
        }
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

/// The methods of a page that not everybody may ask for; `None`: there is no such page.
fn methods(path: &str) -> Option<&'static [&'static str]> {
    match path {
        "/config" => Some(&["GET", "HEAD"]),
        "/reload" | "/explain" => Some(&["POST"]),
        "/log" => Some(&["GET", "HEAD", "PUT"]),
        _ => bucket_of(path).map(|_| &["GET", "HEAD", "DELETE"][..]),
    }
}

/// `/buckets/user/alice`. The rest of the path is the id, slashes included, as in that of an IPv6 network.
fn bucket_of(path: &str) -> Option<(&str, &str)> {
    let (dimension, id) = path.strip_prefix("/buckets/")?.split_once('/')?;
    (!id.is_empty()).then_some((dimension, id))
}

fn value_of<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    query.split('&').find_map(|part| part.split_once('=').filter(|(key, _)| *key == name).map(|(_, value)| value))
}

/// Without percent-encoding. What is no encoding stands for itself.
fn decoded(text: &str) -> Vec<u8> {
    let hex = |digit: Option<&u8>| digit.and_then(|digit| char::from(*digit).to_digit(16));
    let (bytes, mut decoded, mut at) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
    while let Some(byte) = bytes.get(at) {
        match (byte, hex(bytes.get(at + 1)), hex(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    decoded
}

fn json(told: Told) -> Answer {
    typed(told.status, "application/json", format!("{:#}\n", told.body))
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

fn not_allowed(methods: &[&'static str]) -> Answer {
    let list = methods.join(", ");
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, format!("only {list}\n"));
    // Names of methods are visible ASCII.
    if let Ok(allowed) = HeaderValue::from_str(&list) {
        answer.headers_mut().insert(ALLOW, allowed);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_named_by_what_follows_the_dimension() {
        assert_eq!(bucket_of("/buckets/user/alice"), Some(("user", "alice")));
        assert_eq!(bucket_of("/buckets/ip/2001:db8::/64"), Some(("ip", "2001:db8::/64")));
        for none in ["/buckets", "/buckets/user", "/buckets/user/", "/bucket/user/a"] {
            assert_eq!(bucket_of(none), None, "{none}");
        }
    }

    #[test]
    fn percent_encoding_is_undone_where_it_is_one() {
        assert_eq!(decoded("a%20b%0A%c3%a9"), "a b\n\u{e9}".as_bytes());
        assert_eq!(decoded("100%"), b"100%");
        assert_eq!(decoded("%zz%4"), b"%zz%4");
    }
}
