//! Tokens signed with the demo key of `envoy/demo`, and others.

use super::repository;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ed25519_dalek::{Signer as _, SigningKey};
use serde_json::{Value, json};
use std::fs;

const IN_2100: u64 = 4_102_444_800;
const IN_2001: u64 = 1_000_000_000;

/// A good token.
pub fn token(user: &str, tier: &str) -> String {
    signed(&claims(user, tier, IN_2100), &demo_key())
}

/// A good token that carries one more claim, nested so deep.
pub fn nested(user: &str, tier: &str, depth: usize) -> String {
    let mut claims = claims(user, tier, IN_2100);
    claims["x"] = (0..depth).fold(json!("bottom"), |inner, _| json!({"a": inner}));
    signed(&claims, &demo_key())
}

/// A good token of a tier that names nobody.
pub fn without_subject(tier: &str) -> String {
    signed(&json!({"iss": "tidegate-demo", "tier": tier, "exp": IN_2100}), &demo_key())
}

/// Right in everything but its signature.
pub fn forged(user: &str, tier: &str) -> String {
    signed(&claims(user, tier, IN_2100), &SigningKey::from_bytes(&[7; 32]))
}

/// Right in everything but its age.
pub fn expired(user: &str, tier: &str) -> String {
    signed(&claims(user, tier, IN_2001), &demo_key())
}

fn claims(user: &str, tier: &str, expires: u64) -> Value {
    json!({"iss": "tidegate-demo", "sub": user, "tier": tier, "exp": expires})
}

fn signed(claims: &Value, key: &SigningKey) -> String {
    let header = json!({"alg": "EdDSA", "typ": "JWT", "kid": "tidegate-demo"});
    let encode = |part: &[u8]| URL_SAFE_NO_PAD.encode(part);
    let unsigned = format!("{}.{}", encode(header.to_string().as_bytes()), encode(claims.to_string().as_bytes()));
    let signature = key.sign(unsigned.as_bytes());
    format!("{unsigned}.{}", encode(&signature.to_bytes()))
}

fn demo_key() -> SigningKey {
    let pem = fs::read_to_string(repository().join("envoy/demo/signing-key.pem")).unwrap();
    let base64: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let der = STANDARD.decode(base64).unwrap();
    // PKCS#8 of an Ed25519 key ends with its 32 bytes.
    SigningKey::from_bytes(der.last_chunk().unwrap())
}
