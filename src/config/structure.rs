//! A plain tree -> the raw config, with every fault of structure at once: unknown keys, keys without a value, wrong
//! types, unknown words.
//!
//! serde stops at the first fault. So the offending node is taken out of the tree and serde is asked again, until it
//! is content. Knows no key but those under which secrets stand.

use super::fault::{Faults, MAX_FAULTS, field, item, listed, nearest, quoted};
use super::raw::Raw;
use serde::de::value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer, StrDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

/// Reads `tree`, leaving out what is wrong.
pub(super) fn read(mut tree: Value, faults: &mut Faults) -> Raw {
    for _ in 0..MAX_FAULTS {
        let error = match serde_path_to_error::deserialize::<_, Raw>(Strict { node: &tree, keyed: false }) {
            Ok(raw) => return raw,
            Err(error) => error,
        };
        let said = error.inner().to_string();
        let steps = steps(error.path(), said.starts_with("unknown variant"));
        let path = text_of(&steps);
        faults.add(path.as_str(), worded(&said, find(&tree, &steps), &path));
        if !take_out(&mut tree, &steps) {
            break;
        }
    }
    faults.add("file", "holds more faults than are told at once");
    Raw::default()
}

/// One step down the tree.
enum Step {
    Key(String),
    /// The key that says which form a value has, such as `header` in `{header: x-api-key}`.
    Form(String),
    Entry(usize),
}

fn steps(path: &Path, unknown_form: bool) -> Vec<Step> {
    let mut steps: Vec<Step> = path
        .iter()
        .filter_map(|segment| match segment {
            Segment::Map { key } => Some(Step::Key(key.clone())),
            Segment::Enum { variant } => Some(Step::Form(variant.clone())),
            Segment::Seq { index } => Some(Step::Entry(*index)),
            Segment::Unknown => None,
        })
        .collect();
    if unknown_form {
        while matches!(steps.last(), Some(Step::Form(_))) {
            steps.pop();
        }
    }
    steps
}

fn text_of(steps: &[Step]) -> String {
    steps.iter().fold(String::new(), |path, step| match step {
        Step::Key(key) | Step::Form(key) => field(&path, key),
        Step::Entry(index) => item(&path, *index),
    })
}

fn find<'t>(tree: &'t Value, steps: &[Step]) -> Option<&'t Value> {
    steps.iter().try_fold(tree, |node, step| match step {
        Step::Key(key) | Step::Form(key) => node.get(key),
        Step::Entry(index) => node.get(index),
    })
}

/// Takes the node out, or says that it cannot. An entry of a list becomes null, so that the others keep their places;
/// a form is taken out with the value that it is the form of.
fn take_out(tree: &mut Value, steps: &[Step]) -> bool {
    let Some((last, above)) = steps.split_last() else {
        return false;
    };
    let parent = above.iter().try_fold(&mut *tree, |node, step| match step {
        Step::Key(key) | Step::Form(key) => node.get_mut(key),
        Step::Entry(index) => node.get_mut(index),
    });
    match (last, parent) {
        (Step::Form(_), _) => take_out(tree, above),
        (Step::Key(key), Some(Value::Object(map))) => map.remove(key).is_some(),
        (Step::Entry(index), Some(Value::Array(list))) => {
            list.get_mut(*index).is_some_and(|entry| !std::mem::take(entry).is_null())
        }
        _ => false,
    }
}

/// serde's message in the words of an operator.
fn worded(said: &str, node: Option<&Value>, path: &str) -> String {
    if said == NO_VALUE {
        return NO_VALUE.into();
    }
    if said.starts_with("unknown field") {
        return unknown_key(said);
    }
    if said.starts_with("unknown variant") {
        return unknown_word(said, path);
    }
    let expected = said.rsplit_once(", expected ").map_or(said, |(_, expected)| expected);
    let remedy = remedy(expected);
    match node {
        Some(Value::Object(map)) if expected == "map with a single key" => {
            format!("holds {} keys; write exactly one", map.len())
        }
        Some(node) => format!("{}; write {remedy}", described(node, path)),
        None => format!("does not fit; write {remedy}"),
    }
}

/// The words in backquotes: the offending one, then those that are known.
fn backquoted(said: &str) -> impl Iterator<Item = &str> {
    said.split('`').skip(1).step_by(2)
}

fn unknown_key(said: &str) -> String {
    let (_, expected) = said.split_once(", expected ").unwrap_or_default();
    let word = said.split('`').nth(1).unwrap_or_default();
    match nearest(word, backquoted(expected)) {
        Some(near) => format!("is no known key; did you mean `{near}`?"),
        None => format!("is no known key; known here: {}", listed(backquoted(expected))),
    }
}

