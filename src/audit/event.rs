//! Events of the audit trail, and the one line of JSON that each of them is, whatever a client sent.
//!
//! Takes what happened as values; gives text. `docs/audit.schema.json` is the contract.

use crate::bucket::{Dimension, Timestamp};
use crate::metrics::{AuditEvent, Source};
use crate::policy::request::Request;
use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer as _};
use serde_json::ser::Formatter;
use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

/// The version of the schema: another one when a field goes or changes its meaning, and not when one is added.
pub const VERSION: u8 = 1;

/// How much is kept of what a client wrote, in bytes.
const MAX_METHOD: usize = 32;
const MAX_HOST: usize = 256;
const MAX_PATH: usize = 512;
const MAX_REQUEST_ID: usize = 128;

/// The header that names a request in Envoy's logs too.
const REQUEST_ID: &str = "x-request-id";

/// Why something was refused, or would have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reason {
    /// A bucket did not cover the cost.
    Exhausted,
    /// No bucket of that size ever covers it.
    NeverFits,
    /// The API key is suspended.
    Suspended,
    /// The store did not answer, and the policy is to deny.
    Unavailable,
}

impl Reason {
    fn word(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::NeverFits => "never_fits",
            Self::Suspended => "suspended",
            Self::Unavailable => "unavailable",
        }
    }
}

/// What is kept of a request, for the case that it is to be told of: a copy, as the request itself may be large and is
/// gone when it is decided.
#[derive(Debug, Default)]
pub struct Excerpt {
    text: Box<[u8]>,
    /// Where method, host, path and the request's id end.
    ends: [u16; 4],
}

impl Excerpt {
    /// The path is kept without its query, which may hold secrets.
    pub fn of(request: &Request<'_>) -> Self {
        let id = request.header(REQUEST_ID).unwrap_or_default();
        let parts = [
            cut(request.method, MAX_METHOD),
            cut(request.host, MAX_HOST),
            cut(request.bare_path(), MAX_PATH),
            cut(&id, MAX_REQUEST_ID),
        ];
        let mut text = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        let ends = parts.map(|part| {
            text.extend_from_slice(part);
            text.len() as u16
        });
        Self { text: text.into_boxed_slice(), ends }
    }

    /// Method, host, path and the request's id, as far as there are such.
    fn parts(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        let [method, host, path, id] = self.ends.map(usize::from);
        let ranges = [("method", 0..method), ("host", method..host), ("path", host..path), ("request_id", path..id)];
        ranges.into_iter().map(|(name, range)| (name, &self.text[range])).filter(|(_, part)| !part.is_empty())
    }
}

/// The first bytes of a text, without half of a character at the end.
fn cut(text: &[u8], most: usize) -> &[u8] {
    if text.len() <= most {
        return text;
    }
    // A character has three bytes at most that go on with it.
    let begins = |at: &usize| text[*at] & 0b1100_0000 != 0b1000_0000;
    let end = (most.saturating_sub(3)..=most).rev().find(begins).unwrap_or(most);
    &text[..end]
}

/// Who was answered, and how: what is the same in all answers that are told of in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Who<'a> {
    pub(super) event: AuditEvent,
    pub(super) reason: Option<Reason>,
    pub(super) tier: &'a str,
    pub(super) dimension: Option<Dimension>,
    /// As it stands in the bucket's name, or a digest of that.
    pub(super) identity: Option<&'a str>,
    pub(super) rule: Option<&'a str>,
    /// Of an answer without the store: what was done, and why.
    pub(super) outage: Option<(&'static str, &'static str)>,
}

/// What may differ between answers that are told of in one line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Numbers {
    /// Whole tokens of a full bucket, and those that are left.
    pub(super) bucket: Option<(u64, u64)>,
    /// Seconds.
    pub(super) retry_after: Option<u64>,
    /// Tokens.
    pub(super) cost: f64,
    pub(super) source: Option<Source>,
    /// As in [`Who::outage`], of a denial that was decided in this process's own buckets.
    pub(super) outage: Option<(&'static str, &'static str)>,
}

/// [`Who`], to be kept.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    event: AuditEvent,
    reason: Option<Reason>,
    tier: Box<str>,
    dimension: Option<Dimension>,
    identity: Option<Box<str>>,
    rule: Option<Box<str>>,
    outage: Option<(&'static str, &'static str)>,
}

impl From<&Who<'_>> for Kept {
    fn from(who: &Who<'_>) -> Self {
        Self {
            event: who.event,
            reason: who.reason,
            tier: who.tier.into(),
            dimension: who.dimension,
            identity: who.identity.map(Box::from),
            rule: who.rule.map(Box::from),
            outage: who.outage,
        }
    }
}

