//! Where callers and their tiers are read, and warnings about what clients write themselves.

use super::jwt::claim;
use super::text::{count, each, header_name, texts};
use crate::config::env::{Given, Overrides};
use crate::config::fault::Report;
use crate::config::raw::{self, List};
use crate::policy::api_key::Digester;
use crate::policy::client_ip::{AddressSource, MAX_FORWARDED, Prefixes};
use crate::policy::identity::{KeySource, MetadataPath, Sources, UserSource};
use crate::policy::tier::TierSource;

pub(super) const WRITTEN_BY_CLIENT: &str = "is a plain header, which the client writes unless Envoy overwrites it";

pub(super) fn sources(
    raw: Option<&raw::Identity>,
    base: Option<&raw::Identity>,
    overrides: &Overrides,
    report: &mut Report,
) -> Option<Sources> {
    let ip = raw.and_then(|raw| raw.ip.as_ref());
    let verified = raw.is_some_and(|raw| raw.jwt.is_some());
    Some(Sources {
        user: users(stated(raw, base, |raw| raw.user.as_ref()), verified, report),
        key: keys(stated(raw, base, |raw| raw.key.as_ref()), report),
        ip: address(ip.and_then(|ip| ip.from.as_ref()), report),
        tier: tiers(stated(raw, base, |raw| raw.tier.as_ref()), verified, report),
        digester: digester(raw, overrides, report),
        prefixes: prefixes(ip, report)?,
    })
}

/// A list as the file states it, else as the built-in config does.
fn stated<'r, T>(
    raw: Option<&'r raw::Identity>,
    base: Option<&'r raw::Identity>,
    list: impl Fn(&'r raw::Identity) -> Option<&'r List<T>>,
) -> Option<&'r List<T>> {
    raw.and_then(&list).or_else(|| base.and_then(&list))
}

/// `verified`: whether tokens are verified here.
fn users(list: Option<&List<raw::UserSource>>, verified: bool, report: &mut Report) -> Vec<UserSource> {
    let mut sources = Vec::new();
    each("identity.user", list, report, |path, source, report| {
        sources.extend(match source {
            raw::UserSource::Metadata(raw) => metadata(path, raw, report).map(UserSource::Metadata),
            raw::UserSource::Jwt(raw) => claim(path, raw, verified, report).map(UserSource::Jwt),
            raw::UserSource::Principal => Some(UserSource::Principal),
            raw::UserSource::Header(name) => client_header(path, name, report).map(UserSource::Header),
        });
    });
    sources
}

fn keys(list: Option<&List<raw::KeySource>>, report: &mut Report) -> Vec<KeySource> {
    let mut sources = Vec::new();
    each("identity.key", list, report, |path, source, report| {
        sources.extend(match source {
            raw::KeySource::Header(name) => header_name(&format!("{path}.header"), name, report).map(KeySource::Header),
            raw::KeySource::Bearer => Some(KeySource::Bearer),
        });
    });
    sources
}

fn tiers(list: Option<&List<raw::TierSource>>, verified: bool, report: &mut Report) -> Vec<TierSource> {
    let mut sources = Vec::new();
    each("identity.tier", list, report, |path, source, report| {
        sources.extend(match source {
            raw::TierSource::Metadata(raw) => metadata(path, raw, report).map(TierSource::Metadata),
            raw::TierSource::Jwt(raw) => claim(path, raw, verified, report).map(TierSource::Jwt),
            raw::TierSource::ApiKey => Some(TierSource::ApiKey),
            raw::TierSource::Header(name) => client_header(path, name, report).map(TierSource::Header),
        });
    });
    sources
}

fn client_header(path: &str, name: &str, report: &mut Report) -> Option<String> {
    let path = format!("{path}.header");
    let name = header_name(&path, name, report)?;
    report.warn(path, format!("{name} {WRITTEN_BY_CLIENT}"));
    Some(name)
}

