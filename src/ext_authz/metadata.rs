//! The dynamic metadata of an answer: what Envoy's access log can show under `envoy.filters.http.ext_authz`.
//!
//! It is an encoded `google.protobuf.Struct`, written into one buffer: a tree of its entries would be made for every
//! check, and taken apart again to be sent.

use super::proto::{CheckResponse, Struct};
use crate::bucket::{Dimension, Key};
use crate::limiter::counted_as;
use crate::policy::Plan;
use crate::policy::api_key::Digester;
use crate::policy::decision::{Decision, Mode, Outcome};
use bytes::{BufMut, Bytes};
use prost::DecodeError;
use prost::Message as _;
use prost::encoding::{encode_varint, encoded_len_varint};

/// Room for all that is usually told, so that the buffer does not grow.
const ROOM: usize = 320;

/// Length-delimited field 1: an entry of a Struct, and the key in it.
const ENTRY: u8 = 0x0a;
const KEY: u8 = ENTRY;
/// Length-delimited field 2: the value in an entry.
const VALUE: u8 = 0x12;
/// In a Value: field 2, eight bytes; field 3, length-delimited; field 4, a varint.
const NUMBER: u8 = 0x11;
const TEXT: u8 = 0x1a;
const TRUTH: u8 = 0x20;

/// What is told of a decision.
pub(super) fn write(plan: &Plan<'_>, decision: &Decision, digester: &Digester) -> Bytes {
    if !crate::metrics::OBSERVED {
        return Bytes::new();
    }
    let mut fields = Fields(Vec::with_capacity(ROOM));
    fields.text("decision", counted_as(&decision.outcome).word());
    fields.text("tier", plan.tier);
    plan.rule.iter().for_each(|rule| fields.text("rule", rule));
    plan.key_name.iter().for_each(|name| fields.text("key_name", name));
    decision.store_error.iter().for_each(|kind| fields.text("store_error", kind));
    let binding = decision.binding.and_then(|(place, _)| plan.charges.get(place));
    if let Some(charge) = binding.or_else(|| plan.never_fits().next()) {
        fields.text("dimension", charge.key.dimension.name());
        identity(&mut fields, &charge.key, digester);
    }
    if let Some((_, standing)) = &decision.binding {
        fields.number("limit", standing.limit);
        fields.number("remaining", standing.remaining);
    }
    if let Outcome::Denied { retry_after, .. } = decision.outcome {
        fields.number("retry_after", retry_after);
    }
    if decision.degraded() {
        fields.truth("degraded");
    }
    if decision.mode == Mode::Shadow {
        fields.truth("shadow");
    }
    fields.0.into()
}

/// What an answer tells, as a tree.
///
/// # Errors
/// When it is no Struct.
pub fn read(response: &CheckResponse) -> Result<Struct, DecodeError> {
    Struct::decode(response.dynamic_metadata.clone())
}

/// A key's id is a digest already; the others are digested here, under the pepper if there is one, so that an access log
/// names nobody.
fn identity(fields: &mut Fields, key: &Key, digester: &Digester) {
    match key.dimension {
        Dimension::Key => fields.text("identity", key.id()),
        Dimension::User | Dimension::Ip => fields.text("identity", &digester.digest(key.id().as_bytes()).to_string()),
    }
}

/// Entries of a Struct, encoded.
struct Fields(Vec<u8>);

impl Fields {
    fn text(&mut self, name: &str, text: &str) {
        self.entry(name, 1 + encoded_len_varint(text.len() as u64) + text.len());
        self.0.put_u8(TEXT);
        encode_varint(text.len() as u64, &mut self.0);
        self.0.put_slice(text.as_bytes());
    }

    fn number(&mut self, name: &str, number: u64) {
        self.entry(name, 9);
        self.0.put_u8(NUMBER);
        self.0.put_f64_le(number as f64);
    }

    fn truth(&mut self, name: &str) {
        self.entry(name, 2);
        self.0.put_slice(&[TRUTH, 1]);
    }

    /// Begins an entry whose value has so many bytes.
    fn entry(&mut self, name: &str, value: usize) {
        let sized = |length: usize| 1 + encoded_len_varint(length as u64) + length;
        self.0.put_u8(ENTRY);
        encode_varint((sized(name.len()) + sized(value)) as u64, &mut self.0);
        self.0.put_u8(KEY);
        encode_varint(name.len() as u64, &mut self.0);
        self.0.put_slice(name.as_bytes());
        self.0.put_u8(VALUE);
        encode_varint(value as u64, &mut self.0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::ext_authz::proto::{FieldEntry, Value, value::Kind};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_reads_as_the_struct_that_it_is(name in ".{1,200}", text in ".{0,400}", number: u64) {
            let mut fields = Fields(Vec::new());
            fields.text(&name, &text);
            fields.number(&name, number);
            fields.truth(&name);
            let kinds = [Kind::StringValue(text.into()), Kind::NumberValue(number as f64), Kind::BoolValue(true)];
            let entry = |kind| FieldEntry { key: name.clone().into(), value: Some(Value { kind: Some(kind) }) };
            let expected = Struct { fields: kinds.map(entry).to_vec() };
            prop_assert_eq!(Struct::decode(&*fields.0).unwrap(), expected.clone());
            prop_assert_eq!(expected.encode_to_vec(), fields.0);
        }
    }
}
