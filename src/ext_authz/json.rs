//! Reads a CheckRequest as protobuf's JSON, in which people write one or Envoy's logs show one.
//!
//! Names are read in both of protobuf's spellings (`contextExtensions`, `context_extensions`). What Envoy sends and tidegate
//! does not look at is passed over; a name that Envoy does not know is a fault, since it was meant to say something.

use super::proto::address::Address as Arm;
use super::proto::{
    Address, AttributeContext, CheckRequest, FieldEntry, HeaderMap, HeaderValue, HttpRequest, ListValue, Metadata,
    NamespaceEntry, Peer, Pipe, Request, SocketAddress, Struct, TextEntry, Value as ProtoValue, value::Kind,
};
use bytes::Bytes;
use prost::Message as _;
use serde_json::{Map, Value};
use thiserror::Error;

/// Why a text is no CheckRequest.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{path}: {what}")]
pub struct JsonError {
    /// Where: names with points between.
    path: String,
    what: String,
}

type Read<T> = Result<T, JsonError>;

/// Reads a CheckRequest, with or without the `attributes` around it.
///
/// # Errors
/// The first thing that cannot be understood, with its place.
pub fn parse(text: &[u8]) -> Read<CheckRequest> {
    let fault = |what: String| JsonError { path: "request".into(), what };
    let tree: Value = serde_json::from_slice(text).map_err(|error| fault(format!("is no JSON: {error}")))?;
    let root = Node { path: String::new(), value: &tree };
    let object = root.object(&["attributes"]).or_else(|error| {
        let bare = tree.as_object().is_some_and(|map| map.contains_key("request") || map.contains_key("source"));
        if bare { Ok(Object { path: String::new(), map: None }) } else { Err(error) }
    })?;
    let attributes = match object.map {
        Some(_) => object.get("attributes").map(|node| attributes(&node)).transpose()?,
        None => Some(attributes(&root)?),
    };
    Ok(CheckRequest { attributes })
}

fn attributes(node: &Node<'_>) -> Read<AttributeContext> {
    const KNOWN: &[&str] = &[
        "source",
        "destination",
        "request",
        "context_extensions",
        "metadata_context",
        "route_metadata_context",
        "tls_session",
    ];
    let object = node.object(KNOWN)?;
    let request = object.get("request").map(|request| {
        let http = request.object(&["time", "http"])?.get("http").map(|http| read_http(&http)).transpose()?;
        Ok(Request { http })
    });
    Ok(AttributeContext {
        source: object.get("source").map(|source| read_peer(&source)).transpose()?,
        request: request.transpose()?,
        context_extensions: object.get("context_extensions").map_or(Ok(Vec::new()), |node| node.texts())?,
        metadata_context: object.get("metadata_context").map(|node| read_metadata(&node)).transpose()?,
    })
}

fn read_peer(node: &Node<'_>) -> Read<Peer> {
    let object = node.object(&["address", "service", "labels", "principal", "certificate"])?;
    let address = object.get("address").map(|address| {
        let address = address.object(&["socket_address", "pipe", "envoy_internal_address"])?;
        let socket = address.get("socket_address").map(|socket| {
            const KNOWN: &[&str] = &[
                "protocol",
                "address",
                "port_value",
                "named_port",
                "resolver_name",
                "ipv4_compat",
                "network_namespace_filepath",
            ];
            let address = socket.object(KNOWN)?.text("address")?;
            Ok(Arm::SocketAddress(SocketAddress { address }))
        });
        let pipe = address.get("pipe").map(|_| Arm::Pipe(Pipe {}));
        Ok(Address { address: socket.transpose()?.or(pipe) })
    });
    Ok(Peer { address: address.transpose()?, principal: object.text("principal")? })
}

