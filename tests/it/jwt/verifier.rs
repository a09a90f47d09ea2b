//! What the verifier makes of tokens, at times that the test chooses.

use crate::support::issuer::{AUDIENCE, ISSUER, LATER, Signer, claims, claims_but, jwks};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tidegate::bucket::Timestamp;
use tidegate::clock::{SetClock, SteadyClock};
use tidegate::jwt::{KeySource, Settings, Text, Verified, Verifier};
use tidegate::metrics::JwtVerdict::{self, *};
use tidegate::metrics::Metrics;
use tidegate::policy::claims::ClaimPath;
use tidegate::policy::request::Request;

/// 2023-11-14, in seconds since 1970.
const NOW: u64 = 1_700_000_000;

struct Bench {
    verifier: Verifier,
    clock: Arc<SetClock>,
}

fn path(names: &[&str]) -> ClaimPath {
    ClaimPath(names.iter().map(|name| (*name).to_owned()).collect())
}

fn settings(keys: KeySource) -> Settings {
    Settings {
        keys,
        issuer: ISSUER.into(),
        audiences: vec![AUDIENCE.into(), "other".into()],
        header: "authorization".into(),
        leeway: Duration::from_secs(60),
        cache_size: 1000,
        claims: vec![path(&["sub"]), path(&["realm", "id"]), path(&["tier"])],
    }
}

fn bench_of(settings: Settings) -> Bench {
    let clock = Arc::new(SetClock::default());
    let stopwatch = Arc::new(SteadyClock::default());
    let verifier = Verifier::start(settings, None, clock.clone(), stopwatch, Metrics::new().jwt.clone());
    let bench = Bench { verifier, clock };
    bench.at(NOW as f64);
    bench
}

fn bench(jwks: &str) -> Bench {
    bench_of(settings(KeySource::Jwks(Text(jwks.as_bytes().into()))))
}

impl Bench {
    fn at(&self, seconds: f64) {
        self.clock.set(Timestamp { micros: (seconds * 1e6) as u64 });
    }

    fn header(&self, name: &str, value: &str) -> Verified {
        let mut request = Request::default();
        request.headers.push((name.as_bytes(), value.as_bytes()));
        self.verifier.verify(&request)
    }

    /// What came of a token.
    fn of(&self, token: &str) -> JwtVerdict {
        let verified = self.header("authorization", &format!("Bearer {token}"));
        assert_eq!(verified.claims().is_some(), matches!(verified.verdict, Verified | Cached), "{verified:?}");
        verified.verdict
    }
}

#[test]
fn tokens_of_every_allowed_algorithm_are_believed_and_no_others() {
    let signers = [Signer::rsa("r"), Signer::p256("e"), Signer::p384("f"), Signer::ed("d")];
    let bench = bench(&jwks(&signers.each_ref()));
    let [rsa, p256, p384, ed] = &signers;
    for alg in ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"] {
        assert_eq!(bench.of(&rsa.token_under(&json!({"alg": alg, "kid": "r"}), &claims("a"))), Verified, "{alg}");
        let crossed = rsa.token_under(&json!({"alg": alg, "kid": "e"}), &claims("a"));
        assert_eq!(bench.of(&crossed), Unsupported, "{alg} with a key of another kind");
    }
    for signer in [p256, p384, ed] {
        assert_eq!(bench.of(&signer.token(&claims("a"))), Verified, "{}", signer.kid);
        assert_eq!(bench.of(&signer.token(&claims("a"))), if signer.kid == "d" { Cached } else { Verified });
    }
    for alg in ["none", "None", "NONE", "", "HS256", "HS384", "HS512", "ES512", "Ed448", "RSA1_5", "rs256"] {
        let token = ed.token_under(&json!({"alg": alg, "kid": "d"}), &claims("a"));
        assert_eq!(bench.of(&token), Unsupported, "{alg}");
        let unsigned = format!("{}.", token.rsplit_once('.').unwrap().0);
        assert_eq!(bench.of(&unsigned), Unsupported, "{alg} without a signature");
    }
    let p384_on_p256 = p384.token_under(&json!({"alg": "ES384", "kid": "e"}), &claims("a"));
    assert_eq!(bench.of(&p384_on_p256), Unsupported, "a curve is for one hash");
}

