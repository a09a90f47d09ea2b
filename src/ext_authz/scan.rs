//! Finds one value in an encoded google.protobuf.Struct without decoding the rest.
//!
//! A decoder gives up on messages nested a hundred deep, and a check that cannot be decoded is one that Envoy may let
//! pass: a token with deeply nested claims would lift all limits. Here depth is that of the path asked for.

use crate::policy::request::Scalar;
use bytes::Buf;
use prost::encoding::decode_varint;

// Field numbers of Struct, of the entries of its map, and of Value.
const FIELDS: u64 = 1;
const KEY: u64 = 1;
const VALUE: u64 = 2;
const NUMBER: u64 = 2;
const TEXT: u64 = 3;
const STRUCT: u64 = 5;

/// The scalar at `path` in an encoded Struct. Damaged bytes read as nothing found.
pub(super) fn find<'a>(mut fields: &'a [u8], path: &[String]) -> Option<Scalar<'a>> {
    let (last, parents) = path.split_last()?;
    for name in parents {
        fields = match one_of(member(fields, name)?)? {
            (STRUCT, Wire::Bytes(inner)) => inner,
            _ => return None,
        };
    }
    match one_of(member(fields, last)?)? {
        (TEXT, Wire::Bytes(text)) => Some(Scalar::Text(text)),
        (NUMBER, Wire::Fixed64(bits)) => Some(Scalar::Number(f64::from_bits(bits))),
        _ => None,
    }
}

/// The encoded Value of a member. Of several of one name the last counts, as for any map.
fn member<'a>(fields: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let entries = Message(fields).filter_map(|(number, entry)| match entry {
        Wire::Bytes(entry) if number == FIELDS => Some(entry),
        _ => None,
    });
    entries
        .filter(|entry| bytes_of(entry, KEY).unwrap_or_default() == name.as_bytes())
        .last()
        .and_then(|entry| bytes_of(entry, VALUE))
}

fn bytes_of(message: &[u8], wanted: u64) -> Option<&[u8]> {
    let found = Message(message).filter_map(|(number, value)| match value {
        Wire::Bytes(bytes) if number == wanted => Some(bytes),
        _ => None,
    });
    found.last()
}

/// The field that is set in a message that is a oneof.
fn one_of(message: &[u8]) -> Option<(u64, Wire<'_>)> {
    Message(message).last()
}

/// The fields of an encoded message: number and value. Ends where the bytes make no sense.
struct Message<'a>(&'a [u8]);

#[derive(Clone, Copy)]
enum Wire<'a> {
    Varint,
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

impl<'a> Iterator for Message<'a> {
    type Item = (u64, Wire<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let tag = decode_varint(&mut self.0).ok()?;
        let value = match tag & 7 {
            0 => {
                decode_varint(&mut self.0).ok()?;
                Wire::Varint
            }
            1 => Wire::Fixed64(self.0.try_get_u64_le().ok()?),
            2 => {
                let length = usize::try_from(decode_varint(&mut self.0).ok()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Wire::Bytes(bytes)
            }
            5 => {
                self.0.try_get_u32_le().ok()?;
                Wire::Fixed32
            }
            _ => return None,
        };
        Some((tag >> 3, value))
    }
}
