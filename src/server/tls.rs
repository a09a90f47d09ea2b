//! TLS of a listener: files in PEM -> what it shows and asks of its clients, proven, or every fault of them.
//!
//! Whoever is to show a certificate must have one that the files trust; ids that are listed are those of [`spiffe`]. No
//! session is resumed, so every handshake sees the certificates of its moment. Knows nothing of what is said after the
//! handshake.

mod handshake;
pub mod spiffe;

pub use crate::metrics::Listener;
pub use handshake::Handshakes;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error, InconsistentKeys, RootCertStore, ServerConfig, SupportedProtocolVersion};
use sha2::{Digest as _, Sha256};
use spiffe::{AllowedIds, Pattern};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is spoken at least: RFC 8996 forbids what is older, and rustls cannot speak it.
const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];

/// What a listener is to show and to ask of its clients, as PEM.
#[derive(Clone, Default)]
pub struct TlsFiles {
    /// The certificate, and those between it and its root.
    pub cert: Vec<u8>,
    pub key: Vec<u8>,
    /// The roots that certificates of clients must lead to; `None`: clients need none.
    pub client_ca: Option<Vec<u8>>,
}

/// One of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Cert,
    Key,
    ClientCa,
}

/// What is wrong with one of the files, or will be taken for wrong by others. Nothing of a key is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub part: Part,
    pub text: String,
}

/// TLS of a listener, proven. Clones share it.
#[derive(Clone)]
pub struct Tls {
    /// `None`: the files were left aside.
    terms: Option<Arc<Terms>>,
}

/// How clients are met.
struct Terms {
    config: Arc<ServerConfig>,
    /// When the first certificate of the chain is of no use any more.
    expires: SystemTime,
    /// Of all that these were made of.
    digest: [u8; 32],
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("expires", &self.terms.as_ref().map(|terms| terms.expires)).finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsFiles").field("client_ca", &self.client_ca.is_some()).finish_non_exhaustive()
    }
}

impl Tls {
    /// Of files that nobody has read. A listener with it lets nobody in.
    pub fn unread() -> Self {
        Self { terms: None }
    }

    /// Of these files; `ids` are those of clients that are let in, `None` for all whom `client_ca` vouches for. With it
    /// comes what is sound, but perhaps not meant.
    ///
    /// # Errors
    /// Every fault of the files.
    pub fn prove(
        listener: Listener,
        files: &TlsFiles,
        ids: Option<&[Pattern]>,
    ) -> Result<(Self, Vec<Finding>), Vec<Finding>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (mut faults, mut warnings) = (Vec::new(), Vec::new());
        let chain = chain(Part::Cert, &files.cert, &mut faults, &mut warnings);
        let key = signing_key(&files.key, &provider, &mut faults);
        let verifier = verifier(files.client_ca.as_deref(), ids, &provider, &mut faults, &mut warnings);
        let shown = chain.zip(key).and_then(|(chain, key)| pair(chain, key, &mut faults));
        match (shown, verifier) {
            (Some((shown, expires)), Some(verifier)) if faults.is_empty() => {
                let config = server(listener, shown, verifier, provider).map_err(|finding| vec![finding])?;
                let terms = Terms { config: Arc::new(config), expires, digest: digest(files, ids) };
                Ok((Self { terms: Some(Arc::new(terms)) }, warnings))
            }
            _ => Err(faults),
        }
    }

    /// When its certificate expires.
    pub fn expires(&self) -> Option<SystemTime> {
        self.terms.as_ref().map(|terms| terms.expires)
    }

    /// Whether both were made of the same.
    fn is_same(&self, other: &Self) -> bool {
        let digest = |tls: &Self| tls.terms.as_ref().map(|terms| terms.digest);
        digest(self) == digest(other)
    }
}

type Verifier = Arc<dyn ClientCertVerifier>;

fn server(
    listener: Listener,
    shown: CertifiedKey,
    verifier: Verifier,
    provider: Arc<CryptoProvider>,
) -> Result<ServerConfig, Finding> {
    let unfit = |error: Error| Finding { part: Part::Cert, text: format!("cannot be used: {error}") };
    let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(&VERSIONS).map_err(unfit)?;
    let resolver = Arc::new(SingleCertAndKey::from(shown));
    let mut config = config.with_client_cert_verifier(verifier).with_cert_resolver(resolver);
    config.alpn_protocols = match listener {
        Listener::Grpc => vec![b"h2".to_vec()],
        Listener::Admin => vec![b"http/1.1".to_vec()],
    };
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The certificates of a file, each with what is read of it: at least one, unless there are faults.
fn chain(part: Part, pem: &[u8], faults: &mut Vec<Finding>, warnings: &mut Vec<Finding>) -> Option<Vec<Certificate>> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let text = match read {
        Ok(list) if list.is_empty() => "holds no certificate in PEM (-----BEGIN CERTIFICATE-----)".to_owned(),
        Ok(list) => match list.into_iter().map(Certificate::read).collect::<Result<Vec<_>, _>>() {
            Ok(list) => {
                warnings.extend(list.iter().enumerate().filter_map(|(place, certificate)| {
                    let consequence = match part {
                        // Nobody asks how old a root is (RFC 5280, 6.1.1).
                        Part::ClientCa => "it is believed all the same",
                        Part::Cert | Part::Key => "who checks it refuses it",
                    };
                    let text = format!("certificate {} {}: {consequence}", place + 1, certificate.out_of_date()?);
                    Some(Finding { part, text })
                }));
                return Some(list);
            }
            Err(why) => why,
        },
        Err(_) => "holds a certificate that is no PEM; a line of it is missing or damaged".to_owned(),
    };
    faults.push(Finding { part, text });
    None
}

