//! The Redis store over TLS: a CA of one's own, a certificate of the client's, and what is refused.

use crate::support::redis::{PATIENCE, Server, free_port, settings, within};
use crate::support::{NEVER, charge, eventually, quota, unique_prefix, user};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tidegate::bucket::Charge;
use tidegate::store::redis::{RedisSettings, RedisStore, RedisUrl, TlsFiles, Topology};
use tidegate::store::{Store, StoreError};

/// A CA, what it signed, and the files that a server is told of.
struct Authority {
    ca: String,
    client: (String, String),
    /// For 127.0.0.1 and localhost.
    server: [String; 6],
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

impl Authority {
    fn new() -> Self {
        let (ca, files) = (ca(), tempfile::tempdir().unwrap());
        let path = |name: &str, text: &str| {
            let path = files.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (certificate, key) = signed(&ca, &["127.0.0.1", "localhost"]);
        let server = [
            "--tls-cert-file".to_owned(),
            path("server.crt", &certificate),
            "--tls-key-file".to_owned(),
            path("server.key", &key),
            "--tls-ca-cert-file".to_owned(),
            path("ca.crt", &ca.pem()),
        ];
        Self { ca: ca.pem(), client: signed(&ca, &["tidegate"]), server, _files: files }
    }

    /// A server with TLS on a port of its own, which it gives too. The plain port stays, for the tests.
    fn start(&self, options: &[&str]) -> (Server, u16) {
        let port = free_port();
        let text = port.to_string();
        let certificates: Vec<&str> = self.server.iter().map(String::as_str).collect();
        (Server::start(&[options, &["--tls-port", &text], &certificates].concat()), port)
    }

    fn files(&self) -> TlsFiles {
        TlsFiles { ca: Some(self.ca.clone().into_bytes()), client: None }
    }
}

fn url(port: u16, files: &TlsFiles) -> RedisUrl {
    format!("rediss://127.0.0.1:{port}").parse::<RedisUrl>().unwrap().with_tls(files).unwrap()
}

fn store_of(topology: Topology) -> RedisStore {
    RedisStore::new(within(PATIENCE, RedisSettings::of(topology)))
}

fn store(port: u16, files: &TlsFiles) -> RedisStore {
    store_of(Topology::Standalone(url(port, files)))
}

fn one() -> [Charge; 1] {
    [charge(&user(&unique_prefix(), "alice"), quota(10.0, NEVER), 1.0)]
}

async fn error(store: &RedisStore) -> StoreError {
    store.take(&one()).await.unwrap_err()
}

#[tokio::test]
async fn a_ca_of_ones_own_is_trusted_and_no_other() {
    let authority = Authority::new();
    let (_server, port) = authority.start(&["--tls-auth-clients", "no"]);
    assert!(store(port, &authority.files()).take(&one()).await.unwrap().admitted);
    let built_in = error(&store(port, &TlsFiles::default())).await;
    assert_eq!(built_in.kind(), "connection");
    assert!(built_in.to_string().contains("certificate"), "{built_in}");
    let other = TlsFiles { ca: Some(ca().pem().into_bytes()), client: None };
    assert_eq!(error(&store(port, &other)).await.kind(), "connection");
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_is_shown_one() {
    let authority = Authority::new();
    let (_server, port) = authority.start(&["--tls-auth-clients", "yes"]);
    let (certificate, key) = authority.client.clone();
    let client = Some((certificate.into_bytes(), key.into_bytes()));
    let files = TlsFiles { client, ..authority.files() };
    assert!(store(port, &files).take(&one()).await.unwrap().admitted);
    assert!(store(port, &authority.files()).take(&one()).await.is_err());
}

#[tokio::test]
async fn new_certificates_are_trusted_and_shown_by_the_connections_that_come_after_them() {
    let authority = Authority::new();
    let (_server, port) = authority.start(&["--tls-auth-clients", "yes"]);
    let outdated = TlsFiles { ca: Some(ca().pem().into_bytes()), client: None };
    let store = store(port, &outdated);
    assert_eq!(error(&store).await.kind(), "connection");
    let (certificate, key) = authority.client.clone();
    let files = TlsFiles { client: Some((certificate.into_bytes(), key.into_bytes())), ..authority.files() };
    store.sign_in_as(&Topology::Standalone(url(port, &files)));
    assert!(store.take(&one()).await.unwrap().admitted);
}

#[tokio::test]
async fn plain_and_tls_that_meet_are_an_error_and_no_hang() {
    let authority = Authority::new();
    let (server, port) = authority.start(&["--tls-auth-clients", "no"]);
    let plain = format!("redis://127.0.0.1:{port}");
    assert_eq!(error(&RedisStore::new(settings(&plain))).await.kind(), "connection");
    assert_eq!(error(&store(server.port(), &authority.files())).await.kind(), "connection");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nodes_of_a_cluster_are_reached_over_tls_with_the_same_ca() {
    let authority = Authority::new();
    let bus = free_port().to_string();
    let cluster = ["--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-port", &bus];
    let (server, port) = authority.start(&[&cluster[..], &["--tls-auth-clients", "no"]].concat());
    let () = server.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("the cluster is whole", || {
        server.run::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok").then_some(())
    });
    let store = store_of(Topology::Cluster(vec![url(port, &authority.files())]));
    assert!(store.take(&one()).await.unwrap().admitted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_and_its_master_are_reached_over_tls_with_the_same_ca() {
    let authority = Authority::new();
    let (_master, port) = authority.start(&["--tls-auth-clients", "no"]);
    let config = format!("sentinel monitor mymaster 127.0.0.1 {port} 1\n");
    let options = [config.as_str(), "--sentinel", "--tls-replication", "yes", "--tls-auth-clients", "no"];
    let (_sentinel, sentinel) = authority.start(&options);
    let access = "rediss://nowhere".parse::<RedisUrl>().unwrap().with_tls(&authority.files()).unwrap();
    let store = store_of(Topology::Sentinel {
        sentinels: vec![url(sentinel, &authority.files())],
        master: "mymaster".to_owned(),
        access,
    });
    assert!(store.take(&one()).await.unwrap().admitted);
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
