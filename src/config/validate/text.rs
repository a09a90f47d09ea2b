//! Checks of single values: names, header names, times, counts.

use crate::config::fault::{Report, quoted};
use crate::config::raw::{List, Span};
use std::ops::RangeInclusive;
use std::time::Duration;

/// A header's name, in lower case as Envoy sends it.
pub(super) fn header_name(path: &str, name: &str, report: &mut Report) -> Option<String> {
    let wrong = if name.starts_with(':') {
        "is a pseudo header; use a rule's methods, hosts and path instead".to_owned()
    } else if name.is_empty() || name.len() > 256 || !name.bytes().all(is_token) {
        "is no header name; write one such as x-api-key".to_owned()
    } else if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        format!("has upper-case letters; write {}", name.to_ascii_lowercase())
    } else {
        return Some(name.to_owned());
    };
    report.fault(path, format!("{} {wrong}", quoted(name)));
    None
}

/// Whether a byte may stand in an HTTP token (RFC 9110, 5.6.2).
pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// A text for people and logs: 1 to 128 characters without line ends and the like.
pub(super) fn label(path: &str, text: &str, report: &mut Report) -> Option<String> {
    const MAX: usize = 128;
    if text.is_empty() || text.len() > MAX || text.chars().any(char::is_control) {
        report.fault(path, format!("{} is no name; write 1 to {MAX} bytes without control characters", quoted(text)));
        return None;
    }
    Some(text.to_owned())
}

/// A list of texts, none of them empty.
pub(super) fn texts(path: &str, list: Option<&List<String>>, report: &mut Report) -> Vec<String> {
    let mut texts = Vec::new();
    each(path, list, report, |path, text, report| match text.as_str() {
        "" => report.fault(path, "is empty; write a text, or leave it out"),
        text => texts.push(text.to_owned()),
    });
    texts
}

/// The entries of a list with their paths. An empty one is a fault.
pub(super) fn each<'l, T>(
    path: &str,
    list: Option<&'l List<T>>,
    report: &mut Report,
    mut visit: impl FnMut(&str, &'l T, &mut Report),
) {
    for (index, entry) in list.into_iter().flat_map(List::entries) {
        let path = crate::config::fault::item(path, index);
        match entry {
            Some(entry) => visit(&path, entry, report),
            // A fault below it was told, and then the entry taken out.
            None if report.faults.has_under(&path) => {}
            None => report.fault(path, "is empty; fill it in, or leave it out"),
        }
    }
}

/// A time within `sane`.
pub(super) fn span(
    path: &str,
    span: Option<&Span>,
    usual: Duration,
    sane: RangeInclusive<Duration>,
    report: &mut Report,
) -> Option<Duration> {
    let Some(Span(text)) = span else {
        return Some(usual);
    };
    let Ok(time) = humantime::parse_duration(text.trim()) else {
        report.fault(path, format!("{} is no time; write one with its unit, such as 50ms or 1s", quoted(text)));
        return None;
    };
    if sane.contains(&time) {
        return Some(time);
    }
    report.fault(path, format!("{} is out of range; write {:?} to {:?}", quoted(text), sane.start(), sane.end()));
    None
}

/// A whole number within `sane`.
pub(super) fn count(
    path: &str,
    number: Option<u64>,
    usual: u64,
    sane: RangeInclusive<u64>,
    report: &mut Report,
) -> Option<u64> {
    let number = number.unwrap_or(usual);
    if sane.contains(&number) {
        return Some(number);
    }
    report.fault(path, format!("{number} is out of range; write {} to {}", sane.start(), sane.end()));
    None
}
