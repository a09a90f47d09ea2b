//! TLS of the listeners: who is let in, what they are shown, and what happens to who dawdles or talks nonsense.

mod faults;
mod rotation;

use crate::support::admin;
use crate::support::eventually;
use crate::support::service::{Tidegate, block_on, check, program};
use crate::support::tls::{Authority, Files, Pair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate::ext_authz::proto::authorization_client::AuthorizationClient;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// Long enough for a busy machine; only a broken one waits that long.
const PATIENCE: Duration = Duration::from_secs(30);

const GATEWAY: &str = "spiffe://mesh.example/ns/gateways/sa/envoy";

/// A service with certificates of an authority of its own.
struct Secured {
    service: Tidegate,
    ca: Authority,
    files: Files,
}

/// `{…}` of a listener that shows `server.crt`, with `more` in it.
fn section(files: &Files, more: &str) -> String {
    let path = |name| files.path(name).display().to_string();
    format!("{{cert: {}, key: {}{more}}}", path("server.crt"), path("server.key"))
}

/// `, client_ca: …` with `more` behind.
fn with_ca(files: &Files, more: &str) -> String {
    format!(", client_ca: {}{more}", files.path("ca.crt").display())
}

impl Secured {
    fn start(more: impl FnOnce(&Files) -> String) -> Self {
        Self::start_with(|files| format!("tls: {}\n", section(files, &more(files))))
    }

    fn start_with(config: impl FnOnce(&Files) -> String) -> Self {
        let (ca, files) = (Authority::new(), Files::new());
        files.write("ca.crt", &ca.pem());
        files.write_pair("server", &ca.server());
        let path = files.write("tidegate.yaml", &format!("drain: 0s\n{}", config(&files)));
        let service = Tidegate::start_at(path.as_ref(), &[]);
        Self { service, ca, files }
    }

    fn handshakes(&self, result: &str) -> u64 {
        handshakes(&self.service, "grpc", result)
    }

    /// At least so many: some clients try again.
    fn until_handshakes(&self, result: &str, count: u64) {
        eventually(&format!("{count} handshakes end as {result}"), || (self.handshakes(result) >= count).then_some(()));
    }

    fn check(&self, client: Option<&Pair>) -> Result<i32, String> {
        block_on(async { code(&mut connect(self.service.address, &self.ca, client).await?).await })
    }
}

fn handshakes(service: &Tidegate, listener: &str, result: &str) -> u64 {
    let series = format!("tidegate_tls_handshakes_total{{listener=\"{listener}\",result=\"{result}\"}}");
    admin::get(service.admin, "/metrics").value(&series)
}

type Client = AuthorizationClient<Channel>;

async fn connect(address: SocketAddr, ca: &Authority, client: Option<&Pair>) -> Result<Client, String> {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca.pem()));
    let tls = match client {
        Some(pair) => tls.identity(Identity::from_pem(&pair.cert, &pair.key)),
        None => tls,
    };
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(tls).unwrap();
    endpoint.connect().await.map(AuthorizationClient::new).map_err(|error| format!("{error:?}"))
}

async fn code(client: &mut Client) -> Result<i32, String> {
    let answer = client.check(check(&[])).await.map_err(|status| format!("{status:?}"))?;
    Ok(answer.into_inner().status.unwrap().code)
}