fn read_http(node: &Node<'_>) -> Read<HttpRequest> {
    const KNOWN: &[&str] = &[
        "id",
        "method",
        "headers",
        "header_map",
        "path",
        "host",
        "scheme",
        "query",
        "fragment",
        "size",
        "protocol",
        "body",
        "raw_body",
    ];
    let object = node.object(KNOWN)?;
    let header_map = object.get("header_map").map(|node| {
        let headers =
            node.object(&["headers"])?.get("headers").map_or(Ok(Vec::new()), |list| list.list(read_header))?;
        Ok(HeaderMap { headers })
    });
    Ok(HttpRequest {
        id: object.text("id")?,
        method: object.text("method")?,
        headers: object.get("headers").map_or(Ok(Vec::new()), |node| node.texts())?,
        path: object.text("path")?,
        host: object.text("host")?,
        header_map: header_map.transpose()?,
    })
}

fn read_header(node: &Node<'_>) -> Read<HeaderValue> {
    let object = node.object(&["key", "value"])?;
    Ok(HeaderValue { key: object.text("key")?, value: object.text("value")?, raw_value: Bytes::new() })
}

fn read_metadata(node: &Node<'_>) -> Read<Metadata> {
    let object = node.object(&["filter_metadata", "typed_filter_metadata"])?;
    let Some(filters) = object.get("filter_metadata") else { return Ok(Metadata::default()) };
    let entries = filters.entries()?.map(|(name, node)| {
        let Value::Object(map) = node.value else { return Err(node.wrong("a mapping")) };
        Ok(NamespaceEntry { key: bytes(name), value: structure(map).encode_to_vec().into() })
    });
    Ok(Metadata { filter_metadata: entries.collect::<Read<_>>()? })
}

fn structure(map: &Map<String, Value>) -> Struct {
    let field = |(name, value): (&String, &Value)| FieldEntry { key: bytes(name), value: Some(proto_value(value)) };
    Struct { fields: map.iter().map(field).collect() }
}

fn proto_value(value: &Value) -> ProtoValue {
    let kind = match value {
        Value::Null => None,
        Value::Bool(flag) => Some(Kind::BoolValue(*flag)),
        Value::Number(number) => number.as_f64().map(Kind::NumberValue),
        Value::String(text) => Some(Kind::StringValue(bytes(text))),
        Value::Array(list) => Some(Kind::ListValue(ListValue { values: list.iter().map(proto_value).collect() })),
        Value::Object(map) => Some(Kind::StructValue(structure(map))),
    };
    ProtoValue { kind }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A place in the tree.
struct Node<'t> {
    path: String,
    value: &'t Value,
}

/// A mapping whose names are all known.
struct Object<'t> {
    path: String,
    map: Option<&'t Map<String, Value>>,
}

impl<'t> Object<'t> {
    /// The value of a name, which is given with underscores.
    fn get(&self, name: &str) -> Option<Node<'t>> {
        let (spelling, value) = self.map?.iter().find(|(spelling, _)| snake(spelling) == name)?;
        (!value.is_null()).then(|| Node { path: joined(&self.path, spelling), value })
    }

    /// The text of a name; empty where there is none.
    fn text(&self, name: &str) -> Read<Bytes> {
        self.get(name).map_or(Ok(Bytes::new()), |text| text.text())
    }
}

