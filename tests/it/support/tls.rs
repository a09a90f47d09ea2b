//! Certificates for tests, and clients that speak TLS to a service. tests/e2e shares it.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A root, and what it signs.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    pub cert: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Else issuer and subject have one name, and what it signs looks signed by itself.
        params.distinguished_name.push(DnType::CommonName, "a CA of the tests");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// For a service on this machine.
    pub fn server(&self) -> Pair {
        self.sign(&["127.0.0.1", "localhost"], &[], |_| ())
    }

    /// For a client with these ids.
    pub fn client(&self, uris: &[&str]) -> Pair {
        self.sign(&[], uris, |_| ())
    }

    pub fn sign(&self, names: &[&str], uris: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.subject_alt_names.extend(uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())));
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Pair { cert: params.signed_by(&key, &self.0).unwrap().pem(), key: key.serialize_pem() }
    }
}

/// A directory of files that a service reads.
#[derive(Debug)]
pub struct Files(TempDir);

impl Files {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file, and says where it is.
    pub fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    /// `name.crt` and `name.key`.
    pub fn write_pair(&self, name: &str, pair: &Pair) -> (String, String) {
        (self.write(&format!("{name}.crt"), &pair.cert), self.write(&format!("{name}.key"), &pair.key))
    }
}
