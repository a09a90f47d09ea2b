//! Which tokens are believed: where their keys are, and what they must say.

use super::text::{count, header_name, span, texts};
use crate::config::env::Files;
use crate::config::fault::{Report, listed, quoted};
use crate::config::raw;
use crate::jwt::{self, JwksUrl, KeySource, Settings, Text};
use crate::policy::claims::ClaimPath;
use crate::policy::identity::{KeySource as ApiKeySource, Sources};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const JWT: &str = "identity.jwt";

/// The shortest secret of HS256, in bytes: as long as its hash (RFC 7518, 3.2).
const SHORTEST_SECRET: usize = 32;
/// The longest secret and the longest PEM file, in bytes.
const LONGEST: usize = 1 << 20;

/// The outer `None`: there are faults. The inner: no token is verified. `sources`: `None` where they are at fault.
pub(super) fn jwt(
    raw: Option<&raw::Identity>,
    sources: Option<&Sources>,
    files: Files,
    report: &mut Report,
) -> Option<Option<Settings>> {
    let claims: Vec<ClaimPath> = sources.into_iter().flat_map(Sources::claims).cloned().collect();
    let Some(raw) = raw.and_then(|raw| raw.jwt.as_ref()) else {
        return Some(None);
    };
    let keys = keys(raw, files, report);
    let issuer = issuer(raw.issuer.as_deref(), report);
    let audiences = audiences(raw, report);
    let header = match raw.header.as_deref() {
        Some(name) => header_name("identity.jwt.header", name, report),
        None => Some("authorization".to_owned()),
    };
    let sane = Duration::ZERO..=Duration::from_secs(300);
    let leeway = span("identity.jwt.leeway", raw.leeway.as_ref(), Duration::from_secs(60), sane, report);
    let cache_size = count("identity.jwt.cache_size", raw.cache_size, 10_000, 1..=1_000_000, report);
    if let (Some(sources), Some(header)) = (sources, &header) {
        warn_of_sources(sources, header, report);
    }
    Some(Some(Settings {
        keys: keys?,
        issuer: issuer?,
        audiences: audiences?,
        header: header?,
        leeway: leeway?,
        cache_size: usize::try_from(cache_size?).unwrap_or(usize::MAX),
        claims,
    }))
}

/// A claim that names someone. It takes tokens that are verified.
pub(super) fn claim(path: &str, claim: &raw::Claim, verified: bool, report: &mut Report) -> Option<ClaimPath> {
    let path = format!("{path}.jwt");
    let names = match claim {
        raw::Claim::Name(name) if name.is_empty() => Vec::new(),
        raw::Claim::Name(name) => vec![name.clone()],
        raw::Claim::Path(names) => {
            let all = texts(&path, Some(names), report);
            if all.len() < names.len() {
                return None;
            }
            all
        }
    };
    if names.is_empty() {
        report.fault(path, "is empty; write a claim such as sub, or the names that lead to one, such as [realm, sub]");
        return None;
    }
    if !verified {
        let right =
            "say in identity.jwt where the keys are that verify tokens, or read what Envoy verified by metadata";
        report.fault(path, format!("reads a token that nobody verifies; {right}"));
        return None;
    }
    Some(ClaimPath(names))
}

fn warn_of_sources(sources: &Sources, header: &str, report: &mut Report) {
    if sources.claims().next().is_none() {
        report.warn(JWT, "is of no effect: neither identity.user nor identity.tier reads {jwt: …}");
    }
    let also_key = |source: &ApiKeySource| source.header() == header;
    if sources.key.iter().any(also_key) {
        let so = "each token is charged as an API key too";
        report.warn(format!("{JWT}.header"), format!("{header} is also where identity.key is read: {so}"));
    }
}

fn issuer(issuer: Option<&str>, report: &mut Report) -> Option<String> {
    let issuer = issuer.filter(|issuer| !issuer.is_empty());
    if issuer.is_none() {
        report.fault("identity.jwt.issuer", "is missing; write what tokens state as `iss`, letter by letter");
    }
    issuer.map(str::to_owned)
}

fn audiences(raw: &raw::Jwt, report: &mut Report) -> Option<Vec<String>> {
    const PATH: &str = "identity.jwt.audiences";
    let Some(list) = raw.audiences.as_ref() else {
        report.fault(PATH, "is missing; write what tokens state as `aud`, or [] to believe tokens for anybody");
        return None;
    };
    let audiences = texts(PATH, Some(list), report);
    (audiences.len() == list.len()).then_some(audiences)
}

