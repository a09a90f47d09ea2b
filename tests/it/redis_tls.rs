//! The Redis store over TLS: a CA of one's own, a certificate of the client's, and what is refused.

use crate::support::redis::{Server, free_port, settings, within};
use crate::support::{NEVER, charge, quota, unique_prefix, user};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::time::Duration;
use tempfile::TempDir;
use tidegate::bucket::Charge;
use tidegate::store::redis::{RedisSettings, RedisStore, RedisUrl, TlsFiles};
use tidegate::store::{Store, StoreError};

/// A CA, and a server that trusts it and shows a certificate of it for 127.0.0.1 and localhost.
struct Secured {
    server: Server,
    port: u16,
    ca: String,
    client: (String, String),
    _files: TempDir,
}

fn ca() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Else issuer and subject have one name, and what it signs looks signed by itself.
    params.distinguished_name.push(DnType::CommonName, "a CA of the tests");
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key.
fn signed(ca: &CertifiedIssuer<'static, KeyPair>, names: &[&str]) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, ca).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn start(clients: &str) -> Secured {
    let (ca, files, port) = (ca(), tempfile::tempdir().unwrap(), free_port());
    let path = |name: &str, text: &str| {
        let path = files.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (certificate, key) = signed(&ca, &["127.0.0.1", "localhost"]);
    let (certificate, key) = (path("server.crt", &certificate), path("server.key", &key));
    let trusted = path("ca.crt", &ca.pem());
    let server = Server::start(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &trusted,
        "--tls-auth-clients",
        clients,
    ]);
    Secured { server, port, client: signed(&ca, &["tidegate"]), ca: ca.pem(), _files: files }
}

impl Secured {
    fn url(&self) -> RedisUrl {
        format!("rediss://127.0.0.1:{}", self.port).parse().unwrap()
    }

    fn store(&self, files: &TlsFiles) -> RedisStore {
        let url = self.url().with_tls(files).unwrap();
        RedisStore::new(within(Duration::from_secs(20), RedisSettings::new(url)))
    }

    fn files(&self) -> TlsFiles {
        TlsFiles { ca: Some(self.ca.clone().into_bytes()), client: None }
    }
}

fn one() -> [Charge; 1] {
    [charge(&user(&unique_prefix(), "alice"), quota(10.0, NEVER), 1.0)]
}

async fn error(store: &RedisStore) -> StoreError {
    store.take(&one()).await.unwrap_err()
}

#[tokio::test]
async fn a_ca_of_ones_own_is_trusted_and_no_other() {
    let secured = start("no");
    assert!(secured.store(&secured.files()).take(&one()).await.unwrap().admitted);
    let built_in = error(&secured.store(&TlsFiles::default())).await;
    assert_eq!(built_in.kind(), "connection");
    assert!(built_in.to_string().contains("certificate"), "{built_in}");
    let other = TlsFiles { ca: Some(ca().pem().into_bytes()), client: None };
    assert_eq!(error(&secured.store(&other)).await.kind(), "connection");
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_is_shown_one() {
    let secured = start("yes");
    let (certificate, key) = secured.client.clone();
    let client = Some((certificate.into_bytes(), key.into_bytes()));
    let files = TlsFiles { client, ..secured.files() };
    assert!(secured.store(&files).take(&one()).await.unwrap().admitted);
    assert!(secured.store(&secured.files()).take(&one()).await.is_err());
}

#[tokio::test]
async fn plain_and_tls_that_meet_are_an_error_and_no_hang() {
    let secured = start("no");
    let plain = format!("redis://127.0.0.1:{}", secured.port);
    assert_eq!(error(&RedisStore::new(settings(&plain))).await.kind(), "connection");
    let tls = format!("rediss://127.0.0.1:{}", secured.server.port()).parse::<RedisUrl>().unwrap();
    let store = RedisStore::new(within(Duration::from_secs(20), RedisSettings::new(tls)));
    assert_eq!(error(&store).await.kind(), "connection");
}

#[test]
fn certificates_that_are_none_are_refused_without_being_repeated() {
    let url = || "rediss://h".parse::<RedisUrl>().unwrap();
    let key = b"-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n".to_vec();
    let files = TlsFiles { ca: None, client: Some((b"no certificate".to_vec(), key)) };
    let told = url().with_tls(&files).unwrap_err().to_string();
    assert!(!told.contains("hunter2"), "{told}");
    assert!(!format!("{files:?}").contains("hunter2"));
    let told = |files: &TlsFiles| url().with_tls(files).unwrap_err().to_string();
    let nothing = TlsFiles { ca: Some(b"no certificate".to_vec()), client: None };
    assert_eq!(told(&nothing), "ca_file holds no certificate in PEM");
    let ca = ca();
    let ((certificate, _), (_, other)) = (signed(&ca, &["a"]), signed(&ca, &["b"]));
    let mixed = TlsFiles { ca: None, client: Some((certificate.into_bytes(), other.into_bytes())) };
    assert!(told(&mixed).starts_with("cert_file and key_file do not go together"), "{}", told(&mixed));
}
