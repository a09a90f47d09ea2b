//! What the operator keeps of an API key outside the configuration: named fields -> [`ApiKey`].
//!
//! Whatever cannot be followed is left out and told, and never gives the caller more. Knows no store; that the fields
//! are those of a Redis hash is others' affair.

use super::api_key::{ApiKey, Digest};
use super::limits::Limits;
use super::tier::Tiers;
use crate::bucket::{Dimension, Quota};

/// Fields and values, as they are stored.
pub type Fields = [(Vec<u8>, Vec<u8>)];

pub const TIER: &str = "tier";
pub const NAME: &str = "name";
pub const SUSPENDED: &str = "suspended";

/// What follows the prefix in the name of the entry of a key.
const ENTRY: &str = "apikey:";

/// The longest name, in bytes.
const MAX_NAME: usize = 128;

/// A field that could not be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ignored {
    pub field: &'static str,
    /// What is wrong with it, and what counts instead.
    pub why: &'static str,
}

/// Where the fields of a key are kept, such as `rl:apikey:27bfcdcb2e1daa6e9bd7d26e2f0ab4cd`.
pub fn entry(key_prefix: &str, digest: &Digest) -> String {
    format!("{key_prefix}{ENTRY}{digest}")
}

/// How all such names begin.
pub fn entries(key_prefix: &str) -> String {
    format!("{key_prefix}{ENTRY}")
}

/// The fields of an override: `max_tokens` and `refill_rate`.
pub const fn quota_fields(dimension: Dimension) -> [&'static str; 2] {
    match dimension {
        Dimension::User => ["per_user.max_tokens", "per_user.refill_rate"],
        Dimension::Key => ["per_key.max_tokens", "per_key.refill_rate"],
        Dimension::Ip => ["per_ip.max_tokens", "per_ip.refill_rate"],
    }
}

/// Whether a field means something here.
pub fn is_known(field: &[u8]) -> bool {
    let quotas = Dimension::ALL.into_iter().flat_map(quota_fields);
    [TIER, NAME, SUSPENDED].into_iter().chain(quotas).any(|known| known.as_bytes() == field)
}

/// Whether a text does for a name: people and logs read it.
pub fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// What the fields say of a key, and which of them could not be followed. Fields of other names are nobody's.
pub fn read(digest: &Digest, fields: &Fields, tiers: &Tiers) -> (ApiKey, Vec<Ignored>) {
    let mut ignored = Vec::new();
    let mut quota = |dimension| quota(dimension, fields, &mut ignored);
    let limits = Limits { user: quota(Dimension::User), key: quota(Dimension::Key), ip: quota(Dimension::Ip) };
    let tier = value(fields, TIER).and_then(|name| {
        let tier = tiers.index(name);
        tell(&mut ignored, TIER, tier.is_none(), "names no tier of this configuration; the key has none of its own");
        tier
    });
    let name = value(fields, NAME).and_then(|name| {
        let name = std::str::from_utf8(name).ok().filter(|name| is_name(name));
        tell(&mut ignored, NAME, name.is_none(), "is no name; the digest stands for it");
        name
    });
    let suspended = value(fields, SUSPENDED).is_some_and(|text| {
        let suspended = flag(text);
        tell(&mut ignored, SUSPENDED, suspended.is_none(), "is neither true nor false; the key counts as suspended");
        suspended.unwrap_or(true)
    });
    let name = name.map_or_else(|| digest.to_string().into(), Into::into);
    (ApiKey { name, tier, suspended, limits }, ignored)
}

/// What the fields say of the tier, known or not: `None` when they do not.
pub fn tier_name(fields: &Fields) -> Option<&[u8]> {
    value(fields, TIER)
}

fn tell(ignored: &mut Vec<Ignored>, field: &'static str, wrong: bool, why: &'static str) {
    ignored.extend(wrong.then_some(Ignored { field, why }));
}

fn value<'f>(fields: &'f Fields, name: &str) -> Option<&'f [u8]> {
    fields.iter().find(|(field, _)| field == name.as_bytes()).map(|(_, value)| value.as_slice())
}

fn flag(text: &[u8]) -> Option<bool> {
    match text.to_ascii_lowercase().as_slice() {
        b"1" | b"true" => Some(true),
        b"0" | b"false" => Some(false),
        _ => None,
    }
}

