//! Bearer tokens that tidegate verifies itself: users and tiers of the running service, by tokens good and bad.

mod refresh;
mod verifier;

use crate::support::admin::{ask_with, get};
use crate::support::eventually;
use crate::support::issuer::{AUDIENCE, ISSUER, Signer, claims, claims_but, jwks};
use crate::support::service::{Tidegate, block_on, check, client, program, told};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tidegate::ext_authz::proto::CheckResponse;

/// Users of the default tier have a burst of 2, those of gold one of 50; addresses have 1000.
fn config(keys: &str, more: &str) -> String {
    format!(
        "identity:\n  jwt: {{{keys}, issuer: {ISSUER}, audiences: [{AUDIENCE}]{more}}}\n  \
         user: [{{jwt: sub}}]\n  key: []\n  tier: [{{jwt: [plan, tier]}}]\ndefault_tier: free\ntiers:\n  \
         free: {{per_user: {{max_tokens: 2, refill_rate: 0.001}}, per_ip: {{max_tokens: 1000, refill_rate: 0.001}}}}\n  \
         gold: {{per_user: {{max_tokens: 50, refill_rate: 0.001}}}}\n"
    )
}

/// A file with keys.
struct KeyFile {
    folder: TempDir,
}

impl KeyFile {
    fn new(text: impl AsRef<[u8]>) -> Self {
        let file = Self { folder: tempfile::tempdir().unwrap() };
        file.write(text);
        file
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("jwks.json")
    }

    fn write(&self, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(), text).unwrap();
    }

    /// `key: path` for [`config`].
    fn under(&self, key: &str) -> String {
        format!("{key}: {}", self.path().display())
    }
}

fn ask(service: &Tidegate, token: &str) -> CheckResponse {
    let value = format!("Bearer {token}");
    let headers = [("authorization", value.as_str())];
    block_on(async { client(service).await.check(check(&headers)).await.unwrap().into_inner() })
}

/// Tier and bucket that a request with a token is charged to.
fn tier_and_dimension(service: &Tidegate, token: &str) -> (String, String) {
    let answer = ask(service, token);
    (told(&answer, "tier").unwrap(), told(&answer, "dimension").unwrap())
}

fn is_user(service: &Tidegate, token: &str) -> bool {
    tier_and_dimension(service, token).1 == "user"
}

fn count(service: &Tidegate, result: &str) -> u64 {
    get(service.admin, "/metrics").value(&format!("tidegate_jwt_verifications_total{{result=\"{result}\"}}"))
}

fn explain(service: &Tidegate, token: &str) -> Value {
    let request = json!({"request": {"http": {"headers": {"authorization": format!("Bearer {token}")}}}});
    let answer = ask_with(service.admin, "POST", "/explain", &[], &request.to_string());
    assert!(!answer.body.contains(token), "{answer:?}");
    serde_json::from_str(&answer.body).unwrap()
}

#[test]
fn a_user_is_limited_by_the_subject_of_the_token_and_by_its_tier() {
    let ed = Signer::ed("d");
    let keys = KeyFile::new(jwks(&[&ed]));
    let service = Tidegate::start(&config(&keys.under("jwks_file"), ""));
    let of = |user: &str, more: Value| ed.token(&claims_but(user, &more));
    let passes = |token: &str| ask(&service, token).status.unwrap().code == 0;
    let alice = of("alice", json!({}));
    assert_eq!([(); 4].map(|()| passes(&alice)), [true, true, false, false]);
    assert!(!passes(&of("alice", json!({"iat": 7}))), "another token of the same user");
    assert!(passes(&of("bob", json!({}))));
    let gold = of("carol", json!({"plan": {"tier": "GOLD"}}));
    assert_eq!(tier_and_dimension(&service, &gold), ("gold".into(), "user".into()));
    let unknown = of("dave", json!({"plan": {"tier": "platinum"}}));
    assert_eq!(tier_and_dimension(&service, &unknown), ("free".into(), "user".into()));
    let metrics = get(service.admin, "/metrics");
    let counted = |result: &str| metrics.value(&format!("tidegate_jwt_verifications_total{{result=\"{result}\"}}"));
    assert_eq!((counted("verified"), counted("cached")), (5, 3));
    assert_eq!(metrics.value("tidegate_jwks_keys"), 1);
    assert_eq!(metrics.value("tidegate_jwt_cache_size{kind=\"verified\"}"), 5);
    let bucket: Value = serde_json::from_str(&get(service.admin, "/buckets/user/alice").body).unwrap();
    assert_eq!((&bucket["key"], &bucket["stored"]), (&json!("rl:user:alice"), &json!(true)));
}

#[test]
fn a_subject_is_stored_as_any_other_user_id() {
    let ed = Signer::ed("d");
    let keys = KeyFile::new(jwks(&[&ed]));
    let service = Tidegate::start(&config(&keys.under("jwks_file"), ""));
    let hostile = format!("a{{b}}\n{}", "x".repeat(500));
    for (user, stored) in [(json!("alice"), Some("alice")), (json!(42), Some("42")), (json!(hostile), None)] {
        let told = explain(&service, &ed.token(&claims_but("", &json!({"sub": user}))));
        let caller = told["caller"]["user"].as_str().unwrap();
        assert!(stored.map_or(caller.len() == 33 && caller.starts_with('~'), |id| id == caller), "{told:#}");
    }
}