/// A client of rustls, for what tonic does not let choose.
fn rustls_config(ca: &Authority, versions: &[&'static SupportedProtocolVersion], alpn: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// The connection after its handshake, and what it is on.
fn handshake(
    address: SocketAddr,
    config: Arc<ClientConfig>,
) -> Result<rustls::StreamOwned<rustls::ClientConnection, TcpStream>, String> {
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut connection = rustls::ClientConnection::new(config, name).map_err(|error| error.to_string())?;
    let mut socket = admin::open(address);
    while connection.is_handshaking() {
        connection.complete_io(&mut socket).map_err(|error| error.to_string())?;
    }
    Ok(rustls::StreamOwned::new(connection, socket))
}

#[test]
fn both_versions_of_tls_are_spoken_with_http_2_alone() {
    let secured = Secured::start(|_| String::new());
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = rustls_config(&secured.ca, &[version], &["h2", "http/1.1"]);
        let stream = handshake(secured.service.address, config).unwrap();
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
        assert_eq!(stream.conn.protocol_version(), Some(version.version));
        let config = rustls_config(&secured.ca, &[version], &["http/1.1"]);
        let refused = handshake(secured.service.address, config).err().unwrap();
        assert!(refused.contains("NoApplicationProtocol"), "{refused}");
    }
    secured.until_handshakes("protocol", 2);
    assert_eq!(secured.check(None), Ok(0));
    assert_eq!(secured.handshakes("ok"), 3);
}

/// What a client begins with that knows TLS up to this version (RFC 5246, 7.4.1.2), and no TLS 1.3: P-256, ECDSA with
/// SHA-256, and ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, so that nothing but the version may be in the way.
fn hello(version: [u8; 2]) -> Vec<u8> {
    let (suites, groups, signatures) = ([0, 2, 0xc0, 0x2b], [0, 10, 0, 4, 0, 2, 0, 23], [0, 13, 0, 4, 0, 2, 4, 3]);
    let extensions = [&[0, (groups.len() + signatures.len()) as u8][..], &groups, &signatures].concat();
    let body = [&version[..], &[7; 32], &[0], &suites, &[1, 0], &extensions].concat();
    let message = [&[1, 0, 0, body.len() as u8][..], &body].concat();
    [&[22, 3, 1, 0, message.len() as u8][..], &message].concat()
}

#[test]
fn tls_1_1_is_refused() {
    let secured = Secured::start(|_| String::new());
    let begin = |version| {
        let mut socket = admin::open(secured.service.address);
        socket.write_all(&hello(version)).unwrap();
        let mut said = [0; 7];
        socket.read_exact(&mut said).unwrap();
        said
    };
    // A record of the handshake, with a ServerHello in it.
    let said = begin([3, 3]);
    assert_eq!((said[0], said[5]), (22, 2), "{said:?}");
    // A fatal alert (RFC 5246, 7.2.2): protocol_version.
    let said = begin([3, 2]);
    assert_eq!((said[0], &said[5..]), (21, &[2, 70][..]), "{said:?}");
    secured.until_handshakes("protocol", 1);
}

#[test]
fn clients_in_plain_text_are_refused_and_it_is_said() {
    let secured = Secured::start(|_| String::new());
    let plain = block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{}", secured.service.address)).unwrap();
        let channel = endpoint.connect().await.map_err(|error| error.to_string())?;
        code(&mut AuthorizationClient::new(channel)).await
    });
    assert!(plain.is_err(), "{plain:?}");
    assert!(secured.handshakes("not_tls") >= 1);
    secured.service.wait_for_log("a TLS handshake failed");
}

#[test]
fn with_a_ca_for_clients_only_its_certificates_are_let_in() {
    let secured = Secured::start(|files| with_ca(files, ""));
    let good = secured.ca.client(&[]);
    assert_eq!(secured.check(Some(&good)), Ok(0));
    assert!(secured.check(None).is_err());
    secured.until_handshakes("no_certificate", 1);
    let foreign = Authority::new().client(&[GATEWAY]);
    assert!(secured.check(Some(&foreign)).is_err());
    secured.until_handshakes("bad_certificate", 1);
    let expired = secured.ca.sign(&[], &[], |params| {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    });
    let before = secured.handshakes("bad_certificate");
    assert!(secured.check(Some(&expired)).is_err());
    secured.until_handshakes("bad_certificate", before + 1);
    assert_eq!(secured.handshakes("ok"), 1);
}