/// A certificate, and what of it is told.
struct Certificate {
    der: CertificateDer<'static>,
    not_before: SystemTime,
    not_after: SystemTime,
}

impl Certificate {
    fn read(der: CertificateDer<'static>) -> Result<Self, String> {
        let (_, read) = x509_parser::parse_x509_certificate(&der)
            .map_err(|_| "holds something in place of an X.509 certificate".to_owned())?;
        let time = |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        let validity = read.validity();
        let (not_before, not_after) = (time(validity.not_before.timestamp()), time(validity.not_after.timestamp()));
        Ok(Self { der, not_before, not_after })
    }

    fn out_of_date(&self) -> Option<String> {
        let now = SystemTime::now();
        let told = |time| humantime::format_rfc3339_seconds(time);
        if now > self.not_after {
            Some(format!("expired at {}", told(self.not_after)))
        } else if now < self.not_before {
            Some(format!("is valid from {} only", told(self.not_before)))
        } else {
            None
        }
    }
}

type Key = Arc<dyn rustls::sign::SigningKey>;

fn signing_key(pem: &[u8], provider: &CryptoProvider, faults: &mut Vec<Finding>) -> Option<Key> {
    let encrypted = pem.windows(ENCRYPTED.len()).any(|window| window == ENCRYPTED);
    let text = match PrivateKeyDer::from_pem_slice(pem) {
        Ok(key) => match provider.key_provider.load_private_key(key) {
            Ok(key) => return Some(key),
            Err(_) => {
                "holds a private key of a kind that cannot be used; write RSA of 2048 bits or more, ECDSA P-256 or \
                       P-384, or Ed25519"
            }
        },
        Err(_) if encrypted => "holds an encrypted private key; write it without a passphrase",
        Err(_) => "holds no private key in PEM (-----BEGIN PRIVATE KEY-----)",
    };
    faults.push(Finding { part: Part::Key, text: text.to_owned() });
    None
}

const ENCRYPTED: &[u8] = b"ENCRYPTED";

/// Both as they are shown, and when the first of the chain expires.
fn pair(chain: Vec<Certificate>, key: Key, faults: &mut Vec<Finding>) -> Option<(CertifiedKey, SystemTime)> {
    let expires = chain.first()?.not_after;
    let shown = CertifiedKey::new(chain.into_iter().map(|certificate| certificate.der).collect(), key);
    let text = match shown.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => return Some((shown, expires)),
        Err(Error::InconsistentKeys(_)) => {
            "is not the key of the first certificate in cert; write the pair that was issued together".to_owned()
        }
        Err(error) => format!("does not go with cert: {error}"),
    };
    faults.push(Finding { part: Part::Key, text });
    None
}

/// Who checks the certificates of clients.
fn verifier(
    ca: Option<&[u8]>,
    ids: Option<&[Pattern]>,
    provider: &Arc<CryptoProvider>,
    faults: &mut Vec<Finding>,
    warnings: &mut Vec<Finding>,
) -> Option<Verifier> {
    let Some(pem) = ca else { return Some(WebPkiClientVerifier::no_client_auth()) };
    let fault = |text: String| Finding { part: Part::ClientCa, text };
    let mut roots = RootCertStore::empty();
    for certificate in chain(Part::ClientCa, pem, faults, warnings)? {
        if let Err(error) = roots.add(certificate.der) {
            faults.push(fault(format!("holds a certificate that cannot be a root: {error}")));
            return None;
        }
    }
    match WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build() {
        Ok(verifier) => Some(match ids {
            Some(ids) => Arc::new(AllowedIds::new(ids.to_vec(), verifier)),
            None => verifier,
        }),
        Err(error) => {
            faults.push(fault(format!("cannot be used: {error}")));
            None
        }
    }
}

fn digest(files: &TlsFiles, ids: Option<&[Pattern]>) -> [u8; 32] {
    let mut hash = Sha256::new();
    let ids = format!("{ids:?}");
    for part in [&files.cert, &files.key, files.client_ca.as_deref().unwrap_or_default(), ids.as_bytes()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