/// Tokens that are not to be believed, and what they count as.
fn bad_tokens() -> (Vec<Signer>, Vec<(&'static str, String)>) {
    let (rsa, ed, stranger) = (Signer::rsa("r"), Signer::ed("d"), Signer::ed("s"));
    let of = |more: Value| ed.token(&claims_but("mallory", &more));
    let under = |signer: &Signer, header: Value| signer.token_under(&header, &claims("mallory"));
    let gold = json!({"plan": {"tier": "gold"}});
    let tokens = vec![
        ("expired", of(json!({"exp": 1_000_000_000, "plan": gold["plan"]}))),
        ("no_expiry", of(json!({"exp": null}))),
        ("not_yet_valid", of(json!({"nbf": 4_000_000_000_u64}))),
        ("wrong_audience", of(json!({"aud": "elsewhere"}))),
        ("wrong_issuer", of(json!({"iss": "https://evil.example"}))),
        ("unsupported", format!("{}.", under(&ed, json!({"alg": "none"})).rsplit_once('.').unwrap().0)),
        ("unsupported", under(&Signer::secret(&rsa.public_bytes()), json!({"alg": "HS256", "kid": "r"}))),
        ("unknown_key", stranger.token(&claims("mallory"))),
        ("bad_signature", under(&stranger, json!({"alg": "EdDSA", "kid": "d"}))),
        ("malformed", "sk-1234".into()),
        ("malformed", "a.b.c".into()),
        ("too_long", "x".repeat(9000)),
        ("missing", String::new()),
    ];
    (vec![rsa, ed], tokens)
}

#[test]
fn a_bad_token_gives_no_user_and_the_default_tier_and_is_counted_and_never_logged() {
    let (signers, tokens) = bad_tokens();
    let keys = KeyFile::new(jwks(&signers.iter().collect::<Vec<_>>()));
    let audit = "audit: {sinks: [stdout], fold: 0s}\nlog: {filter: trace}\n";
    let mut service = Tidegate::start_printing(
        std::process::Stdio::piped(),
        "127.0.0.1:0",
        &format!("{}drain: 0s\n{audit}", config(&keys.under("jwks_file"), "")),
        &[],
    );
    for (word, token) in &tokens {
        let before = count(&service, word);
        for repeated in 1..=2 {
            assert_eq!(tier_and_dimension(&service, token), ("free".into(), "ip".into()), "{word}");
            assert_eq!(count(&service, word), before + repeated, "{word}");
        }
        if !token.is_empty() {
            let told = explain(&service, token);
            assert_eq!((&told["jwt"], &told["user_from"]), (&json!(word), &Value::Null), "{told:#}");
            assert_eq!((&told["tier_from"], &told["caller"]["user"]), (&json!("default_tier"), &Value::Null));
            assert_eq!(count(&service, word), before + 2, "to explain is not to count");
        }
    }
    // Denials, which are audited.
    let good = signers[1].token(&claims("alice"));
    let passed = [(); 4].map(|()| ask(&service, &good).status.unwrap().code == 0);
    assert_eq!(passed, [true, true, false, false]);
    assert_eq!((count(&service, "verified"), count(&service, "cached")), (1, 3));
    let told = explain(&service, &good);
    assert_eq!((&told["jwt"], &told["user_from"]), (&json!("cached"), &json!("jwt")), "{told:#}");
    let mut printed = service.stdout();
    service.signal("TERM");
    service.wait();
    let mut trail = String::new();
    std::io::Read::read_to_string(&mut printed, &mut trail).unwrap();
    assert!(trail.contains("\"identity\":\"alice\""), "{trail}");
    for text in [trail, service.log()] {
        for (_, token) in tokens.iter().filter(|(_, token)| token.len() > 6) {
            assert!(!text.contains(token.as_str()), "{token} is in {text}");
        }
        assert!(!text.contains(good.rsplit('.').next().unwrap()), "{text}");
    }
}

#[test]
fn without_identity_jwt_no_token_is_looked_at() {
    let service = Tidegate::start("drain: 0s\n");
    let ed = Signer::ed("d");
    assert!(!is_user(&service, &ed.token(&claims("alice"))));
    let metrics = get(service.admin, "/metrics").body;
    let counted = metrics.lines().filter(|line| line.starts_with("tidegate_jwt_verifications_total{"));
    assert!(counted.clone().count() > 10 && counted.clone().all(|line| line.ends_with(" 0")), "{metrics}");
    assert!(!metrics.lines().any(|line| line.starts_with("tidegate_jwks_keys")), "{metrics}");
    assert_eq!(explain(&service, "a.b.c")["jwt"], Value::Null);
}

#[test]
fn a_changed_file_of_keys_is_followed_and_a_bad_one_is_refused_and_the_keys_stay() {
    let (first, second) = (Signer::ed("1"), Signer::p256("2"));
    let keys = KeyFile::new(jwks(&[&first]));
    let service = Tidegate::start(&config(&keys.under("jwks_file"), ""));
    let (of_first, of_second) = (first.token(&claims("alice")), second.token(&claims("bob")));
    assert_eq!([&of_first, &of_second].map(|token| is_user(&service, token)), [true, false]);
    let refused = || get(service.admin, "/metrics").value("tidegate_config_reloads_total{result=\"refused\"}");
    for (times, bad) in (1..).zip(["", "{}", "{\"keys\": []}", "hunter2"]) {
        keys.write(bad);
        eventually("it is refused", || (refused() == times).then_some(()));
        assert!(is_user(&service, &of_first), "{bad}");
    }
    service.wait_for_log("config: identity.jwt.jwks_file: ");
    keys.write(jwks(&[&second]));
    eventually("the new keys are in force", || is_user(&service, &of_second).then_some(()));
    assert!(!is_user(&service, &of_first), "what the old key signed is not believed any more, though it was before");
    assert!(!service.log().contains("hunter2"));
}

#[test]
fn a_shared_secret_is_read_from_its_file_and_followed() {
    let secret = "a secret of thirty-two bytes, or so";
    let keys = KeyFile::new(format!("{secret}\n"));
    let service = Tidegate::start(&config(&keys.under("secret_file"), ""));
    let token = Signer::secret(secret.as_bytes()).token(&claims("alice"));
    assert!(is_user(&service, &token));
    keys.write("another secret of thirty-two bytes\r\n");
    let next = Signer::secret(b"another secret of thirty-two bytes").token(&claims("alice"));
    eventually("the new secret is in force", || is_user(&service, &next).then_some(()));
    assert!(!is_user(&service, &token));
    keys.write("short");
    service.wait_for_log("holds 5 bytes; RFC 7518 wants 32 or more for HS256");
    assert!(is_user(&service, &next));
    assert!(!service.log().contains(secret));
}

#[test]
fn a_reload_that_changes_whose_tokens_are_believed_forgets_those_that_were() {
    let ed = Signer::ed("d");
    let keys = KeyFile::new(jwks(&[&ed]));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidegate.yaml");
    let text = config(&keys.under("jwks_file"), "");
    std::fs::write(&file, &text).unwrap();
    let service = Tidegate::start_at(&file, &[]);
    let token = ed.token(&claims("alice"));
    assert!(is_user(&service, &token) && count(&service, "cached") == 0 && is_user(&service, &token));
    // What does not concern tokens leaves what is remembered of them.
    std::fs::write(&file, format!("{text}mode: shadow\n")).unwrap();
    let mode = |wanted: &str| eventually(wanted, || (explain(&service, &token)["mode"] == wanted).then_some(()));
    mode("shadow");
    assert_eq!(explain(&service, &token)["jwt"], "cached");
    std::fs::write(&file, text.replace("[gateway]", "[elsewhere]")).unwrap();
    mode("enforce");
    assert_eq!(explain(&service, &token)["jwt"], "wrong_audience");
    assert!(!is_user(&service, &token));
}

#[test]
fn what_is_wrong_with_the_files_is_told_with_their_names() {
    let keys = KeyFile::new("{\"keys\": []}");
    let started = |config: &str, at: &Path| {
        std::fs::write(at, config).unwrap();
        let output = program(&["serve", "--listen", "127.0.0.1:0", "--config"]).arg(at).output().unwrap();
        assert_eq!(output.status.code(), Some(78));
        String::from_utf8(output.stderr).unwrap()
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let told = |config: String| started(&config, file.path());
    assert!(
        told(config("jwks_file: /nowhere/at/all", "")).contains("identity.jwt.jwks_file: \"/nowhere/at/all\" cannot")
    );
    assert!(told(config(&keys.under("jwks_file"), "")).contains("holds no key that verifies signatures"));
    let ca = format!(", ca_file: {}", keys.path().display());
    assert!(told(config("jwks_url: https://h", &ca)).contains("identity.jwt.ca_file: "));
}

#[test]
fn explain_works_offline_with_keys_of_a_file() {
    let ed = Signer::ed("d");
    let keys = KeyFile::new(jwks(&[&ed]));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config(&keys.under("jwks_file"), "")).unwrap();
    let told = explain_offline(file.path(), &ed.token(&claims("alice")));
    assert_eq!((&told["jwt"], &told["caller"]["user"]), (&json!("verified"), &json!("alice")), "{told:#}");
}

/// What `tidegate explain` says of a request with a token.
fn explain_offline(config: &Path, token: &str) -> Value {
    let request = tempfile::NamedTempFile::new().unwrap();
    let check = json!({"request": {"http": {"headers": {"authorization": format!("Bearer {token}")}}}});
    std::fs::write(request.path(), check.to_string()).unwrap();
    let output = program(&["explain", "--config"]).arg(config).arg(request.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}