fn unknown_word(said: &str, path: &str) -> String {
    let (before, expected) = said.rsplit_once(", expected ").unwrap_or_default();
    let word = before.trim_start_matches("unknown variant `").trim_end_matches('`');
    let subject = if is_secret(path) { "the value".to_owned() } else { quoted(word) };
    let known: Vec<&str> = backquoted(expected).collect();
    match nearest(word, known.iter().copied()) {
        Some(near) => format!("{subject} is not known; did you mean `{near}`? known here: {}", listed(known)),
        None => format!("{subject} is not known; write one of: {}", listed(known)),
    }
}

fn described(node: &Value, path: &str) -> String {
    match node {
        Value::Null => "is empty".into(),
        Value::Array(_) => "is a list".into(),
        Value::Object(_) => "is a mapping".into(),
        _ if is_secret(path) => format!("is {}", kind(node)),
        Value::String(text) => format!("{} is a string", quoted(text)),
        scalar => format!("{scalar} is {}", kind(scalar)),
    }
}

fn kind(node: &Value) -> &'static str {
    match node {
        Value::Null => "empty",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

/// Where a value is a secret, or is where a secret is written by mistake.
fn is_secret(path: &str) -> bool {
    path == "redis"
        || ["redis.urls", "api_keys", "identity.key_pepper", "admin.token", "traces.endpoint"]
            .iter()
            .any(|secret| path.starts_with(secret))
}

fn remedy(expected: &str) -> &str {
    match expected {
        "f64" => "a number without quotes",
        "u64" => "a whole number, 0 or more, without quotes",
        "a boolean" => "true or false, without quotes",
        "a string" => "text, in quotes if need be",
        "a sequence" => "a list: [a, b]",
        "a map" => "a mapping of names to values",
        "string or map" => "a word, or one key with its value",
        _ if expected.starts_with("struct ") => "a mapping of keys to values",
        // A type of `raw` that says itself what it wants.
        _ => expected,
    }
}

/// What is told of a key with nothing behind it. Read as if it were left out, it would undo what a person began to write.
const NO_VALUE: &str = "has no value; give one or remove the key";

/// Like serde_json's reading of a tree, but a list is never taken for a mapping whose keys were left out, and a key
/// without a value never for one that is left out. An entry of a list may be null: see [`take_out`].
#[derive(Clone, Copy)]
struct Strict<'de> {
    node: &'de Value,
    /// Whether this is the value of a key.
    keyed: bool,
}

impl<'de> IntoDeserializer<'de, serde_json::Error> for Strict<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Strict<'de> {
    /// The node, unless it is a key's and there is nothing.
    fn stated(self) -> Result<&'de Value, serde_json::Error> {
        if self.keyed && self.node.is_null() { Err(serde_json::Error::custom(NO_VALUE)) } else { Ok(self.node) }
    }

    fn entries(map: &'de serde_json::Map<String, Value>) -> impl Iterator<Item = (&'de str, Self)> {
        map.iter().map(|(key, node)| (key.as_str(), Self { node, keyed: true }))
    }

    fn unexpected(self) -> Unexpected<'de> {
        match self.node {
            Value::Null => Unexpected::Unit,
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Number(_) => Unexpected::Other("number"),
            Value::String(text) => Unexpected::Str(text),
            Value::Array(_) => Unexpected::Seq,
            Value::Object(_) => Unexpected::Map,
        }
    }
}

impl<'de> Deserializer<'de> for Strict<'de> {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.stated()? {
            Value::Array(list) => {
                visitor.visit_seq(SeqDeserializer::new(list.iter().map(|node| Self { node, keyed: false })))
            }
            Value::Object(map) => visitor.visit_map(MapDeserializer::new(Self::entries(map))),
            scalar => scalar.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        if self.stated()?.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        match self.node {
            Value::Array(_) => Err(Self::Error::invalid_type(Unexpected::Seq, &visitor)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        match self.stated()? {
            Value::String(word) => visitor.visit_enum(StrDeserializer::new(word)),
            Value::Object(map) if map.len() == 1 => {
                visitor.visit_enum(MapAccessDeserializer::new(MapDeserializer::new(Self::entries(map))))
            }
            Value::Object(_) => Err(Self::Error::invalid_value(Unexpected::Map, &"map with a single key")),
            _ => Err(Self::Error::invalid_type(self.unexpected(), &"string or map")),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}