#[test]
fn of_clients_with_good_certificates_only_those_with_a_listed_spiffe_id_are_let_in() {
    let ids = ", client_spiffe_ids: ['spiffe://mesh.example/ns/gateways/sa/envoy', 'spiffe://mesh.example/ns/tests/*']";
    let secured = Secured::start(|files| with_ca(files, ids));
    for id in [GATEWAY, "spiffe://mesh.example/ns/tests/sa/any"] {
        assert_eq!(secured.check(Some(&secured.ca.client(&[id]))), Ok(0), "{id}");
    }
    let others: [&[&str]; 6] = [
        &["spiffe://mesh.example/ns/gateways/sa/envoy2"],
        &[],
        &["spiffe://mesh.example/ns/tests"],
        &["spiffe://other.example/ns/gateways/sa/envoy"],
        &["https://mesh.example/ns/gateways/sa/envoy"],
        // More than one URI is no SPIFFE certificate, whatever they are.
        &[GATEWAY, "spiffe://mesh.example/ns/tests/sa/any"],
    ];
    for uris in others {
        let before = secured.handshakes("not_allowed");
        assert!(secured.check(Some(&secured.ca.client(uris))).is_err(), "{uris:?}");
        secured.until_handshakes("not_allowed", before + 1);
    }
    // An id counts for nothing where nobody vouches for it.
    assert!(secured.check(Some(&Authority::new().client(&[GATEWAY]))).is_err());
    secured.until_handshakes("bad_certificate", 1);
    assert_eq!(secured.handshakes("ok"), 2);
    secured
        .service
        .wait_for_log("has spiffe://mesh.example/ns/gateways/sa/envoy2, which client_spiffe_ids does not name");
}

#[test]
fn nonsense_and_a_client_that_leaves_cost_nobody_else_anything() {
    let secured = Secured::start(|_| String::new());
    for text in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[22, 3, 1, 255, 255, 0], &[22, 3, 1, 0, 4, 1, 255, 255, 255], &[0; 64]]
    {
        let mut socket = admin::open(secured.service.address);
        socket.write_all(text).unwrap();
        drop(socket.shutdown(std::net::Shutdown::Write));
        let _ = socket.read_to_end(&mut Vec::new());
    }
    drop(TcpStream::connect(secured.service.address).unwrap());
    eventually("all have been counted", || {
        let ends = ["not_tls", "protocol", "left"].map(|result| secured.handshakes(result));
        (ends.iter().sum::<u64>() == 5).then_some(())
    });
    assert_eq!(secured.check(None), Ok(0));
}

#[test]
fn clients_that_dawdle_make_room_for_those_in_earnest() {
    let secured = Secured::start(|_| String::new());
    let dawdling: Vec<TcpStream> = (0..300).map(|_| admin::open(secured.service.address)).collect();
    secured.until_handshakes("crowded", 300 - 256);
    let begun = Instant::now();
    assert_eq!(secured.check(None), Ok(0));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(dawdling);
}