#[test]
fn a_public_key_is_never_taken_for_a_shared_secret() {
    let rsa = Signer::rsa("r");
    let bench = bench(&jwks(&[&rsa]));
    let jwk = rsa.jwk().to_string();
    let set = jwks(&[&rsa]);
    for secret in [rsa.public_bytes(), jwk.into_bytes(), set.into_bytes(), b"".to_vec()] {
        let forger = Signer::secret(&secret);
        for header in [json!({"alg": "HS256", "kid": "r"}), json!({"alg": "HS256"})] {
            assert_eq!(bench.of(&forger.token_under(&header, &claims("a"))), Unsupported);
        }
        let as_rsa = forger.token_under(&json!({"alg": "RS256", "kid": "r"}), &claims("a"));
        assert_eq!(bench.of(&as_rsa), BadSignature);
    }
}

#[test]
fn with_a_secret_only_hs256_is_believed() {
    let secret = b"a secret of thirty-two bytes, or so";
    let bench = bench_of(settings(KeySource::Secret(Text(secret[..].into()))));
    assert_eq!(bench.of(&Signer::secret(secret).token(&claims("a"))), Verified);
    assert_eq!(bench.of(&Signer::secret(b"another").token(&claims("a"))), BadSignature);
    let rsa = Signer::rsa("r");
    for alg in ["RS256", "PS256", "HS384", "HS512", "none"] {
        let verdict = bench.of(&rsa.token_under(&json!({"alg": alg}), &claims("a")));
        assert!(matches!(verdict, Unsupported | UnknownKey), "{alg}: {verdict:?}");
    }
}

#[test]
fn what_a_key_says_of_itself_is_respected() {
    let (rsa, ed) = (Signer::rsa("r"), Signer::ed("d"));
    let with = |signer: &Signer, more: Value| {
        let mut jwk = signer.jwk();
        jwk.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        jwk
    };
    let set = |keys: &[Value]| json!({"keys": keys}).to_string();
    let rs = |alg: &str| rsa.token_under(&json!({"alg": alg, "kid": "r"}), &claims("a"));
    // Another key is there too, so that the set is one of use.
    for (more, rs256, rs512) in [
        (json!({"alg": "RS256", "use": "sig"}), Verified, Unsupported),
        (json!({"key_ops": ["verify"]}), Verified, Verified),
        (json!({"use": "enc"}), UnknownKey, UnknownKey),
        (json!({"key_ops": ["encrypt"]}), UnknownKey, UnknownKey),
        (json!({"alg": "RSA-OAEP"}), UnknownKey, UnknownKey),
        (json!({"alg": "ES256"}), UnknownKey, UnknownKey),
        (json!({"alg": "HS256"}), UnknownKey, UnknownKey),
        (json!({"kty": "oct", "k": "c2VjcmV0"}), UnknownKey, UnknownKey),
        // 1024 bits.
        (json!({"n": "w".repeat(171)}), UnknownKey, UnknownKey),
    ] {
        let bench = bench(&set(&[with(&rsa, more.clone()), ed.jwk()]));
        assert_eq!((bench.of(&rs("RS256")), bench.of(&rs("RS512"))), (rs256, rs512), "{more}");
        assert_eq!(bench.of(&ed.token(&claims("a"))), Verified, "{more}");
    }
}

