//! Reads a CheckRequest into the policy's [`Request`], by reference. Whatever is absent reads as empty.

use super::proto::{self, AttributeContext, CheckRequest, HttpRequest, TextEntry, address};
use super::scan;
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
    // Envoy fills one of the two, and the one that holds raw bytes says more.
    let raw = http.header_map.as_ref().filter(|map| !map.headers.is_empty());
    if let Some(map) = raw {
        request.headers.extend(map.headers.iter().map(|header| {
            // `encode_raw_headers` fills raw_value, and leaves value empty.
            let value = if header.raw_value.is_empty() { &header.value } else { &header.raw_value };
            (&*header.key, &**value)
        }));
    } else {
        request.headers.extend(http.headers.iter().map(pair));
    }
    request.id = &http.id;
    request.method = &http.method;
    request.host = &http.host;
    request.path = &http.path;
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
        scan::find(&entry.value, path)
    }
}
