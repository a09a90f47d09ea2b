//! The settings: addresses, stores, times, log.

use super::text::{count, span};
use super::{audit, redis, tls, traces};
use crate::config::env::{Given, Overrides};
use crate::config::fault::{Report, listed, nearest, quoted};
use crate::config::raw::{self, Raw};
use crate::config::settings::{ClockSource, DenyCache, KeyMetadata, Log, LogFormat, Settings, Token};
use crate::server::Listen;
use crate::server::tls::{Listener, Tls};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

const MINUTES_5: Duration = Duration::from_secs(300);
/// Nobody guesses a random token of so many bytes over HTTP.
const SHORTEST_TOKEN: usize = 16;
const DAY: Duration = Duration::from_secs(86_400);

/// `key_prefix` is `None` where it is at fault.
pub(super) fn settings(
    raw: &Raw,
    key_prefix: Option<&str>,
    overrides: &Overrides,
    report: &mut Report,
) -> Option<Settings> {
    let listen = listen(raw, overrides, report);
    let admin = admin(raw, overrides, report);
    let admin_token = admin_token(raw, overrides, report);
    let tls = tls::tls("tls", Listener::Grpc, raw.tls.as_ref(), overrides.files, report);
    let admin_tls = raw.admin.as_ref().and_then(|admin| admin.tls.as_ref());
    let admin_tls = tls::tls("admin.tls", Listener::Admin, admin_tls, overrides.files, report);
    warn_of_admin(admin, admin_tls.as_ref(), admin_token.as_ref(), report);
    let redis = redis::redis(raw.redis.as_ref(), overrides, report);
    let capacity = raw.memory.as_ref().and_then(|memory| memory.capacity);
    let capacity = count("memory.capacity", capacity, 1_000_000, 1..=1_000_000_000, report);
    let key_metadata = key_metadata(raw.key_metadata.as_ref(), report);
    let deny_cache = deny_cache(raw.deny_cache.as_ref(), report);
    let drain = span("drain", raw.drain.as_ref(), Duration::from_secs(5), Duration::ZERO..=MINUTES_5, report);
    let shortest = Duration::from_millis(1);
    let shutdown = span("shutdown", raw.shutdown.as_ref(), Duration::from_secs(10), shortest..=MINUTES_5, report);
    let max_connection_age = max_connection_age(raw, report);
    let log = log(raw.log.as_ref(), overrides, report);
    // Where Redis is at fault, whether there is one is not known.
    let has_redis = redis.as_ref().is_none_or(Option::is_some);
    let audit = audit::audit(raw.audit.as_ref(), has_redis, key_prefix.unwrap_or_default(), overrides, report);
    let traces = traces::traces(raw.traces.as_ref(), report);
    Some(Settings {
        listen: listen?,
        tls: tls?,
        admin: admin?,
        admin_tls: admin_tls?,
        admin_token: admin_token?,
        redis: redis?,
        memory_capacity: usize::try_from(capacity?).unwrap_or(usize::MAX),
        deny_cache: deny_cache?,
        dedupe: raw.dedupe.unwrap_or(false),
        clock: match raw.clock {
            Some(raw::Clock::Local) => ClockSource::Local,
            Some(raw::Clock::Redis) | None => ClockSource::Redis,
        },
        key_metadata: key_metadata?,
        readiness_requires_store: raw.readiness_requires_store.unwrap_or(true),
        drain: drain?,
        shutdown: shutdown?,
        max_connection_age: max_connection_age?,
        log: log?,
        audit: audit?,
        traces: traces?,
        // It goes with the sources of identities.
        jwt: None,
    })
}

fn key_metadata(raw: Option<&raw::KeyMetadata>, report: &mut Report) -> Option<KeyMetadata> {
    let size = raw.and_then(|raw| raw.size);
    let size = count("key_metadata.size", size, 100_000, 0..=10_000_000, report);
    let sane = Duration::from_millis(100)..=Duration::from_secs(3600);
    let max_age = raw.and_then(|raw| raw.max_age.as_ref());
    let max_age = span("key_metadata.max_age", max_age, Duration::from_secs(30), sane, report);
    Some(KeyMetadata { size: usize::try_from(size?).unwrap_or(usize::MAX), max_age: max_age? })
}

/// Checks what the file says even where something comes before it, and gives what comes first.
pub(super) fn first<G, T>(
    over: Option<&G>,
    file: Option<G>,
    report: &mut Report,
    check: impl Fn(&G, &mut Report) -> Option<T>,
) -> Option<Option<T>> {
    let file = file.map(|given| check(&given, report));
    match over.map(|given| check(given, report)).or(file) {
        Some(checked) => checked.map(Some),
        None => Some(None),
    }
}

fn listen(raw: &Raw, overrides: &Overrides, report: &mut Report) -> Option<Listen> {
    let file = raw.listen.as_deref().map(|text| Given::new("listen", text));
    let listen = first(overrides.listen.as_ref(), file, report, listen_at)?;
    Some(listen.unwrap_or(Listen::Tcp(([0, 0, 0, 0], 50051).into())))
}

fn listen_at(given: &Given, report: &mut Report) -> Option<Listen> {
    let text = given.text();
    if let Some(path) = text.strip_prefix("unix:") {
        // A socket's path has room for 107 bytes on Linux and 103 on others.
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.starts_with('/') && path.len() <= 103 && !path.contains('\0') {
            return Some(Listen::Unix(PathBuf::from(path)));
        }
        report.fault(&given.path, format!("{} is no socket; write unix:/path of at most 103 bytes", quoted(text)));
        return None;
    }
    match text.parse() {
        Ok(address) => Some(Listen::Tcp(address)),
        Err(_) => {
            let right = "write an IP address and a port such as 0.0.0.0:50051 or [::]:50051, or unix:/path";
            report.fault(&given.path, format!("{} is no address; {right}", quoted(text)));
            None
        }
    }
}