impl Kept {
    pub(super) fn who(&self) -> Who<'_> {
        Who {
            event: self.event,
            reason: self.reason,
            tier: &self.tier,
            dimension: self.dimension,
            identity: self.identity.as_deref(),
            rule: self.rule.as_deref(),
            outage: self.outage,
        }
    }
}

/// Answers that are told of in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Repeats {
    pub(super) count: u64,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// One event: one line.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) at: Timestamp,
    pub(super) told: Told,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all events are answers, and each is behind an Arc of its own")]
pub(super) enum Told {
    Answer {
        who: Kept,
        numbers: Numbers,
        excerpt: Option<Excerpt>,
        /// More than one, which have no excerpt.
        repeats: Option<Repeats>,
    },
    /// Something that an operator did: names and texts.
    Act(AuditEvent, Vec<(&'static str, String)>),
}

impl Event {
    /// What of that happened: more than one where it was folded.
    pub(super) fn times(&self) -> u64 {
        match &self.told {
            Told::Answer { repeats: Some(repeats), .. } => repeats.count,
            _ => 1,
        }
    }

    /// The event as a line, its end included. `replica` is this process's name.
    pub(super) fn line(&self, replica: &str) -> String {
        let mut line = Vec::with_capacity(512);
        // Writing into a Vec cannot fail, and neither can texts and numbers be no JSON.
        let _ = self.write(&mut line, replica);
        line.push(b'\n');
        String::from_utf8(line).unwrap_or_default()
    }

    fn write(&self, line: &mut Vec<u8>, replica: &str) -> serde_json::Result<()> {
        let mut json = serde_json::Serializer::with_formatter(line, OneLine);
        let mut fields = Fields(json.serialize_map(None)?);
        fields.put("v", VERSION)?;
        let kind = match &self.told {
            Told::Answer { who, .. } => who.event,
            Told::Act(kind, _) => *kind,
        };
        fields.put("event", kind.word())?;
        fields.put("time", time(self.at))?;
        fields.put("replica", replica)?;
        match &self.told {
            Told::Answer { who, numbers, excerpt, repeats } => {
                fields.who(&who.who())?;
                fields.numbers(numbers)?;
                fields.repeats(repeats.as_ref())?;
                for (name, part) in excerpt.iter().flat_map(Excerpt::parts) {
                    fields.put(name, String::from_utf8_lossy(part))?;
                }
            }
            Told::Act(_, texts) => texts.iter().try_for_each(|(name, text)| fields.put(name, text))?,
        }
        fields.0.end()
    }
}

type Map<'a> = serde_json::ser::Compound<'a, &'a mut Vec<u8>, OneLine>;

struct Fields<'a>(Map<'a>);

impl Fields<'_> {
    fn put(&mut self, name: &'static str, value: impl Serialize) -> serde_json::Result<()> {
        self.0.serialize_entry(name, &value)
    }

    fn maybe(&mut self, name: &'static str, value: Option<impl Serialize>) -> serde_json::Result<()> {
        value.map_or(Ok(()), |value| self.put(name, value))
    }

    fn who(&mut self, who: &Who<'_>) -> serde_json::Result<()> {
        self.maybe("reason", who.reason.map(Reason::word))?;
        self.put("tier", who.tier)?;
        self.maybe("dimension", who.dimension.map(Dimension::name))?;
        self.maybe("identity", who.identity)?;
        self.maybe("rule", who.rule)?;
        self.outage(who.outage)
    }

    fn numbers(&mut self, numbers: &Numbers) -> serde_json::Result<()> {
        self.outage(numbers.outage)?;
        self.maybe("limit", numbers.bucket.map(|(limit, _)| limit))?;
        self.maybe("remaining", numbers.bucket.map(|(_, remaining)| remaining))?;
        self.maybe("retry_after", numbers.retry_after)?;
        match numbers.cost {
            // Without `.0`: most costs are whole.
            whole if whole.fract() == 0.0 && whole < 9e15 => self.put("cost", whole as u64)?,
            cost => self.put("cost", cost)?,
        }
        self.maybe("source", numbers.source.map(Source::word))
    }

    fn outage(&mut self, outage: Option<(&str, &str)>) -> serde_json::Result<()> {
        self.maybe("policy", outage.map(|(policy, _)| policy))?;
        self.maybe("store_error", outage.map(|(_, error)| error))
    }

    fn repeats(&mut self, repeats: Option<&Repeats>) -> serde_json::Result<()> {
        self.maybe("count", repeats.map(|repeats| repeats.count))?;
        self.maybe("first", repeats.map(|repeats| time(repeats.first)))?;
        self.maybe("last", repeats.map(|repeats| time(repeats.last)))
    }
}

