//! The names of the headers in answers, and how one is built so that Envoy does with it what is meant.
//!
//! Values are numbers and constants. Text that a client wrote never goes into a header: Envoy writes CR and LF out as
//! they are.

use super::proto::header_value_option::HeaderAppendAction;
use super::proto::{BoolValue, HeaderValue, HeaderValueOption};
use bytes::Bytes;

pub const RETRY_AFTER: &str = "retry-after";
pub const LIMIT: &str = "x-ratelimit-limit";
pub const REMAINING: &str = "x-ratelimit-remaining";
pub const RESET: &str = "x-ratelimit-reset";
/// To the upstream: the request passes without the store having been asked with success.
pub const DEGRADED: &str = "x-ratelimit-degraded";
pub const IETF_LIMIT: &str = "ratelimit";
pub const IETF_POLICY: &str = "ratelimit-policy";
pub const CONTENT_TYPE: &str = "content-type";
pub const GRPC_STATUS: &str = "grpc-status";
/// Milliseconds after which a gRPC client may try again.
pub const GRPC_PUSHBACK: &str = "grpc-retry-pushback-ms";
/// The W3C's: the span that a request belongs to.
pub const TRACEPARENT: &str = "traceparent";

/// A header that replaces any of its name.
///
/// Envoy 1.40 reads this in three ways. In a denial `append_action` is ignored, and `append: true` would drop the
/// header. To the upstream both are ignored. In what is added to the client's response only `append_action` replaces
/// the upstream's own, and leaving both unset would put ours next to it.
pub fn replace(name: &'static str, value: impl Into<Bytes>) -> HeaderValueOption {
    let header = HeaderValue {
        key: Bytes::from_static(name.as_bytes()),
        // Envoy sends an empty header when only raw_value is filled.
        value: value.into(),
        raw_value: Bytes::new(),
    };
    HeaderValueOption {
        header: Some(header),
        append: Some(BoolValue { value: false }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
    }
}

/// A number as header text.
pub fn number(number: u64) -> Bytes {
    number.to_string().into()
}
