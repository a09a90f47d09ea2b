//! How a bucket is shown as JSON: by commands and by the admin endpoint alike.

use crate::bucket::{Key, State, Timestamp};
use crate::policy::Policy;
use serde_json::{Value, json};
use std::time::{Duration, UNIX_EPOCH};

/// What is stored of a bucket, and what that is to the tiers that limit its dimension. Nothing stored: it is full.
pub fn bucket(policy: &Policy, key: &Key, state: Option<State>) -> Value {
    let limits = policy.tiers.iter().filter_map(|tier| {
        let quota = tier.limits.of(key.dimension)?;
        Some(json!({"tier": tier.name, "max_tokens": quota.max_tokens(), "refill_rate": quota.refill_rate()}))
    });
    let mut told = json!({"key": key.as_str(), "stored": state.is_some(), "limits": limits.collect::<Vec<_>>()});
    if let Some(State { tokens, last_refill }) = state {
        told["tokens"] = tokens.into();
        told["last_refill"] = moment(last_refill);
    }
    told
}

/// A time as Redis has it, in seconds, and as people read it.
pub fn moment(at: Timestamp) -> Value {
    json!({"seconds": at.micros as f64 / 1e6, "time": rfc3339(at)})
}

/// As people read it, with microseconds. humantime writes years up to 9999: a foreign value beyond is shown as the last
/// moment.
pub fn rfc3339(at: Timestamp) -> String {
    const LAST: u64 = 253_402_300_799_999_999;
    humantime::format_rfc3339_micros(UNIX_EPOCH + Duration::from_micros(at.micros.min(LAST))).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_beyond_the_calendar_is_the_last_one() {
        let of = |micros| moment(Timestamp { micros });
        let told = json!({"seconds": 1_700_000_000.000_001, "time": "2023-11-14T22:13:20.000001Z"});
        assert_eq!(of(1_700_000_000_000_001), told);
        assert!(rfc3339(Timestamp { micros: u64::MAX }).starts_with("9999"));
    }
}