#[test]
fn a_set_without_a_key_of_use_is_refused_and_odd_keys_among_others_are_passed_over() {
    use tidegate::jwt::{JwksError, prove_jwks};
    for none in ["", "{}", "[]", "null", "{\"keys\": 5}", "<html>", "{\"keys\": [", "\u{0}"] {
        assert_eq!(prove_jwks(none.as_bytes()), Err(JwksError::NoSet), "{none}");
    }
    let odd = [
        json!(null),
        json!(5),
        json!({}),
        json!({"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"}),
        json!({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}),
        json!({"kty": "OKP", "crv": "X25519", "x": "AA"}),
        json!({"kty": "OKP", "crv": "Ed25519", "x": "AA"}),
        json!({"kty": "RSA", "n": "!", "e": "AQAB"}),
    ];
    let set = |keys: &[Value]| json!({"keys": keys}).to_string();
    assert_eq!(prove_jwks(set(&odd).as_bytes()), Err(JwksError::NoKey));
    assert_eq!(prove_jwks(set(&[]).as_bytes()), Err(JwksError::NoKey));
    let ed = Signer::ed("d");
    let with_one = [&odd[..], &[ed.jwk()]].concat();
    let bench = bench(&set(&with_one));
    assert_eq!((bench.verifier.key_count(), bench.of(&ed.token(&claims("a")))), (1, Verified));
}

#[test]
fn a_kid_chooses_the_key_and_where_there_is_none_those_that_fit_are_tried() {
    let (first, second, stranger) = (Signer::ed("1"), Signer::ed("2"), Signer::ed("3"));
    let bench = bench(&jwks(&[&first, &second]));
    let nameless = json!({"alg": "EdDSA"});
    assert_eq!(bench.of(&second.token_under(&nameless, &claims("a"))), Verified);
    assert_eq!(bench.of(&stranger.token_under(&nameless, &claims("a"))), BadSignature);
    assert_eq!(bench.of(&stranger.token(&claims("a"))), UnknownKey);
    assert_eq!(bench.of(&second.token_under(&json!({"alg": "EdDSA", "kid": "1"}), &claims("a"))), BadSignature);
    assert_eq!(bench.of(&first.token_under(&json!({"alg": "EdDSA", "kid": 1}), &claims("a"))), Malformed);
}

#[test]
fn a_header_that_must_be_understood_is_not() {
    let ed = Signer::ed("d");
    let bench = bench(&jwks(&[&ed]));
    let critical = json!({"alg": "EdDSA", "kid": "d", "crit": ["b64"], "b64": false});
    assert_eq!(bench.of(&ed.token_under(&critical, &claims("a"))), Unsupported);
    // Keys that the token itself brings along are never looked at.
    let stranger = Signer::ed("s");
    let own = json!({"alg": "EdDSA", "kid": "d", "jwk": stranger.jwk(), "jku": "https://evil.example/jwks"});
    assert_eq!(bench.of(&stranger.token_under(&own, &claims("a"))), BadSignature);
}

#[test]
fn issuer_and_audience_are_those_that_are_configured() {
    let ed = Signer::ed("d");
    let bench = bench(&jwks(&[&ed]));
    for (other, verdict) in [
        (json!({"iss": null}), WrongIssuer),
        (json!({"iss": ""}), WrongIssuer),
        (json!({"iss": "https://issuer.example/"}), WrongIssuer),
        (json!({"iss": 5}), WrongIssuer),
        (json!({"aud": null}), WrongAudience),
        (json!({"aud": "gatewa"}), WrongAudience),
        (json!({"aud": []}), WrongAudience),
        (json!({"aud": [["gateway"]]}), WrongAudience),
        (json!({"aud": 5}), WrongAudience),
        (json!({"aud": {"gateway": 1}}), WrongAudience),
        (json!({"aud": ["x", "gateway"]}), Verified),
        (json!({"aud": "other"}), Verified),
    ] {
        assert_eq!(bench.of(&ed.token(&claims_but("a", &other))), verdict, "{other}");
    }
    let keys = KeySource::Jwks(Text(jwks(&[&ed]).as_bytes().into()));
    let anybody = bench_of(Settings { audiences: Vec::new(), ..settings(keys) });
    for other in [json!({"aud": null}), json!({"aud": "x"})] {
        assert_eq!(anybody.of(&ed.token(&claims_but("a", &other))), Verified, "{other}");
    }
}

