//! The audit trail: its sinks, its queue, its folds.

use super::text::{count, each, label, span};
use super::{MAX_OF_KEY, is_of_key};
use crate::audit::{Settings, SinkSettings};
use crate::config::env::{Overrides, hostname};
use crate::config::fault::{Report, field, quoted};
use crate::config::raw;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SINKS: &str = "audit.sinks";

/// The longest fold: what happened longer ago is no news.
const LONGEST_FOLD: Duration = Duration::from_secs(300);

/// The outer `None`: there are faults. The inner: no trail.
pub(super) fn audit(
    raw: Option<&raw::Audit>,
    has_redis: bool,
    key_prefix: &str,
    overrides: &Overrides,
    report: &mut Report,
) -> Option<Option<Settings>> {
    let replica = replica(overrides, report);
    let Some(raw) = raw else {
        return Some(None);
    };
    let before = report.faults.len();
    let sinks = sinks(raw, has_redis, key_prefix, report);
    let queue = count("audit.queue", raw.queue, 8192, 16..=1_048_576, report);
    let fold = span("audit.fold", raw.fold.as_ref(), Duration::from_secs(10), Duration::ZERO..=LONGEST_FOLD, report);
    if report.faults.len() > before {
        return None;
    }
    if sinks.is_empty() {
        report.warn(SINKS, "is empty: there is no audit trail");
        return Some(None);
    }
    let queue = usize::try_from(queue?).unwrap_or(usize::MAX);
    let (hash_users, fold) = (raw.hash_users.unwrap_or(false), fold?);
    Some(Some(Settings { sinks, hash_users, queue, fold, replica: replica? }))
}

fn replica(overrides: &Overrides, report: &mut Report) -> Option<String> {
    match &overrides.replica {
        Some(given) => label(&given.path, given.text(), report),
        None => Some(hostname()),
    }
}

fn sinks(raw: &raw::Audit, has_redis: bool, key_prefix: &str, report: &mut Report) -> Vec<SinkSettings> {
    let mut sinks: Vec<SinkSettings> = Vec::new();
    each(SINKS, raw.sinks.as_ref(), report, |path, sink, report| {
        let sink = match sink {
            raw::AuditSink::Stdout => Some(SinkSettings::Stdout),
            raw::AuditSink::File(file) => absolute(&format!("{path}.file.path"), file.path.as_deref(), report),
            raw::AuditSink::RedisStream(stream) => {
                redis_stream(&field(path, "redis_stream"), stream, has_redis, key_prefix, report)
            }
        };
        let Some(sink) = sink else { return };
        if sinks.iter().any(|other| std::mem::discriminant(other) == std::mem::discriminant(&sink)) {
            report.fault(path, "is a second sink of its kind; keep one of each");
        } else {
            sinks.push(sink);
        }
    });
    sinks
}

fn absolute(at: &str, path: Option<&str>, report: &mut Report) -> Option<SinkSettings> {
    const RIGHT: &str = "write an absolute path such as /var/log/tidegate/audit.jsonl";
    let Some(path) = path else {
        report.fault(at, format!("is missing; {RIGHT}"));
        return None;
    };
    if Path::new(path).is_absolute() && !path.ends_with('/') && !path.contains('\0') {
        return Some(SinkSettings::File(PathBuf::from(path)));
    }
    report.fault(at, format!("{} is no file; {RIGHT}", quoted(path)));
    None
}

fn redis_stream(
    at: &str,
    raw: &raw::AuditStream,
    has_redis: bool,
    key_prefix: &str,
    report: &mut Report,
) -> Option<SinkSettings> {
    let max_length = count(&field(at, "max_length"), raw.max_length, 100_000, 1..=100_000_000, report);
    let key = match raw.key.as_deref() {
        None => format!("{key_prefix}audit"),
        Some(key) if !key.is_empty() && is_of_key(key) => key.to_owned(),
        Some(key) => {
            let right = format!("write 1 to {MAX_OF_KEY} bytes of printable ASCII without blanks, {{ and }}");
            report.fault(field(at, "key"), format!("{} is no key; {right}", quoted(key)));
            return None;
        }
    };
    if !has_redis {
        report.fault(at, "needs a Redis, and none is configured; add redis, or set TIDEGATE_REDIS_URL");
        return None;
    }
    Some(SinkSettings::RedisStream { key, max_length: max_length? })
}