/// RFC 3339 in UTC, to the millisecond.
fn time(at: Timestamp) -> String {
    /// The last second of the year 9999: four digits are all that the format has for years.
    const LAST: u64 = 253_402_300_799_000_000;
    let since_epoch = Duration::from_micros(at.micros.min(LAST));
    humantime::format_rfc3339_millis(UNIX_EPOCH + since_epoch).to_string()
}

/// JSON on one line, whatever reads it. Of what JSON allows as it is, this escapes what a terminal or an editor takes for
/// the end of a line or for a command, or what makes text look other than it is.
struct OneLine;

impl Formatter for OneLine {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, odd)) = rest.char_indices().find(|(_, letter)| deceives(*letter)) {
            writer.write_all(&rest.as_bytes()[..at])?;
            write!(writer, "\\u{:04x}", u32::from(odd))?;
            rest = &rest[at + odd.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

/// DEL and the C1 controls; the line and paragraph separators; what turns the direction of text; what is not seen. All
/// of them have four hex digits.
fn deceives(letter: char) -> bool {
    matches!(letter, '\u{7f}'..='\u{9f}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use proptest::prelude::*;

    fn denied(identity: &str, path: &[u8], id: &[u8]) -> Event {
        let who = Who {
            event: AuditEvent::Denied,
            reason: Some(Reason::Exhausted),
            tier: "free",
            dimension: Some(Dimension::User),
            identity: Some(identity),
            rule: None,
            outage: None,
        };
        let mut request = Request { method: b"POST", host: b"h", path, ..Request::default() };
        request.headers.push((REQUEST_ID.as_bytes(), id));
        let told = Told::Answer {
            who: Kept::from(&who),
            numbers: Numbers { cost: 1.0, ..Numbers::default() },
            excerpt: Some(Excerpt::of(&request)),
            repeats: None,
        };
        Event { at: Timestamp { micros: 1_700_000_000_123_456 }, told }
    }

    fn read(line: &str) -> serde_json::Value {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn an_event_is_a_line_of_json_with_the_version_first() {
        let line = denied("alice", b"/v1?key=secret", b"7").line("pod-1");
        let expected = "{\"v\":1,\"event\":\"denied\",\"time\":\"2023-11-14T22:13:20.123Z\",\"replica\":\"pod-1\",\
                        \"reason\":\"exhausted\",\"tier\":\"free\",\"dimension\":\"user\",\"identity\":\"alice\",\
                        \"cost\":1,\"method\":\"POST\",\"host\":\"h\",\"path\":\"/v1\",\"request_id\":\"7\"}\n";
        assert_eq!(line, expected);
    }

    #[test]
    fn what_would_deceive_a_reader_is_escaped_and_reads_back() {
        let odd = "\u{7f}\u{85}\u{9b}31m\u{2028}\u{2029}\u{202e}\u{feff}\n\"\\\u{1b}[2J é \u{1f980}";
        let line = denied(odd, b"/", odd.as_bytes()).line("r");
        assert_eq!(read(&line)["identity"], odd);
        assert_eq!(read(&line)["request_id"], odd);
        assert!(!line.trim_end().chars().any(|letter| letter.is_control() || deceives(letter)), "{line:?}");
        assert!(line.contains("é \u{1f980}"), "what is seen stays as it is: {line}");
    }

    #[test]
    fn what_is_no_text_or_too_long_is_told_as_far_as_it_can_be() {
        let told = read(&denied("u", b"/\xff\xfe", &[b'x'; 1000]).line("r"));
        assert_eq!(told["path"], "/\u{fffd}\u{fffd}");
        assert_eq!(told["request_id"].as_str().unwrap().len(), MAX_REQUEST_ID);
        let long = "é".repeat(300);
        let told = read(&denied("u", format!("/{long}").as_bytes(), b"").line("r"));
        assert_eq!(told["path"].as_str().unwrap(), format!("/{}", "é".repeat(255)), "no half of a letter");
        assert_eq!(told.get("request_id"), None);
        assert_eq!(cut(&[0x80; 1000], 512).len(), 512, "what is no text has no letters to keep whole");
    }

    proptest! {
        #[test]
        fn whatever_is_sent_an_event_is_one_line(path in any::<Vec<u8>>(), id in any::<Vec<u8>>(), who in any::<String>()) {
            let line = denied(&who, &path, &id).line("r");
            prop_assert_eq!(line.matches(['\n', '\r', '\u{85}', '\u{2028}']).count(), 1);
            prop_assert!(line.ends_with('\n'));
            prop_assert_eq!(&read(&line)["identity"], &who);
        }
    }
}
