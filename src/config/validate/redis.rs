//! The Redis that holds the buckets: topology, addresses, how to sign in, how calls are limited.

use super::settings::first;
use super::text::{count, span};
use crate::config::env::{Files, Given, Overrides};
use crate::config::fault::{Report, item, quoted};
use crate::config::raw;
use crate::config::settings::Redis;
use crate::store::redis::{CallLimits, RedisUrl, TlsFiles, Topology, UrlError};
use std::time::Duration;

const URLS: &str = "redis.urls";

/// Addresses at most: more are not a list of Sentinels or of some nodes, but a mistake.
const MAX_URLS: usize = 64;

/// The outer `None`: there are faults. The inner: no Redis.
pub(super) fn redis(raw: Option<&raw::Redis>, overrides: &Overrides, report: &mut Report) -> Option<Option<Redis>> {
    let nothing = raw::Redis::default();
    let stated = raw.unwrap_or(&nothing);
    let limits = limits(stated, report);
    let client_name = client_name(stated.client_name.as_deref(), report);
    let file = raw.and_then(|raw| in_file(raw, overrides, report));
    let over = overrides.redis_url.as_ref().map(split);
    let urls = first(over.as_ref(), file, report, |list, report| sound(list, report))?;
    warn_of_unused(raw, overrides, urls.is_some(), report);
    let Some(urls) = urls else {
        return Some(None);
    };
    let topology = topology(stated, urls, overrides, report);
    Some(Some(Redis { topology: topology?, limits: limits?, client_name: client_name? }))
}

fn warn_of_unused(raw: Option<&raw::Redis>, overrides: &Overrides, configured: bool, report: &mut Report) {
    let sentinel = raw.and_then(|raw| raw.topology) == Some(raw::Topology::Sentinel);
    if let Some(password) = overrides.redis_password.as_ref().filter(|_| raw.is_none() && !configured) {
        report.warn(&password.path, "is of no use: no Redis is configured");
    }
    if let Some(password) = overrides.sentinel_password.as_ref().filter(|_| !sentinel) {
        report.warn(&password.path, "is of no use: redis.topology is not sentinel");
    }
}

fn limits(raw: &raw::Redis, report: &mut Report) -> Option<CallLimits> {
    let usual = CallLimits::default();
    let milliseconds = Duration::from_millis;
    let sane = milliseconds(1)..=Duration::from_secs(10);
    let timeout = span("redis.timeout", raw.timeout.as_ref(), usual.timeout, sane, report);
    let pool_size = count("redis.pool_size", raw.pool_size, usual.pool_size as u64, 1..=64, report);
    let in_flight = usual.max_in_flight as u64;
    let in_flight = count("redis.max_in_flight", raw.max_in_flight, in_flight, 1..=1_000_000, report);
    let breaker = raw.breaker.as_ref();
    let failures = breaker.and_then(|breaker| breaker.failures);
    let failures = count("redis.breaker.failures", failures, usual.breaker_failures.into(), 1..=1_000_000, report);
    let interval = breaker.and_then(|breaker| breaker.probe_interval.as_ref());
    let sane = milliseconds(10)..=Duration::from_secs(60);
    let interval = span("redis.breaker.probe_interval", interval, usual.probe_interval, sane, report);
    Some(CallLimits {
        timeout: timeout?,
        pool_size: usize::try_from(pool_size?).unwrap_or(usual.pool_size),
        max_in_flight: usize::try_from(in_flight?).unwrap_or(usize::MAX),
        breaker_failures: u32::try_from(failures?).unwrap_or(u32::MAX),
        probe_interval: interval?,
    })
}

/// As Redis accepts it in CLIENT SETNAME.
fn client_name(name: Option<&str>, report: &mut Report) -> Option<String> {
    const MAX: usize = 64;
    let name = name.unwrap_or("tidegate");
    if (1..=MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Some(name.to_owned());
    }
    let right = format!("write 1 to {MAX} bytes of printable ASCII without blanks");
    report.fault("redis.client_name", format!("{} is no client name; {right}", quoted(name)));
    None
}

