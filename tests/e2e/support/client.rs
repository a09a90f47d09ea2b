//! Callers of the gateway, each from an address of its own.

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::runtime::Runtime;

/// Someone who sends requests, with the same headers each time.
#[derive(Debug)]
pub struct Caller {
    runtime: Runtime,
    client: Client<HttpConnector, Full<Bytes>>,
    server: SocketAddr,
    headers: Vec<(String, String)>,
    address: Ipv4Addr,
}

impl Caller {
    /// Speaks HTTP/1.1, from a loopback address that no other caller has.
    pub fn new(server: SocketAddr) -> Self {
        Self::speaking(server, false)
    }

    /// Speaks HTTP/2 without TLS.
    pub fn http2(server: SocketAddr) -> Self {
        Self::speaking(server, true)
    }

    fn speaking(server: SocketAddr, http2: bool) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0x7f01_0001);
        let address = Ipv4Addr::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut connector = HttpConnector::new();
        connector.set_local_address(Some(address.into()));
        let client = Client::builder(TokioExecutor::new()).http2_only(http2).build(connector);
        Self { runtime, client, server, headers: Vec::new(), address }
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn bearer(self, token: &str) -> Self {
        self.with("authorization", &format!("Bearer {token}"))
    }

    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[])
    }

    /// The statuses of so many requests, one after another.
    pub fn statuses(&self, path: &str, count: usize) -> Vec<u16> {
        (0..count).map(|_| self.get(path).status).collect()
    }

    /// Asks until it is denied, which takes no limit of these tests long.
    pub fn until_denied(&self, method: Method, path: &str) -> Answer {
        let mut answers = (0..100).map(|_| self.send(method.clone(), path, &[]));
        answers.find(|answer| answer.status == 429).unwrap_or_else(|| panic!("{path} is never denied"))
    }

    pub fn send(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.try_send(method, path, headers).unwrap()
    }

    /// # Errors
    /// When the connection fails.
    pub fn try_send(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> Result<Answer, String> {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.server));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::default()).unwrap();
        self.runtime.block_on(async {
            let response = self.client.request(request).await.map_err(|error| format!("{error:?}"))?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.map_err(|error| format!("{error:?}"))?.to_bytes();
            let body = String::from_utf8(body.into()).unwrap();
            Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
        })
    }
}

/// What a caller got.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    /// The value of a header that is there once or not at all.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let first = values.next().map(|value| value.to_str().unwrap());
        assert_eq!(values.next(), None, "{name} is there twice: {:?}", self.headers);
        first
    }

    pub fn number(&self, name: &str) -> u64 {
        let text = self.header(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        text.parse().unwrap()
    }

    /// x-ratelimit-limit and -remaining.
    pub fn limit_and_remaining(&self) -> (u64, u64) {
        (self.number("x-ratelimit-limit"), self.number("x-ratelimit-remaining"))
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// A header as the upstream saw it, which echoes what it got.
    pub fn upstream_saw(&self, name: &str) -> Option<String> {
        let echo = self.json();
        let mut values = echo["headers"].as_array().unwrap().iter().filter(|header| header[0] == name);
        let first = values.next().map(|header| header[1].as_str().unwrap().to_owned());
        assert!(values.next().is_none(), "the upstream saw {name} twice: {echo}");
        first
    }

    pub fn has_limit_headers(&self) -> bool {
        self.headers.keys().any(|name| name.as_str().contains("ratelimit"))
    }
}