#[test]
fn a_token_is_good_from_nbf_to_exp_give_or_take_the_leeway() {
    let ed = Signer::ed("d");
    let bench = bench(&jwks(&[&ed]));
    let token = ed.token(&claims_but("a", &json!({"nbf": NOW, "exp": NOW + 100})));
    for (after, verdict) in [
        (-60.1, NotYetValid),
        (-60.0, Verified),
        (0.0, Cached),
        (100.0, Cached),
        (159.9, Cached),
        (160.0, Expired),
        (1e6, Expired),
        (10.0, Verified),
    ] {
        bench.at(NOW as f64 + after);
        assert_eq!(bench.of(&token), verdict, "{after}");
    }
    bench.at(NOW as f64);
    for (other, verdict) in [
        (json!({"exp": null}), NoExpiry),
        (json!({"exp": "4102444800"}), Malformed),
        (json!({"exp": {}}), Malformed),
        (json!({"exp": 0}), Expired),
        (json!({"exp": -5}), Expired),
        (json!({"exp": -1e300}), Expired),
        (json!({"exp": 1e300}), Verified),
        (json!({"exp": u64::MAX}), Verified),
        (json!({"exp": NOW as f64 + 0.5}), Verified),
        (json!({"nbf": "0"}), Malformed),
        (json!({"nbf": 1e300}), NotYetValid),
        (json!({"nbf": -1e300}), Verified),
    ] {
        assert_eq!(bench.of(&ed.token(&claims_but("a", &other))), verdict, "{other}");
    }
}

#[test]
fn claims_name_someone_as_metadata_does() {
    let ed = Signer::ed("d");
    let bench = bench(&jwks(&[&ed]));
    let read = |other: Value, at: &[&str]| {
        let token = ed.token(&claims_but("alice", &other));
        let verified = bench.header("authorization", &format!("bEARER  {token} "));
        let claims = verified.claims().unwrap_or_else(|| panic!("{other}: {verified:?}"));
        claims.find(&path(at)).map(|text| String::from_utf8(text.to_vec()).unwrap())
    };
    assert_eq!(read(json!({}), &["sub"]).as_deref(), Some("alice"));
    assert_eq!(read(json!({"sub": 42}), &["sub"]).as_deref(), Some("42"));
    assert_eq!(read(json!({"sub": "a\u{0}\u{1f980}"}), &["sub"]).as_deref(), Some("a\u{0}\u{1f980}"));
    for nobody in [json!(true), json!(1.5), json!(1e300), json!(9_007_199_254_740_993_u64), json!(["a"]), json!({})] {
        assert_eq!(read(json!({"tier": nobody}), &["tier"]), None, "{nobody}");
    }
    let odd = ed.token(&claims_but("a", &json!({"sub": ["a"]})));
    assert_eq!(bench.of(&odd), Malformed, "RFC 7519 wants a string there");
    assert_eq!(read(json!({"realm": {"id": "r", "x": {}}}), &["realm", "id"]).as_deref(), Some("r"));
    assert_eq!(read(json!({"realm": "id"}), &["realm", "id"]), None);
    assert_eq!(read(json!({"iat": 1}), &["iat"]), None, "nobody asked for it");
}

#[test]
fn what_is_no_token_is_told_from_what_is_none() {
    let ed = Signer::ed("d");
    let keys = || KeySource::Jwks(Text(jwks(&[&ed]).as_bytes().into()));
    let bench = bench_of(settings(keys()));
    let token = ed.token(&claims("a"));
    let of = |name: &str, value: &str| bench.header(name, value).verdict;
    for (value, verdict) in [
        ("", Missing),
        ("Bearer", Missing),
        ("Bearer ", Missing),
        ("Basic YWxpY2U6cHc=", Missing),
        (token.as_str(), Missing),
        ("Bearer sk-1234", Malformed),
        ("Bearer a.b.c", Malformed),
        ("Bearer a.b.c.d", Malformed),
        ("Bearer ..", Malformed),
        ("Bearer e30.e30.", Malformed),
        ("Bearer \u{e9}.b.c", Malformed),
    ] {
        assert_eq!(of("authorization", value), verdict, "{value}");
    }
    assert_eq!(of("x-other", &format!("Bearer {token}")), Missing);
    assert_eq!(of("authorization", &format!("Bearer {token},Bearer {token}")), Malformed, "two of them");
    let padded = token.replace('.', "=.");
    assert_eq!(of("authorization", &format!("Bearer {padded}")), Malformed);
    let elsewhere = bench_of(Settings { header: "x-jwt".into(), ..settings(keys()) });
    assert_eq!(elsewhere.header("x-jwt", &token).verdict, Verified);
    assert_eq!(elsewhere.header("x-jwt", &format!("Bearer {token}")).verdict, Cached);
    assert_eq!(elsewhere.header("authorization", &format!("Bearer {token}")).verdict, Missing);
}

