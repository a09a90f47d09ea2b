//! What stands behind the gateway: it echoes a request's headers as JSON, and says more when asked to.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::OnceLock;
use tokio::net::TcpListener;

/// `name=value`: a header that the upstream is to put in its response; may be there several times.
pub const SAY: &str = "x-upstream-say";

/// A gRPC message of one byte pair: the health service's SERVING.
const SERVING: &[u8] = &[0, 0, 0, 0, 2, 8, 1];

/// The upstream that all tests share.
pub fn address() -> SocketAddr {
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    *ADDRESS.get_or_init(start)
}

fn start() -> SocketAddr {
    let (said, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            said.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let answer = |request| ready(Ok::<_, Infallible>(answer(&request)));
                    let service = hyper::service::service_fn(answer);
                    let _ =
                        auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
    });
    address.recv().unwrap()
}

fn answer(request: &Request<Incoming>) -> Response<BoxBody<Bytes, Infallible>> {
    if request.headers().get("content-type").is_some_and(|kind| kind == "application/grpc") {
        let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
        let body = Full::from(SERVING).with_trailers(async move { Some(Ok(trailers)) });
        return Response::builder().header("content-type", "application/grpc").body(body.boxed()).unwrap();
    }
    let headers: Vec<_> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes())))
        .collect();
    let echo = serde_json::json!({"path": request.uri().path(), "headers": headers});
    let mut response = Response::builder().header("content-type", "application/json");
    for wanted in request.headers().get_all(SAY) {
        let (name, value) = wanted.to_str().unwrap().split_once('=').unwrap();
        response = response.header(name, value);
    }
    response.body(Full::from(echo.to_string()).boxed()).unwrap()
}
