//! Reads a CheckRequest into the policy's [`Request`], by reference. Whatever is absent reads as empty.

use super::proto::{self, AttributeContext, CheckRequest, HttpRequest, TextEntry, address, value};
use crate::policy::request::{Metadata, Request, Scalar};

/// Never fails: a request that says nothing is one from an unknown address.
pub fn read(check: &CheckRequest) -> Request<'_> {
    let Some(attributes) = &check.attributes else {
        return Request::default();
    };
    let mut request = Request {
        peer: peer(attributes),
        principal: attributes.source.as_ref().map_or(&[], |source| &source.principal),
        metadata: attributes.metadata_context.as_ref().map(|metadata| metadata as &dyn Metadata),
        ..Request::default()
    };
    request.extensions.extend(attributes.context_extensions.iter().map(pair));
    if let Some(http) = attributes.request.as_ref().and_then(|request| request.http.as_ref()) {
        read_http(http, &mut request);
    }
    request
}

fn read_http<'a>(http: &'a HttpRequest, request: &mut Request<'a>) {
    request.headers.extend(http.headers.iter().map(pair));
    if let Some(map) = &http.header_map {
        request.headers.extend(map.headers.iter().map(|header| {
            // `encode_raw_headers` fills raw_value, and leaves value empty.
            let value = if header.raw_value.is_empty() { &header.value } else { &header.raw_value };
            (&*header.key, &**value)
        }));
    }
    let pseudo = |field: &'a [u8], name: &[u8]| {
        let header = request.headers.iter().find(|(key, _)| *key == name);
        if field.is_empty() { header.map_or(field, |(_, value)| value) } else { field }
    };
    let (method, host, path) =
        (pseudo(&http.method, b":method"), pseudo(&http.host, b":authority"), pseudo(&http.path, b":path"));
    request.method = method;
    request.host = host;
    request.path = path;
}

fn pair(entry: &TextEntry) -> (&[u8], &[u8]) {
    (&entry.key, &entry.value)
}

fn peer(attributes: &AttributeContext) -> Option<&[u8]> {
    match attributes.source.as_ref()?.address.as_ref()?.address.as_ref()? {
        address::Address::SocketAddress(socket) => Some(&socket.address),
        address::Address::Pipe(_) => None,
    }
}

impl Metadata for proto::Metadata {
    fn find(&self, namespace: &str, path: &[String]) -> Option<Scalar<'_>> {
        let entry = self.filter_metadata.iter().find(|entry| entry.key == namespace)?;
        let (last, parents) = path.split_last()?;
        let mut fields = entry.value.as_ref()?;
        for name in parents {
            match field(fields, name)? {
                value::Kind::StructValue(inner) => fields = inner,
                _ => return None,
            }
        }
        match field(fields, last)? {
            value::Kind::StringValue(text) => Some(Scalar::Text(text)),
            value::Kind::NumberValue(number) => Some(Scalar::Number(*number)),
            _ => None,
        }
    }
}

fn field<'a>(fields: &'a proto::Struct, name: &str) -> Option<&'a value::Kind> {
    fields.fields.iter().find(|entry| entry.key == name)?.value.as_ref()?.kind.as_ref()
}