#[test]
fn a_handshake_that_does_not_end_is_ended() {
    let secured = Secured::start(|_| String::new());
    let mut socket = TcpStream::connect(secured.service.address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // The head of a record, and no more.
    socket.write_all(&[22, 3, 1]).unwrap();
    let begun = Instant::now();
    assert_eq!(socket.read(&mut [0; 64]).unwrap_or_default(), 0);
    assert!(begun.elapsed() >= Duration::from_secs(9), "{:?}", begun.elapsed());
    secured.until_handshakes("timeout", 1);
}

#[test]
fn a_handshake_holds_up_no_end_of_the_service() {
    let mut secured = Secured::start(|_| String::new());
    let _dawdling = TcpStream::connect(secured.service.address).unwrap();
    assert_eq!(secured.check(None), Ok(0));
    let begun = Instant::now();
    secured.service.signal("TERM");
    assert_eq!(secured.service.wait(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn old_connections_are_replaced_and_the_end_drains_over_tls_as_without() {
    let limits = "tiers: {free: {per_ip: {max_tokens: 1000000, refill_rate: 1000000}}}";
    let more = format!("max_connection_age: 1s\nlog: {{filter: debug}}\n{limits}\n");
    let mut secured = Secured::start_with(|files| format!("{more}tls: {}\n", section(files, "")));
    block_on(async {
        let mut client = connect(secured.service.address, &secured.ca, None).await.unwrap();
        assert_eq!(code(&mut client).await, Ok(0));
        let begun = Instant::now();
        while !secured.service.log().contains("a connection is old") {
            assert!(begun.elapsed() < PATIENCE, "no connection grows old");
            // So that the client hears of it.
            assert_eq!(code(&mut client).await, Ok(0));
        }
        assert_eq!(code(&mut client).await, Ok(0), "the client has connected again");
        secured.service.signal("TERM");
        while code(&mut client).await.is_ok() {
            assert!(begun.elapsed() < PATIENCE, "the service does not end");
        }
    });
    assert_eq!(secured.service.wait(), Some(0));
    assert!(!secured.service.log().contains("dropping what"), "{}", secured.service.log());
}

/// Asks the admin endpoint over TLS.
fn get(address: SocketAddr, ca: &Authority, target: &str) -> String {
    let mut stream = handshake(address, rustls_config(ca, rustls::DEFAULT_VERSIONS, &["h2", "http/1.1"])).unwrap();
    stream.write_all(format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn the_admin_endpoint_has_tls_of_its_own() {
    let secured = Secured::start_with(|files| format!("admin: {{tls: {}}}\n", section(files, "")));
    assert!(get(secured.service.admin, &secured.ca, "/livez").ends_with("alive\n"));
    assert!(get(secured.service.admin, &secured.ca, "/config").starts_with("HTTP/1.1 200 "));
    assert_eq!(admin::get(secured.service.admin, "/livez").head.find("HTTP/1.1 200"), None);
    let told = get(secured.service.admin, &secured.ca, "/metrics");
    let has = |line: &str| assert!(told.contains(line), "{line} is not in {told}");
    has("tidegate_tls_handshakes_total{listener=\"admin\",result=\"ok\"} 3");
    has("tidegate_tls_handshakes_total{listener=\"admin\",result=\"not_tls\"} 1");
    has("tidegate_tls_certificate_expiry_timestamp_seconds{listener=\"admin\"} ");
    // What has no TLS tells nothing of it.
    assert!(!told.contains("listener=\"grpc\""));
}

#[test]
fn the_admin_endpoint_can_ask_for_certificates_too() {
    let secured = Secured::start_with(|files| format!("admin: {{tls: {}}}\n", section(files, &with_ca(files, ""))));
    // In TLS 1.3 the client is done before it hears that it is refused.
    let stream = handshake(secured.service.admin, rustls_config(&secured.ca, &[&rustls::version::TLS12], &[]));
    let refused = stream.err().unwrap();
    assert!(refused.contains("alert"), "{refused}");
    secured.service.wait_for_log("no_certificate");
}

/// `tidegate probe` of a secured service.
fn probe(secured: &Secured, arguments: &[&str]) -> Output {
    let (address, ca) = (secured.service.address.to_string(), secured.files.path("ca.crt"));
    let mut command = program(&["probe", &address, "--timeout", "20s", "--tls", "--ca"]);
    command.arg(ca).args(arguments).output().unwrap()
}

#[test]
fn a_probe_speaks_tls_and_shows_a_certificate() {
    let secured = Secured::start(|files| with_ca(files, &format!(", client_spiffe_ids: ['{GATEWAY}']")));
    let (cert, key) = secured.files.write_pair("client", &secured.ca.client(&[GATEWAY]));
    let shown = ["--cert", &cert, "--key", &key];
    let output = probe(&secured, &[&shown[..], &["--check", "--expect", "allowed"]].concat());
    assert!(output.status.success(), "{output:?}");
    let named = probe(&secured, &[&shown[..], &["--server-name", "localhost"]].concat());
    assert!(named.status.success(), "{named:?}");

    let refused = |arguments: &[&str], why: &str| {
        let output = probe(&secured, arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains(why), "{why} is not in {said}");
    };
    refused(&[], "CertificateRequired");
    refused(&[&shown[..], &["--server-name", "other.example"]].concat(), "not valid for name \"other.example\"");
    let (cert, key) = secured.files.write_pair("other", &secured.ca.client(&["spiffe://mesh.example/ns/others"]));
    refused(&["--cert", &cert, "--key", &key], "alert");
}

#[test]
fn a_unix_socket_may_have_tls_as_well() {
    let (ca, files) = (Authority::new(), Files::new());
    let (root, _) = (files.write("ca.crt", &ca.pem()), files.write_pair("server", &ca.server()));
    let listen = format!("unix:{}", files.path("t.sock").display());
    let _service = Tidegate::start_on(&listen, &format!("tls: {}\n", section(&files, "")), &[]);
    let arguments = ["probe", &listen, "--timeout", "20s", "--tls", "--ca", &root, "--server-name", "localhost"];
    let output = program(&arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