/// The addresses in the file, unless some are missing.
fn in_file(raw: &raw::Redis, overrides: &Overrides, report: &mut Report) -> Option<Vec<Given>> {
    let urls: Vec<_> = raw.urls.as_ref().map(raw::List::entries).into_iter().flatten().collect();
    if urls.is_empty() {
        if overrides.redis_url.is_none() {
            report.fault(URLS, "is missing; write [\"redis://host:port/database\"], or set TIDEGATE_REDIS_URL");
        }
        return None;
    }
    if urls.len() > MAX_URLS {
        report.fault(URLS, format!("holds more than {MAX_URLS} addresses; some nodes or the sentinels are enough"));
        return None;
    }
    let mut given = Vec::new();
    for (index, url) in urls {
        match url {
            Some(url) => given.push(Given::new(item(URLS, index), &url.0)),
            None => report.fault(item(URLS, index), "is empty; write redis://host:port/database"),
        }
    }
    Some(given)
}

/// Several addresses in one text, with a comma between them and perhaps one at the end.
fn split(given: &Given) -> Vec<Given> {
    let text = given.text();
    let starts = |at: &usize| ["redis://", "rediss://", "unix://"].iter().any(|scheme| text[*at..].starts_with(scheme));
    let cuts = text.match_indices(',').map(|(at, _)| at).filter(|at| starts(&(at + 1)) || at + 1 == text.len());
    let mut parts = Vec::new();
    let mut from = 0;
    for at in cuts.chain([text.len()]) {
        if from < at {
            parts.push(Given::new(given.path.clone(), &text[from..at]));
        }
        from = at + 1;
    }
    parts
}

/// The addresses with who stated them, if all are sound.
fn sound(list: &[Given], report: &mut Report) -> Option<Vec<(String, RedisUrl)>> {
    // Gone through to the end, so that the faults of all are told.
    let urls: Vec<_> = list.iter().map(|given| Some((given.path.clone(), url_at(given, report)?))).collect();
    urls.into_iter().collect()
}

fn url_at(given: &Given, report: &mut Report) -> Option<RedisUrl> {
    given.text().parse().map_err(|why: UrlError| report.fault(&given.path, why.to_string())).ok()
}

fn topology(
    raw: &raw::Redis,
    urls: Vec<(String, RedisUrl)>,
    overrides: &Overrides,
    report: &mut Report,
) -> Option<Topology> {
    let kind = raw.topology.unwrap_or(raw::Topology::Standalone);
    let before = report.faults.len();
    let place = urls.first().map_or(URLS, |(path, _)| path.split('[').next().unwrap_or(URLS)).to_owned();
    check_urls(kind, &urls, &place, report);
    let tls = tls(raw.tls.as_ref(), &urls, overrides.files, report);
    let master = sentinel_master(kind, raw, report);
    let database = database(kind, raw, &urls, report);
    let username = raw.username.as_deref();
    if username.is_some_and(str::is_empty) {
        report.fault("redis.username", "is empty; write the name of an ACL user, or leave it out");
    }
    let mut secured = Vec::new();
    for (_, url) in urls {
        match url.with_tls(&tls) {
            Ok(url) => secured.push(url),
            Err(why) => report.fault("redis.tls", why.to_string()),
        }
    }
    if report.faults.len() > before {
        return None;
    }
    let signed_in = |url: RedisUrl| {
        let url = username.map_or(url.clone(), |name| url.with_username(name));
        let password = overrides.redis_password.as_ref();
        let url = password.map_or(url.clone(), |password| url.with_password(password.text()));
        database.map_or(url.clone(), |database| url.with_database(database))
    };
    let first = secured.first()?.clone();
    Some(match kind {
        raw::Topology::Standalone => Topology::Standalone(signed_in(first)),
        raw::Topology::Cluster => Topology::Cluster(secured.into_iter().map(signed_in).collect()),
        raw::Topology::Sentinel => {
            let password = overrides.sentinel_password.as_ref();
            let known = |url: RedisUrl| password.map_or(url.clone(), |password| url.with_password(password.text()));
            let access = signed_in(first.without_credentials());
            Topology::Sentinel { sentinels: secured.into_iter().map(known).collect(), master: master?, access }
        }
    })
}

