//! An HTTP server in the test's own process that publishes keys, or does anything else that such a server may do.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What it does with a request.
#[derive(Clone, Debug)]
pub enum Behaviour {
    Answer(u16, String),
    /// Reads, and says nothing.
    Hang,
    /// Answers with 8 MiB.
    Flood,
}

impl Behaviour {
    pub fn keys(jwks: impl Into<String>) -> Self {
        Self::Answer(200, jwks.into())
    }
}

#[derive(Debug)]
struct State {
    behaviour: Mutex<Behaviour>,
    requests: AtomicU64,
}

/// The server; it goes away when this is dropped.
#[derive(Debug)]
pub struct JwksServer {
    pub address: SocketAddr,
    /// Of a server with TLS, what is to be trusted.
    pub ca: Option<String>,
    state: Arc<State>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl JwksServer {
    pub fn start(behaviour: Behaviour) -> Self {
        Self::run(behaviour, 0, None)
    }

    /// On the port of one that went away.
    pub fn start_on(port: u16, behaviour: Behaviour) -> Self {
        Self::run(behaviour, port, None)
    }

    /// With TLS, as 127.0.0.1, under a CA of its own.
    pub fn start_tls(behaviour: Behaviour) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "a CA of the tests");
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap().signed_by(&key, &ca).unwrap();
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        Self::run(behaviour, 0, Some((TlsAcceptor::from(Arc::new(config)), ca.pem())))
    }

    fn run(behaviour: Behaviour, port: u16, tls: Option<(TlsAcceptor, String)>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", port))).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { behaviour: Mutex::new(behaviour), requests: AtomicU64::new(0) });
        let (acceptor, ca) = tls.unzip();
        let serving = state.clone();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (state, acceptor) = (serving.clone(), acceptor.clone());
                tokio::spawn(async move {
                    match acceptor {
                        // Who does not trust it breaks off.
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                serve(stream, state).await;
                            }
                        }
                        None => serve(stream, state).await,
                    }
                });
            }
        });
        Self { address, ca, state, runtime: Some(runtime) }
    }

    pub fn url(&self) -> String {
        let scheme = if self.ca.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/.well-known/jwks.json", self.address)
    }

    /// Has it do something else from now on.
    pub fn behave(&self, behaviour: Behaviour) {
        *self.state.behaviour.lock().unwrap() = behaviour;
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::Relaxed)
    }
}

impl Drop for JwksServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, state: Arc<State>) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let state = state.clone();
        async move {
            assert_eq!(request.uri().path(), "/.well-known/jwks.json");
            state.requests.fetch_add(1, Ordering::Relaxed);
            let behaviour = state.behaviour.lock().unwrap().clone();
            let (status, body) = match behaviour {
                Behaviour::Answer(status, body) => (status, body),
                Behaviour::Hang => std::future::pending().await,
                Behaviour::Flood => (200, "x".repeat(8 << 20)),
            };
            let mut response = Response::new(Full::new(Bytes::from(body)));
            *response.status_mut() = status.try_into().unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    // Who asked may go away before the end.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
}
