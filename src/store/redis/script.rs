//! The scripts in `lua/`: how they are called, and what their replies mean.

use crate::bucket::{Charge, Dimension, Key, Level, Levels, Quota, Source, State, Taken, Timestamp};
use crate::store::StoreError;
use deadpool_redis::redis::{self, Cmd, Value};
use std::sync::Arc;

/// A script's text and the digest Redis knows it by.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    digest: String,
}

impl Script {
    pub(super) fn take() -> Self {
        Self::new(include_str!("../../../lua/take.lua"))
    }

    pub(super) fn peek() -> Self {
        Self::new(include_str!("../../../lua/peek.lua"))
    }

    pub(super) fn refund() -> Self {
        Self::new(include_str!("../../../lua/refund.lua"))
    }

    fn new(text: &'static str) -> Self {
        Self { text, digest: redis::Script::new(text).get_hash().to_owned() }
    }
}

/// A script and what it is to be run with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'a> {
    pub(super) script: &'a Script,
    pub(super) charges: &'a [Charge],
    /// `None`: by the server's own clock.
    pub(super) now: Option<Timestamp>,
}

impl Run<'_> {
    /// EVALSHA: runs the script if the server knows it.
    pub(super) fn by_digest(&self) -> Cmd {
        command("EVALSHA", &self.script.digest, self.charges, self.now)
    }

    /// EVAL: runs the script, and makes the server know it. It needs no permission to use SCRIPT.
    pub(super) fn by_text(&self) -> Cmd {
        command("EVAL", self.script.text, self.charges, self.now)
    }
}

/// A take of nothing from a bucket of nobody's, to learn whether a server can do what a check needs. That is more than a
/// ping: a full or read-only server answers pings.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    script: Arc<Script>,
    charge: [Charge; 1],
}

impl Probe {
    /// No user id is stored with a `~` and this after it, so the bucket is nobody's.
    pub(super) fn new(key_prefix: &str) -> Self {
        Self::of(Arc::new(Script::take()), key_prefix, "~probe")
    }

    fn of(script: Arc<Script>, key_prefix: &str, id: &str) -> Self {
        let quota = Quota::parse(1.0, 1.0).expect("1 is finite and above 0");
        Self { script, charge: [Charge { key: Key::new(key_prefix, Dimension::User, id), quota, cost: 0.0 }] }
    }

    /// Where on a Cluster its bucket is.
    pub(super) fn slot(&self) -> u16 {
        slot_of(&self.charge[0].key)
    }

    /// The same with a key that lies in a slot of which `fits` is true; without such a key among many, the same.
    pub(super) fn in_slot(&self, key_prefix: &str, fits: impl Fn(u16) -> bool) -> Self {
        /// Enough for a node with a hundredth of the slots to be all but sure of a key.
        const TRIED: u32 = 2000;
        let names = (0..TRIED).map(|number| format!("~probe{number}"));
        let found = names.map(|id| Self::of(self.script.clone(), key_prefix, &id)).find(|probe| fits(probe.slot()));
        found.unwrap_or_else(|| self.clone())
    }

    pub(super) fn run(&self) -> Run<'_> {
        Run { script: &self.script, charges: &self.charge, now: None }
    }
}

/// The Cluster slot of a key. No key of this service has braces, so all of it is hashed.
pub(super) fn slot(key: &[u8]) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(key) % SLOTS
}

/// The Cluster slot of a bucket.
pub(super) fn slot_of(key: &Key) -> u16 {
    slot(key.as_str().as_bytes())
}

/// Slots of a Cluster.
pub(super) const SLOTS: u16 = 16_384;

/// Room for one charge's key and numbers: a guess that a usual request does not exceed.
const CHARGE_BYTES: usize = 96;

fn command(name: &str, script: &str, charges: &[Charge], now: Option<Timestamp>) -> Cmd {
    let mut command = Cmd::with_capacity(4 + 5 * charges.len(), 32 + script.len() + CHARGE_BYTES * charges.len());
    command.arg(name).arg(script).arg(charges.len());
    for charge in charges {
        command.arg(charge.key.as_str());
    }
    match now {
        Some(now) => command.arg(now.micros),
        None => command.arg(""),
    };
    for Charge { quota, cost, .. } in charges {
        command.arg(quota.max_tokens()).arg(quota.refill_rate()).arg(*cost).arg(quota.ttl());
    }
    command
}

/// Reads a script's reply, such as `1 59 0 9 0 119.5 0`.
pub(super) fn parse(reply: &Value, buckets: usize) -> Result<Taken, StoreError> {
    let taken = match reply {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok().and_then(parse_text),
        _ => None,
    };
    taken
        .filter(|taken| taken.levels.len() == buckets)
        .ok_or_else(|| StoreError::Protocol(format!("{reply:?}").chars().take(200).collect()))
}

fn parse_text(text: &str) -> Option<Taken> {
    let mut words = text.split(' ');
    let admitted = match words.next()? {
        "1" => true,
        "0" => false,
        _ => return None,
    };
    let mut levels = Levels::new();
    while let Some(tokens) = words.next() {
        levels.push(Level { tokens: tokens.parse().ok()?, elapsed: words.next()?.parse().ok()? });
    }
    Some(Taken { admitted, levels, source: Source::Store })
}

/// Reads a stored bucket's fields as the scripts do. What they take for a full bucket is `None`.
pub(super) fn state(tokens: Option<&[u8]>, last_refill: Option<&[u8]>) -> Option<State> {
    let finite = |field: Option<&[u8]>| {
        let number: f64 = std::str::from_utf8(field?).ok()?.trim().parse().ok()?;
        number.is_finite().then_some(number)
    };
    let tokens = finite(tokens)?;
    let micros = (finite(last_refill)? * 1e6 + 0.5).floor() as u64;
    Some(State { tokens, last_refill: Timestamp { micros } })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn a_reply_of_another_shape_is_a_protocol_error() {
        for text in ["", "1", "2 1.0 0", "1 x 0", "1 1.0", "1 1.0 x", "1 1.0 0 2.0 0", "1  1.0 0"] {
            let reply = Value::BulkString(text.into());
            assert_eq!(parse(&reply, 1).unwrap_err().kind(), "protocol", "{text}");
        }
        assert_eq!(parse(&Value::Nil, 0).unwrap_err().kind(), "protocol");
    }

    #[test]
    fn slots_are_those_of_redis() {
        // As CLUSTER KEYSLOT says.
        assert_eq!(slot(b"123456789"), 12_739);
    }

    #[test]
    fn a_stamp_survives_storage_to_the_microsecond() {
        for micros in [0, 1, 999_999, 1_700_000_000_123_457, 4_294_967_295_999_999] {
            let text = format!("{:.6}", micros as f64 / 1e6);
            let state = state(Some(b"1"), Some(text.as_bytes())).unwrap();
            assert_eq!(state.last_refill.micros, micros);
        }
    }
}