#[test]
fn a_token_of_more_than_8_kib_is_not_looked_at() {
    let ed = Signer::ed("d");
    let bench = bench(&jwks(&[&ed]));
    let filled = |bytes: usize| ed.token(&claims_but("a", &json!({"x": "x".repeat(bytes)})));
    let (fits, too_long) = (filled(5800), filled(6200));
    assert!(fits.len() <= 8192 && too_long.len() > 8192, "{} {}", fits.len(), too_long.len());
    assert_eq!((bench.of(&fits), bench.of(&too_long)), (Verified, TooLong));
    let deep = (0..2000).fold(String::from("1"), |inner, _| format!("[{inner}]"));
    let claims = format!("{{\"iss\":\"{ISSUER}\",\"aud\":\"{AUDIENCE}\",\"exp\":{LATER},\"sub\":\"a\",\"x\":{deep}}}");
    let parts = ["{\"alg\":\"EdDSA\",\"kid\":\"d\"}", &claims].map(|part| URL_SAFE_NO_PAD.encode(part));
    assert_eq!(bench.of(&format!("{}.{}.AAAA", parts[0], parts[1])), BadSignature, "nested without an end");
}

#[test]
fn a_refusal_is_remembered_for_a_minute_and_only_under_these_keys() {
    let (ed, stranger) = (Signer::ed("d"), Signer::ed("s"));
    let bench = bench(&jwks(&[&ed]));
    let forged = stranger.token_under(&json!({"alg": "EdDSA", "kid": "d"}), &claims("a"));
    for after in [0.0, 30.0, 59.0, 61.0, -1000.0] {
        bench.at(NOW as f64 + after);
        assert_eq!(bench.of(&forged), BadSignature);
    }
    assert_eq!(bench.verifier.remembered(), [0, 1]);
    // It becomes good before the minute is over.
    bench.at(NOW as f64);
    let soon = ed.token(&claims_but("a", &json!({"nbf": NOW + 70})));
    assert_eq!(bench.of(&soon), NotYetValid);
    bench.at(NOW as f64 + 10.0);
    assert_eq!(bench.of(&soon), Verified);
}

#[test]
fn a_hundred_thousand_tokens_take_no_more_memory_than_configured_and_bad_ones_drive_no_good_one_out() {
    let secret = b"a secret of thirty-two bytes, or so";
    let keys = KeySource::Secret(Text(secret[..].into()));
    let bench = bench_of(Settings { cache_size: 5000, ..settings(keys) });
    let (good, bad) = (Signer::secret(secret), Signer::secret(b"another"));
    for n in 0..100_000_u32 {
        let claims = claims(&format!("user-{n}"));
        let (signer, verdict) = if n % 2 == 0 { (&good, Verified) } else { (&bad, BadSignature) };
        assert_eq!(bench.of(&signer.token(&claims)), verdict);
        let [good, bad] = bench.verifier.remembered();
        assert!(good <= 5000 && bad <= 5000, "{good} {bad}");
    }
    let [held, refused] = bench.verifier.remembered();
    assert!(held >= 2000 && refused >= 2000, "{held} {refused}");
    let last = good.token(&claims("user-99998"));
    assert_eq!(bench.of(&last), Cached);
    for n in 0..20_000_u32 {
        bench.of(&bad.token(&claims(&format!("flood-{n}"))));
    }
    assert_eq!(bench.of(&last), Cached);
}