/// The outer `None`: there are faults. The inner: switched off.
fn deny_cache(raw: Option<&raw::DenyCache>, report: &mut Report) -> Option<Option<DenyCache>> {
    let size = count("deny_cache.size", raw.and_then(|raw| raw.size), 100_000, 0..=100_000_000, report);
    let sane = Duration::from_millis(1)..=MINUTES_5;
    let max_age = raw.and_then(|raw| raw.max_age.as_ref());
    let max_age = span("deny_cache.max_age", max_age, Duration::from_secs(1), sane, report);
    let (size, max_age) = (usize::try_from(size?).unwrap_or(usize::MAX), max_age?);
    Some((size > 0).then_some(DenyCache { size, max_age }))
}

/// The outer `None`: there are faults. The inner: no admin endpoint.
fn admin(raw: &Raw, overrides: &Overrides, report: &mut Report) -> Option<Option<SocketAddr>> {
    let file = raw.admin.as_ref().and_then(|admin| admin.listen.as_deref());
    let file = file.map(|text| Given::new("admin.listen", text));
    let admin = first(overrides.admin_listen.as_ref(), file, report, admin_at)?;
    Some(admin.unwrap_or(Some(([127, 0, 0, 1], 8080).into())))
}

fn admin_at(given: &Given, report: &mut Report) -> Option<Option<SocketAddr>> {
    if given.text() == "off" {
        return Some(None);
    }
    let right = "write an IP address and a port such as 127.0.0.1:8080 or [::]:8080, or off";
    let told = || format!("{} is no address; {right}", quoted(given.text()));
    given.text().parse().map(Some).map_err(|_| report.fault(&given.path, told())).ok()
}

/// The outer `None`: there are faults. The inner: there is none.
fn admin_token(raw: &Raw, overrides: &Overrides, report: &mut Report) -> Option<Option<Token>> {
    let file = raw.admin.as_ref().and_then(|admin| admin.token.as_ref());
    let file = file.map(|token| Given::new("admin.token", &token.0));
    first(overrides.admin_token.as_ref(), file, report, |given, report| {
        let token = given.text();
        if token.len() >= SHORTEST_TOKEN && token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Some(Token::new(token));
        }
        let right = format!("write {SHORTEST_TOKEN} bytes or more of printable ASCII without blanks");
        report.fault(&given.path, format!("is no token; {right}"));
        None
    })
}

/// `None`, or an outer `None`, where there are faults.
fn warn_of_admin(
    admin: Option<Option<SocketAddr>>,
    tls: Option<&Option<Tls>>,
    token: Option<&Option<Token>>,
    report: &mut Report,
) {
    match (admin, tls, token) {
        (Some(None), Some(Some(_)), _) => report.warn("admin.tls", "is of no effect: admin.listen is off"),
        (Some(Some(address)), Some(None), Some(Some(_))) if !address.ip().to_canonical().is_loopback() => {
            report.warn("admin.tls", "is left out: the admin token is sent in plain text to where others may listen");
        }
        _ => {}
    }
}

/// The outer `None`: there are faults. The inner: connections grow as old as they like.
fn max_connection_age(raw: &Raw, report: &mut Report) -> Option<Option<Duration>> {
    const PATH: &str = "max_connection_age";
    let age = span(PATH, raw.max_connection_age.as_ref(), MINUTES_5, Duration::ZERO..=DAY, report)?;
    if age.is_zero() {
        return Some(None);
    }
    if age < Duration::from_secs(1) {
        report.fault(PATH, format!("{age:?} is too short; write 1s to 24h, or 0s for no such age"));
        return None;
    }
    Some(Some(age))
}

fn log(raw: Option<&raw::Log>, overrides: &Overrides, report: &mut Report) -> Option<Log> {
    let file = raw.and_then(|raw| raw.filter.as_deref()).map(|text| Given::new("log.filter", text));
    let filter = first(overrides.log_filter.as_ref(), file, report, filter_of);
    let format = match &overrides.log_format {
        Some(given) => format_of(given, report),
        None => Some(match raw.and_then(|raw| raw.format) {
            Some(raw::LogFormat::Json) => LogFormat::Json,
            Some(raw::LogFormat::Text) | None => LogFormat::Text,
        }),
    };
    Some(Log { filter: filter?.unwrap_or_else(|| "info".into()), format: format? })
}

pub(super) fn filter_of(given: &Given, report: &mut Report) -> Option<String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let text = given.text().trim();
    let right = format!("write one of {}, or a list such as info,tidegate::store=debug", listed(LEVELS));
    // The filter would take a misspelt level for the name of a module.
    let lone = text
        .split(',')
        .map(str::trim)
        .find(|part| !part.contains(['=', '[', ':']) && !LEVELS.iter().any(|level| level.eq_ignore_ascii_case(part)));
    if let Some(lone) = lone {
        let meant = nearest(lone, LEVELS).map(|near| format!("did you mean {near}? ")).unwrap_or_default();
        report.fault(&given.path, format!("{} is no level; {meant}{right}", quoted(lone)));
        return None;
    }
    if EnvFilter::try_new(text).is_err() {
        report.fault(&given.path, format!("{} is no filter; {right}", quoted(text)));
        return None;
    }
    Some(text.to_owned())
}

fn format_of(given: &Given, report: &mut Report) -> Option<LogFormat> {
    match given.text() {
        "text" => Some(LogFormat::Text),
        "json" => Some(LogFormat::Json),
        other => {
            report.fault(&given.path, format!("{} is no format; write text or json", quoted(other)));
            None
        }
    }
}
