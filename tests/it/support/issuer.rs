//! An issuer of tokens: keys of each kind, their JWKS, and tokens good and bad.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
    RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding,
    RsaKeyPair,
};
use serde_json::{Value, json};

/// What good tokens state.
pub const ISSUER: &str = "https://issuer.example";
pub const AUDIENCE: &str = "gateway";

/// 2100, in seconds since 1970.
pub const LATER: u64 = 4_102_444_800;

enum Key {
    Rsa(Box<RsaKeyPair>),
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
    Secret(hmac::Key),
}

/// One key of an issuer.
pub struct Signer {
    pub kid: String,
    key: Key,
}

impl Signer {
    /// Made with openssl: ring makes no RSA keys.
    pub fn rsa(kid: &str) -> Self {
        let pem = include_str!("rsa-for-tests.pem");
        let base64: String = pem.lines().skip(2).filter(|line| !line.starts_with('-')).collect();
        let key = RsaKeyPair::from_pkcs8(&STANDARD.decode(base64).unwrap()).unwrap();
        Self { kid: kid.into(), key: Key::Rsa(Box::new(key)) }
    }

    pub fn p256(kid: &str) -> Self {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.as_ref(), &random).unwrap();
        Self { kid: kid.into(), key: Key::P256(key) }
    }

    pub fn p384(kid: &str) -> Self {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, &random).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, key.as_ref(), &random).unwrap();
        Self { kid: kid.into(), key: Key::P384(key) }
    }

    pub fn ed(kid: &str) -> Self {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self { kid: kid.into(), key: Key::Ed(Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap()) }
    }

    /// A shared secret, whatever bytes it is.
    pub fn secret(secret: &[u8]) -> Self {
        Self { kid: "secret".into(), key: Key::Secret(hmac::Key::new(hmac::HMAC_SHA256, secret)) }
    }

    /// The algorithm that it signs with.
    pub fn alg(&self) -> &'static str {
        match &self.key {
            Key::Rsa(_) => "RS256",
            Key::P256(_) => "ES256",
            Key::P384(_) => "ES384",
            Key::Ed(_) => "EdDSA",
            Key::Secret(_) => "HS256",
        }
    }

    /// Its public half.
    pub fn jwk(&self) -> Value {
        let point = |public: &[u8], curve: &str| {
            let (x, y) = public[1..].split_at(public.len() / 2);
            json!({"kty": "EC", "crv": curve, "x": encoded(x), "y": encoded(y)})
        };
        let mut jwk = match &self.key {
            Key::Rsa(key) => {
                let public = ring::rsa::PublicKeyComponents::<Vec<u8>>::from(key.public());
                json!({"kty": "RSA", "n": encoded(&public.n), "e": encoded(&public.e)})
            }
            Key::P256(key) => point(key.public_key().as_ref(), "P-256"),
            Key::P384(key) => point(key.public_key().as_ref(), "P-384"),
            Key::Ed(key) => json!({"kty": "OKP", "crv": "Ed25519", "x": encoded(key.public_key().as_ref())}),
            Key::Secret(_) => panic!("a secret has no public half"),
        };
        jwk["kid"] = self.kid.as_str().into();
        jwk
    }

    /// The bytes of the public key as anybody may come by them: the modulus of an RSA key.
    pub fn public_bytes(&self) -> Vec<u8> {
        URL_SAFE_NO_PAD.decode(self.jwk()["n"].as_str().unwrap()).unwrap()
    }

    /// A token with these claims, and the header that belongs to it.
    pub fn token(&self, claims: &Value) -> String {
        self.token_under(&json!({"alg": self.alg(), "typ": "JWT", "kid": self.kid}), claims)
    }

    /// A token with any header; `alg` says how it is signed, where this key can do that.
    pub fn token_under(&self, header: &Value, claims: &Value) -> String {
        let unsigned = format!("{}.{}", encoded(header.to_string().as_bytes()), encoded(claims.to_string().as_bytes()));
        let signature = self.sign(unsigned.as_bytes(), header["alg"].as_str().unwrap_or_default());
        format!("{unsigned}.{}", encoded(&signature))
    }

    fn sign(&self, message: &[u8], alg: &str) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.key {
            Key::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(rsa_encoding(alg), &random, message, &mut signature).unwrap();
                signature
            }
            Key::P256(key) | Key::P384(key) => key.sign(&random, message).unwrap().as_ref().to_vec(),
            Key::Ed(key) => key.sign(message).as_ref().to_vec(),
            Key::Secret(key) => hmac::sign(key, message).as_ref().to_vec(),
        }
    }
}

fn rsa_encoding(alg: &str) -> &'static dyn RsaEncoding {
    match alg {
        "RS384" => &RSA_PKCS1_SHA384,
        "RS512" => &RSA_PKCS1_SHA512,
        "PS256" => &RSA_PSS_SHA256,
        "PS384" => &RSA_PSS_SHA384,
        "PS512" => &RSA_PSS_SHA512,
        _ => &RSA_PKCS1_SHA256,
    }
}

fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A JWKS of these keys.
pub fn jwks(signers: &[&Signer]) -> String {
    let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
    json!({"keys": keys}).to_string()
}

/// What a good token states of a user.
pub fn claims(user: &str) -> Value {
    json!({"iss": ISSUER, "aud": AUDIENCE, "sub": user, "exp": LATER})
}

/// The same, with some of it otherwise; null takes a claim away.
pub fn claims_but(user: &str, other: &Value) -> Value {
    let mut claims = claims(user);
    for (name, value) in other.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
            value => claims[name] = value.clone(),
        }
    }
    claims
}
