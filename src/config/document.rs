//! YAML text -> a plain tree of maps, lists and scalars, with every fault of the document that the tree outlives.
//!
//! Knows YAML's traps: tabs, duplicate keys, keys that are no text, tags, `.nan`, several documents, endless nesting.
//! Knows none of tidegate's keys.

use super::fault::{Faults, field, item, quoted};
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, IgnoredAny, MapAccess, SeqAccess, VariantAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::RefCell;
use std::fmt;

/// The largest file that is read, in bytes.
pub const MAX_BYTES: usize = 16 << 20;

/// Brackets that may be open at once, quoted ones and comments included. The scanner's work grows with the square of
/// the open brackets; serde_yaml gives up at 128 levels, but only after scanning all of them.
const MAX_OPEN_BRACKETS: usize = 1000;

/// What the empty file's author is told.
const START_HERE: &str = "`tidegate config default` prints a config to start from";

/// Reads one document. `None` when nothing can be made of it, with the reason in `faults`.
pub(super) fn read(bytes: &[u8], faults: &mut Faults) -> Option<Value> {
    let text = readable(bytes, faults)?;
    let collected = RefCell::new(std::mem::take(faults));
    let root = Node { path: String::new(), faults: &collected };
    let tree = root.deserialize(serde_yaml::Deserializer::from_str(text));
    *faults = collected.into_inner();
    match tree {
        Ok(Value::Object(map)) => Some(Value::Object(map)),
        Ok(Value::Null) if faults.is_empty() => refuse(faults, format!("the file is empty; {START_HERE}")),
        Ok(_) if faults.is_empty() => refuse(faults, format!("the file is no mapping of keys to values; {START_HERE}")),
        Ok(_) => None,
        Err(error) => {
            let (path, text) = explained(&error, text);
            faults.add(path, text);
            None
        }
    }
}

fn refuse<T>(faults: &mut Faults, text: impl Into<String>) -> Option<T> {
    faults.add("file", text);
    None
}

fn readable<'t>(bytes: &'t [u8], faults: &mut Faults) -> Option<&'t str> {
    if bytes.len() > MAX_BYTES {
        return refuse(faults, format!("is longer than {} MiB", MAX_BYTES >> 20));
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
            faults.add(format!("line {line}"), "holds bytes that are not UTF-8; save the file as UTF-8");
            return None;
        }
    };
    if let Some(line) = nested_beyond_reason(text) {
        faults.add(format!("line {line}"), "is nested too deeply");
        return None;
    }
    Some(text.strip_prefix('\u{feff}').unwrap_or(text))
}

fn nested_beyond_reason(text: &str) -> Option<usize> {
    let (mut line, mut open) = (1, 0_usize);
    for byte in text.bytes() {
        match byte {
            b'\n' => line += 1,
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        if open > MAX_OPEN_BRACKETS {
            return Some(line);
        }
    }
    None
}

fn explained(error: &serde_yaml::Error, text: &str) -> (String, String) {
    let said = error.to_string();
    if said.contains("more than one document") {
        return ("file".into(), "holds more than one document; keep one, without `---` between".into());
    }
    let Some(at) = error.location() else {
        return ("file".into(), format!("is no YAML: {said}"));
    };
    let path = format!("line {}, column {}", at.line(), at.column());
    let what = said.split(" at line ").next().unwrap_or(&said);
    let indent = text.lines().nth(at.line().saturating_sub(1)).unwrap_or_default();
    let indent = &indent[..indent.len() - indent.trim_start().len()];
    if indent.contains('\t') || text.as_bytes().get(at.index()) == Some(&b'\t') {
        return (path, "a tab; indent with spaces".into());
    }
    if what.contains("recursion limit") {
        return (path, "is nested too deeply".into());
    }
    (path, format!("is no YAML: {what}"))
}

/// A place in the document that is about to be read.
struct Node<'f> {
    path: String,
    faults: &'f RefCell<Faults>,
}

impl Node<'_> {
    fn fault(&self, text: impl Into<String>) {
        let path = if self.path.is_empty() { "file" } else { self.path.as_str() };
        self.faults.borrow_mut().add(path, text);
    }

    fn at(&self, path: String) -> Self {
        Self { path, ..*self }
    }

    fn number(&self, number: f64) -> Value {
        match Number::from_f64(number) {
            Some(number) => Value::Number(number),
            None => {
                self.fault(format!("{} is no finite number; write a finite one", shown(number)));
                Value::Null
            }
        }
    }

    fn insert(&self, map: &mut Map<String, Value>, key: String, value: Value) {
        if map.contains_key(&key) {
            let what = if self.path == "tiers" { "tier" } else { "key" };
            self.at(field(&self.path, &key)).fault(format!("the {what} {} is given twice; keep one", quoted(&key)));
        } else {
            map.insert(key, value);
        }
    }
}

fn shown(number: f64) -> &'static str {
    match number {
        f64::INFINITY => ".inf",
        f64::NEG_INFINITY => "-.inf",
        _ => ".nan",
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(self.number(value as f64))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok(self.number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(self.number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = access.next_element_seed(self.at(item(&self.path, list.len())))? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key_seed(self.at(self.path.clone()))? {
            match key {
                Value::String(key) => {
                    let value = access.next_value_seed(self.at(field(&self.path, &key)))?;
                    self.insert(&mut map, key, value);
                }
                other => {
                    access.next_value::<IgnoredAny>()?;
                    self.at(field(&self.path, &other.to_string())).fault("a key must be text; put it in quotes");
                }
            }
        }
        Ok(Value::Object(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<Value, A::Error> {
        let (tag, value) = access.variant::<String>()?;
        value.newtype_variant::<IgnoredAny>()?;
        self.fault(format!("the tag !{} means nothing here; remove it", tag.trim_start_matches('!')));
        Ok(Value::Null)
    }
}