fn keys(raw: &raw::Jwt, files: Files, report: &mut Report) -> Option<KeySource> {
    const ONE: [&str; 3] = ["jwks_file", "jwks_url", "secret_file"];
    let stated = [raw.jwks_file.is_some(), raw.jwks_url.is_some(), raw.secret_file.is_some()];
    let stated: Vec<&str> = ONE.into_iter().zip(stated).filter(|(_, stated)| *stated).map(|(key, _)| key).collect();
    if stated.len() > 1 {
        report.fault(JWT, format!("holds {}; keep one", listed(stated)));
        return None;
    }
    for (key, there) in [("jwks_refresh", raw.jwks_refresh.is_some()), ("ca_file", raw.ca_file.is_some())] {
        if there && raw.jwks_url.is_none() {
            report.fault(format!("{JWT}.{key}"), "goes with jwks_url only; remove it");
        }
    }
    let file = |key: &str, name: &str, limit: usize, report: &mut Report| {
        text_of(&format!("{JWT}.{key}"), name, limit, files, report)
    };
    if let Some(name) = &raw.jwks_file {
        let text = file("jwks_file", name, jwt::LARGEST_JWKS, report)?;
        return proven("jwks_file", name, text, |text| jwt::prove_jwks(text).map_err(|why| why.to_string()), report)
            .map(KeySource::Jwks);
    }
    if let Some(name) = &raw.secret_file {
        let text = file("secret_file", name, LONGEST, report)?;
        let long = |secret: &[u8]| {
            let right = format!("RFC 7518 wants {SHORTEST_SECRET} or more for HS256");
            if secret.len() < SHORTEST_SECRET { Err(format!("holds {} bytes; {right}", secret.len())) } else { Ok(()) }
        };
        let text = text.map(|text| Text(without_line_end(&text.0).into()));
        return proven("secret_file", name, text, long, report).map(KeySource::Secret);
    }
    if let Some(url) = &raw.jwks_url {
        let sane = Duration::from_secs(1)..=Duration::from_secs(86_400);
        let usual = Duration::from_secs(300);
        let refresh = span("identity.jwt.jwks_refresh", raw.jwks_refresh.as_ref(), usual, sane, report);
        let url = address(url, report);
        let ca = match &raw.ca_file {
            Some(name) => {
                let text = file("ca_file", name, LONGEST, report)?;
                Some(proven("ca_file", name, text, |pem| jwt::prove_roots(pem).map_err(|why| why.to_string()), report)?)
            }
            None => None,
        };
        return Some(KeySource::Url { url: url?, refresh: refresh?, ca });
    }
    report.fault(JWT, format!("says not where the keys are; write one of {}", listed(ONE)));
    None
}

fn address(text: &str, report: &mut Report) -> Option<JwksUrl> {
    const PATH: &str = "identity.jwt.jwks_url";
    let Some(url) = JwksUrl::parse(text) else {
        let right = "write https://host/path, or http://host/path, without user and password";
        report.fault(PATH, format!("{} is no address of a JWKS; {right}", quoted(text)));
        return None;
    };
    let local = matches!(url.place().0, "localhost" | "127.0.0.1" | "::1");
    if !url.is_tls() && !local {
        report.warn(PATH, "is fetched without TLS: whoever stands between chooses whose tokens are believed");
    }
    Some(url)
}

/// What a file holds. The outer `None`: there are faults. The inner: files are not read now.
fn text_of(path: &str, name: &str, limit: usize, files: Files, report: &mut Report) -> Option<Option<Text>> {
    if name.is_empty() {
        report.fault(path, "is empty; write the path of a file");
        return None;
    }
    if files == Files::LeaveAside {
        return Some(None);
    }
    let fault = match report.files.read(Path::new(name), limit) {
        Ok(text) if text.len() <= limit => return Some(Some(Text(text.into()))),
        Ok(_) => format!("is longer than {limit} bytes"),
        Err(error) => format!("cannot be read: {error}"),
    };
    report.fault(path, format!("{} {fault}", quoted(name)));
    None
}

/// The text, where it is what it should be. One that was not read is taken as it is.
fn proven(
    key: &str,
    name: &str,
    text: Option<Text>,
    prove: impl Fn(&[u8]) -> Result<(), String>,
    report: &mut Report,
) -> Option<Text> {
    let Some(text) = text else { return Some(Text(Arc::from([]))) };
    match prove(&text.0) {
        Ok(()) => Some(text),
        Err(why) => {
            report.fault(format!("{JWT}.{key}"), format!("{} {why}", quoted(name)));
            None
        }
    }
}

/// One line end at the end is not part of a secret: editors and `echo` write it.
fn without_line_end(text: &[u8]) -> &[u8] {
    let line = text.strip_suffix(b"\n").unwrap_or(text);
    if line.len() < text.len() { line.strip_suffix(b"\r").unwrap_or(line) } else { line }
}