/// An override counts as a whole: half of one would mix with whatever tier the key has.
fn quota(dimension: Dimension, fields: &Fields, ignored: &mut Vec<Ignored>) -> Option<Quota> {
    let names = quota_fields(dimension);
    let values = names.map(|name| value(fields, name));
    if values == [None, None] {
        return None;
    }
    let [max_tokens, refill_rate] = [0, 1].map(|place| {
        let number = values[place].and_then(number);
        tell(ignored, names[place], number.is_none(), "is missing or no number; the tier's limit stands");
        number
    });
    let (max_tokens, refill_rate) = (max_tokens?, refill_rate?);
    let quota = Quota::parse(max_tokens, refill_rate).ok();
    tell(ignored, names[0], quota.is_none(), "makes no quota with refill_rate; the tier's limit stands");
    quota
}

fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::super::tier::Tier;
    use super::*;

    fn tiers() -> Tiers {
        let tier = |name: &str| Tier { name: name.into(), limits: Limits::default(), on_store_error: None };
        Tiers::new(tier("free"), vec![tier("gold")])
    }

    fn digest() -> Digest {
        "f3abf2a6cc4f00987743db5f544ba345".parse().unwrap()
    }

    fn read_all(fields: &[(&str, &str)]) -> (ApiKey, Vec<&'static str>) {
        let fields: Vec<_> = fields.iter().map(|(field, value)| ((*field).into(), (*value).into())).collect();
        let (key, ignored) = read(&digest(), &fields, &tiers());
        (key, ignored.into_iter().map(|ignored| ignored.field).collect())
    }

    #[test]
    fn every_field_is_read() {
        let (key, ignored) = read_all(&[
            ("tier", "Gold"),
            ("name", "acme"),
            ("suspended", "TRUE"),
            ("per_key.max_tokens", "500"),
            ("per_key.refill_rate", " 0.5 "),
            ("colour", "red"),
        ]);
        let limits = Limits { key: Some(Quota::parse(500.0, 0.5).unwrap()), ..Limits::default() };
        assert_eq!(key, ApiKey { name: "acme".into(), tier: Some(1), suspended: true, limits });
        assert_eq!(ignored, [] as [&str; 0]);
    }

    #[test]
    fn no_field_at_all_is_a_key_of_which_nothing_is_said() {
        let nothing =
            ApiKey { name: digest().to_string().into(), tier: None, suspended: false, limits: Limits::default() };
        assert_eq!(read_all(&[]), (nothing, vec![]));
    }

    #[test]
    fn what_cannot_be_followed_gives_nothing_and_is_told() {
        for (field, value) in [
            ("tier", "platinum"),
            ("tier", ""),
            ("tier", "gold "),
            ("name", ""),
            ("name", "a\nb"),
            ("per_user.max_tokens", "many"),
            ("per_user.max_tokens", "inf"),
            ("per_ip.refill_rate", "-1"),
        ] {
            let mut fields = vec![(field, value)];
            if let Some(dimension) = field.strip_suffix("max_tokens") {
                fields.push((if dimension == "per_user." { "per_user.refill_rate" } else { "" }, "1"));
            }
            let (key, ignored) = read_all(&fields);
            assert_eq!((key.tier, key.limits), (None, Limits::default()), "{field} {value}");
            assert_eq!(&*key.name, digest().to_string());
            assert!(!ignored.is_empty(), "{field} {value}");
        }
    }

    #[test]
    fn half_an_override_is_none() {
        let (key, ignored) = read_all(&[("per_key.max_tokens", "1000000")]);
        assert_eq!((key.limits, ignored), (Limits::default(), vec!["per_key.refill_rate"]));
    }

    #[test]
    fn a_key_is_suspended_unless_it_is_clear_that_it_is_not() {
        for (text, suspended, told) in [
            ("1", true, 0),
            ("true", true, 0),
            ("0", false, 0),
            ("False", false, 0),
            ("yes", true, 1),
            ("no", true, 1),
            ("", true, 1),
        ] {
            let (key, ignored) = read_all(&[("suspended", text)]);
            assert_eq!((key.suspended, ignored.len()), (suspended, told), "{text}");
        }
    }
}