fn metadata(path: &str, raw: &raw::Metadata, report: &mut Report) -> Option<MetadataPath> {
    let (path, place) = (format!("{path}.metadata"), format!("{path}.metadata.path"));
    let namespace = raw.namespace.clone().filter(|namespace| !namespace.is_empty());
    if namespace.is_none() {
        let right = "write the name of an Envoy filter such as envoy.filters.http.jwt_authn";
        report.fault(format!("{path}.namespace"), format!("is missing; {right}"));
    }
    let keys = texts(&place, raw.path.as_ref(), report);
    if raw.path.as_ref().is_none_or(|path| path.len() == 0) {
        report.fault(place, "is missing; write the keys that lead to the value, such as [claims, sub]");
        return None;
    }
    Some(MetadataPath { namespace: namespace?, path: keys })
}

fn address(raw: Option<&raw::AddressSource>, report: &mut Report) -> AddressSource {
    const PATH: &str = "identity.ip.from";
    match raw {
        Some(raw::AddressSource::Header(name)) => {
            let path = format!("{PATH}.header");
            if name.eq_ignore_ascii_case("x-forwarded-for") {
                let right = "write {xff: {trusted_hops: 1}}, which counts from the right";
                report
                    .fault(path, format!("x-forwarded-for is a list that starts with what the client wrote; {right}"));
                return AddressSource::Peer;
            }
            client_header(PATH, name, report).map_or(AddressSource::Peer, AddressSource::Header)
        }
        Some(raw::AddressSource::Xff(xff)) => AddressSource::ForwardedFor { trusted_hops: hops(xff, report) },
        Some(raw::AddressSource::Peer) | None => AddressSource::Peer,
    }
}

fn hops(xff: &raw::Xff, report: &mut Report) -> usize {
    const PATH: &str = "identity.ip.from.xff.trusted_hops";
    if xff.trusted_hops.is_none() {
        report.fault(PATH, "is missing; write 1 for the entry that Envoy itself appended");
    }
    let hops = count(PATH, xff.trusted_hops, 1, 1..=MAX_FORWARDED as u64, report);
    hops.and_then(|hops| usize::try_from(hops).ok()).unwrap_or(1)
}

fn prefixes(raw: Option<&raw::Ip>, report: &mut Report) -> Option<Prefixes> {
    let usual = Prefixes::default();
    let mut bits = |name: &str, stated: Option<u64>, usual: u8, max: u64| {
        let bits = count(&format!("identity.ip.{name}"), stated, u64::from(usual), 1..=max, report)?;
        u8::try_from(bits).ok()
    };
    let ipv4 = bits("ipv4_prefix", raw.and_then(|raw| raw.ipv4_prefix), usual.ipv4, 32);
    let ipv6 = bits("ipv6_prefix", raw.and_then(|raw| raw.ipv6_prefix), usual.ipv6, 128);
    Some(Prefixes { ipv4: ipv4?, ipv6: ipv6? })
}

fn digester(raw: Option<&raw::Identity>, overrides: &Overrides, report: &mut Report) -> Digester {
    const PREVIOUS: &str = "identity.key_pepper_previous";
    let mut pepper = |path: &str, over: Option<&Given>, file: Option<&raw::Secret>| {
        if file.is_some_and(|pepper| pepper.0.is_empty()) {
            report.fault(path, "is empty; write a secret, or leave it out");
        }
        over.cloned().or_else(|| file.map(|secret| Given::new(path, &secret.0)))
    };
    let file = raw.and_then(|raw| raw.key_pepper.as_ref());
    let current = pepper("identity.key_pepper", overrides.key_pepper.as_ref(), file);
    let file = raw.and_then(|raw| raw.key_pepper_previous.as_ref());
    let previous = pepper(PREVIOUS, overrides.key_pepper_previous.as_ref(), file);
    let digester = Digester::new(current.as_ref().map(|pepper| pepper.text().as_bytes()));
    let Some(previous) = previous else { return digester };
    match current {
        None => report.fault(previous.path, "goes with a key_pepper that replaces it; write that too, or remove this"),
        Some(current) if current.text() == previous.text() => {
            report.warn(previous.path, "is the same as key_pepper, and of no use");
        }
        Some(_) => return digester.with_previous(previous.text().as_bytes()),
    }
    digester
}
