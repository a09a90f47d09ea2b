//! Signatures as jsonwebtoken asks for them, by ring, which rustls brings along anyway.
//!
//! jsonwebtoken's own backends would each be a second copy of all cryptography. Knows nothing of claims and of time.

use jsonwebtoken::crypto::{CryptoProvider, JwkUtils, JwtVerifier};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{Error as Mismatch, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::hmac;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::InvalidKeyFormat.into()),
    verifier_factory: |algorithm, key| Ok(Box::new(Check::new(*algorithm, key)?)),
    // They are for thumbprints and for private keys, of which there are none.
    jwk_utils: JwkUtils::new_unimplemented(),
};

/// Has signatures checked here from now on, in the whole process.
pub(super) fn install() {
    // It fails where it was done before.
    let _ = PROVIDER.install_default();
}

/// One key under one algorithm.
struct Check {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl Check {
    /// A key is for one family of algorithms: a public key is never taken for a shared secret.
    fn new(algorithm: Algorithm, key: &DecodingKey) -> Result<Self> {
        if key.family() != algorithm.family() {
            return Err(ErrorKind::InvalidKeyFormat.into());
        }
        Ok(Self { algorithm, key: key.clone() })
    }
}

impl JwtVerifier for Check {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for Check {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Mismatch> {
        let fits = match (self.key.kind(), how(self.algorithm)) {
            (DecodingKeyKind::RsaModulusExponent { n, e }, How::Rsa(parameters)) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).is_ok()
            }
            (DecodingKeyKind::SecretOrDer(point), How::Curve(curve)) => {
                UnparsedPublicKey::new(curve, point).verify(message, signature).is_ok()
            }
            (DecodingKeyKind::SecretOrDer(secret), How::Secret(hash)) => {
                hmac::verify(&hmac::Key::new(hash, secret), message, signature).is_ok()
            }
            (_, How::Rsa(_) | How::Curve(_) | How::Secret(_)) => false,
        };
        if fits { Ok(()) } else { Err(Mismatch::new()) }
    }
}

enum How {
    Rsa(&'static RsaParameters),
    Curve(&'static dyn VerificationAlgorithm),
    Secret(hmac::Algorithm),
}

fn how(algorithm: Algorithm) -> How {
    match algorithm {
        Algorithm::RS256 => How::Rsa(&RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => How::Rsa(&RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => How::Rsa(&RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => How::Rsa(&RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => How::Rsa(&RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => How::Rsa(&RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => How::Curve(&ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => How::Curve(&ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => How::Curve(&ED25519),
        Algorithm::HS256 => How::Secret(hmac::HMAC_SHA256),
        Algorithm::HS384 => How::Secret(hmac::HMAC_SHA384),
        Algorithm::HS512 => How::Secret(hmac::HMAC_SHA512),
    }
}