impl<'t> Node<'t> {
    fn object(&self, known: &[&str]) -> Read<Object<'t>> {
        let Value::Object(map) = self.value else { return Err(self.wrong("a mapping")) };
        match map.keys().find(|name| !known.contains(&snake(name).as_str())) {
            Some(unknown) => Err(JsonError {
                path: joined(&self.path, unknown),
                what: format!("is no field of it; known here: {}", known.join(", ")),
            }),
            None => Ok(Object { path: self.path.clone(), map: Some(map) }),
        }
    }

    fn entries(&self) -> Read<impl Iterator<Item = (&'t str, Node<'t>)>> {
        let Value::Object(map) = self.value else { return Err(self.wrong("a mapping")) };
        let path = self.path.clone();
        Ok(map.iter().map(move |(name, value)| (name.as_str(), Node { path: joined(&path, name), value })))
    }

    fn texts(&self) -> Read<Vec<TextEntry>> {
        self.entries()?.map(|(name, node)| Ok(TextEntry { key: bytes(name), value: node.text()? })).collect()
    }

    fn list<T>(&self, read: impl Fn(&Node<'t>) -> Read<T>) -> Read<Vec<T>> {
        let Value::Array(list) = self.value else { return Err(self.wrong("a list")) };
        let node = |(place, value)| read(&Node { path: format!("{}[{place}]", self.path), value });
        list.iter().enumerate().map(node).collect()
    }

    fn text(&self) -> Read<Bytes> {
        match self.value {
            Value::String(text) => Ok(bytes(text)),
            _ => Err(self.wrong("text in quotes")),
        }
    }

    fn wrong(&self, right: &str) -> JsonError {
        let path = if self.path.is_empty() { "request".to_owned() } else { self.path.clone() };
        JsonError { path, what: format!("is not {right}") }
    }
}

fn joined(path: &str, name: &str) -> String {
    let name: String = name.chars().take(64).flat_map(char::escape_default).collect();
    if path.is_empty() { name } else { format!("{path}.{name}") }
}

/// `contextExtensions` as `context_extensions`.
fn snake(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    const BOTH: [&str; 2] = [
        r#"{"attributes": {"source": {"address": {"socketAddress": {"address": "192.0.2.1", "portValue": 7}}},
            "request": {"http": {"method": "GET", "path": "/v1", "headers": {"x-api-key": "k"}}},
            "contextExtensions": {"tidegate.cost": "2"},
            "metadataContext": {"filterMetadata": {"jwt": {"claims": {"sub": "alice", "n": 1, "l": [true, null]}}}}}}"#,
        r#"{"source": {"address": {"socket_address": {"address": "192.0.2.1", "port_value": 7}}},
            "request": {"http": {"method": "GET", "path": "/v1", "headers": {"x-api-key": "k"}}},
            "context_extensions": {"tidegate.cost": "2"},
            "metadata_context": {"filter_metadata": {"jwt": {"claims": {"sub": "alice", "n": 1, "l": [true, null]}}}}}"#,
    ];

    #[test]
    fn both_spellings_with_and_without_attributes_read_alike() {
        let [camel, snake] = BOTH.map(|text| parse(text.as_bytes()).unwrap());
        assert_eq!(camel, snake);
        let request = super::super::request::read(&camel);
        assert_eq!(request.peer, Some(&b"192.0.2.1"[..]));
        assert_eq!(request.header("x-api-key").as_deref(), Some(&b"k"[..]));
        assert_eq!(request.extension("tidegate.cost"), Some(&b"2"[..]));
        let path = ["claims".to_owned(), "sub".to_owned()];
        let found = request.metadata.and_then(|metadata| metadata.find("jwt", &path)).unwrap();
        assert_eq!(found.text().as_deref(), Some(&b"alice"[..]));
    }

    #[test]
    fn what_cannot_be_understood_is_told_with_its_place() {
        for (text, told) in [
            ("{", "request: is no JSON: EOF while parsing an object at line 1 column 1"),
            ("[]", "request: is not a mapping"),
            (r#"{"atributes": {}}"#, "atributes: is no field of it; known here: attributes"),
            (
                r#"{"attributes": {"request": {"http": {"haeders": {}}}}}"#,
                "attributes.request.http.haeders: is no field",
            ),
            (r#"{"request": {"http": {"method": 7}}}"#, "request.http.method: is not text in quotes"),
            (r#"{"request": {"http": {"headers": ["a"]}}}"#, "request.http.headers: is not a mapping"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(told), "{error}");
        }
    }

    #[test]
    fn nothing_said_is_a_request_from_nobody() {
        assert_eq!(parse(b"{}").unwrap(), CheckRequest::default());
        assert!(parse(br#"{"attributes": {"request": null}}"#).unwrap().attributes.unwrap().request.is_none());
    }
}
