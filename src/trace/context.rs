//! Reads `traceparent`: which span a check belongs to, as the W3C's Trace Context says.
//!
//! Takes bytes that anybody may have written. Whatever is not exactly as it should be is no parent.

use opentelemetry::trace::{SpanId, TraceId};

/// The span that caused a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    pub(super) trace: TraceId,
    pub(super) span: SpanId,
    pub(super) sampled: bool,
}

/// Bytes of `version-trace-span-flags`, of which a later version may append to.
const LENGTH: usize = 55;

impl Parent {
    /// Reads the value of a `traceparent`. Looks at no more than its first 56 bytes.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (known, more) = value.split_at_checked(LENGTH)?;
        let version = hex::<1>(&known[..2])?[0];
        let length_fits = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.first().is_none_or(|byte| *byte == b'-'),
        };
        let parted = [2, 35, 52].iter().all(|place| known[*place] == b'-');
        if !length_fits || !parted {
            return None;
        }
        let trace = TraceId::from_bytes(hex(&known[3..35])?);
        let span = SpanId::from_bytes(hex(&known[36..52])?);
        let [flags] = hex(&known[53..])?;
        let valid = trace != TraceId::INVALID && span != SpanId::INVALID;
        valid.then_some(Self { trace, span, sampled: flags & 1 == 1 })
    }
}

/// Lower-case hex digits, two for each byte.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn parse(text: &str) -> Option<Parent> {
        Parent::parse(text.as_bytes())
    }

    #[test]
    fn the_parent_is_read_with_its_flag() {
        for (flags, sampled) in [("00", false), ("01", true), ("02", false), ("03", true), ("ff", true)] {
            let parent = parse(&format!("00-{TRACE}-{SPAN}-{flags}")).unwrap();
            assert_eq!(parent.trace, TraceId::from_hex(TRACE).unwrap());
            assert_eq!(parent.span, SpanId::from_hex(SPAN).unwrap());
            assert_eq!(parent.sampled, sampled, "{flags}");
        }
    }

    #[test]
    fn a_later_version_may_say_more_behind_a_dash() {
        for version in ["01", "cc", "fe"] {
            let start = format!("{version}-{TRACE}-{SPAN}-01");
            assert!(parse(&start).is_some());
            assert!(parse(&format!("{start}-what-comes")).is_some());
            assert_eq!(parse(&format!("{start}.")), None);
            assert_eq!(parse(&format!("{start}1")), None);
        }
    }

    #[test]
    fn whatever_is_not_exactly_right_is_no_parent() {
        let zeros = ["0".repeat(32), "0".repeat(16)];
        let bad = [
            String::new(),
            "00".to_owned(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", zeros[0]),
            format!("00-{TRACE}-{}-01", zeros[1]),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-"),
            format!("00-{TRACE}-{SPAN}"),
            format!("0-{TRACE}-{SPAN}-001"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-0A"),
            format!("0G-{TRACE}-{SPAN}-01"),
            format!("00_{TRACE}_{SPAN}_01"),
            format!("00-{}x-{SPAN}-01", &TRACE[1..]),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01\n"),
            "\u{e9}".repeat(40),
            "0".repeat(60_000),
            "-".repeat(LENGTH),
        ];
        for text in bad {
            assert_eq!(parse(&text), None, "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..120)) {
            let _ = Parent::parse(&bytes);
        }
    }
}