fn check_urls(kind: raw::Topology, urls: &[(String, RedisUrl)], place: &str, report: &mut Report) {
    let many = urls.len();
    if report.faults.has_under(place) {
        return;
    }
    match kind {
        raw::Topology::Standalone if many != 1 => {
            let right = "a standalone Redis has exactly one (or set redis.topology to sentinel or cluster)";
            report.fault(place, format!("holds {many} addresses; {right}"));
        }
        raw::Topology::Standalone => {}
        raw::Topology::Sentinel | raw::Topology::Cluster => {
            for (path, url) in urls.iter().filter(|(_, url)| url.is_unix()) {
                report.fault(path, format!("{url} is a unix socket; write redis://host:port"));
            }
            let right =
                if kind == raw::Topology::Cluster { "a cluster has database 0 only" } else { "sentinels have none" };
            for (path, _) in urls.iter().filter(|(_, url)| url.database() != 0) {
                let more = if kind == raw::Topology::Cluster { "remove it" } else { "write redis.database" };
                report.fault(path, format!("names a database, and {right}; {more}"));
            }
            if many == 0 {
                report.fault(place, "holds no address; write redis://host:port");
            }
        }
    }
    if let [(_, one), others @ ..] = urls
        && let Some((path, _)) = others.iter().find(|(_, other)| other.is_tls() != one.is_tls())
    {
        report.fault(path, "differs in TLS from the first; write rediss:// for all, or redis:// for all");
    }
}

fn sentinel_master(kind: raw::Topology, raw: &raw::Redis, report: &mut Report) -> Option<String> {
    const PATH: &str = "redis.sentinel_master";
    let right = "write the name that the sentinels monitor it under, such as mymaster";
    match (kind, raw.sentinel_master.as_deref()) {
        (raw::Topology::Sentinel, Some(name)) if !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic()) => {
            return Some(name.to_owned());
        }
        (raw::Topology::Sentinel, Some(name)) => report.fault(PATH, format!("{} is no name; {right}", quoted(name))),
        (raw::Topology::Sentinel, None) => report.fault(PATH, format!("is missing; {right}")),
        (_, Some(_)) => report.fault(PATH, "goes with redis.topology: sentinel only; remove it, or set the topology"),
        (_, None) => {}
    }
    None
}

/// The database by its number, where the address does not tell it.
fn database(kind: raw::Topology, raw: &raw::Redis, urls: &[(String, RedisUrl)], report: &mut Report) -> Option<u32> {
    const PATH: &str = "redis.database";
    let stated = raw.database?;
    let in_url = urls.iter().find(|(_, url)| url.database() != 0);
    if let Some((path, _)) = in_url.filter(|(_, url)| u64::try_from(url.database()) != Ok(stated)) {
        report.fault(PATH, format!("{stated} differs from the database in {path}; keep one"));
    }
    if kind == raw::Topology::Cluster && stated != 0 {
        report.fault(PATH, "a cluster has database 0 only; remove it");
    }
    let database = u32::try_from(stated).ok();
    if database.is_none() {
        report.fault(PATH, format!("{stated} is out of range; write a number such as 0"));
    }
    database
}

fn tls(raw: Option<&raw::Tls>, urls: &[(String, RedisUrl)], files: Files, report: &mut Report) -> TlsFiles {
    let Some(raw) = raw else {
        return TlsFiles::default();
    };
    if !urls.iter().any(|(_, url)| url.is_tls()) {
        report.fault("redis.tls", "is of no effect, as the address has no TLS; write rediss:// instead of redis://");
    }
    let mut read = |path: &str, file: Option<&str>| {
        let file = file.filter(|_| files == Files::Read)?;
        super::tls::pem(path, file, report)
    };
    let ca = read("redis.tls.ca_file", raw.ca_file.as_deref());
    let cert = read("redis.tls.cert_file", raw.cert_file.as_deref());
    let key = read("redis.tls.key_file", raw.key_file.as_deref());
    for (path, mine, other, name) in [
        ("redis.tls.cert_file", &raw.cert_file, &raw.key_file, "key_file"),
        ("redis.tls.key_file", &raw.key_file, &raw.cert_file, "cert_file"),
    ] {
        if mine.is_none() && other.is_some() {
            report.fault(path, format!("is missing; it goes with {name}"));
        }
    }
    TlsFiles { ca, client: cert.zip(key) }
}
