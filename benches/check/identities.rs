//! CheckRequests as Envoy sends them for an LLM call, one caller each.

use super::http2::framed;
use bytes::Bytes;
use prost::Message as _;
use std::ops::Range;
use tidegate::ext_authz::proto::{
    Address, AttributeContext, CheckRequest, FieldEntry, HttpRequest, Metadata, NamespaceEntry, Peer, Request,
    SocketAddress, Struct, TextEntry, Value, address, value,
};

/// Headers of a usual client behind Envoy, besides those that name the caller.
const HEADERS: [(&str, &str); 20] = [
    (":authority", "api.example.com"),
    (":method", "POST"),
    (":path", "/v1/chat/completions"),
    (":scheme", "https"),
    ("accept", "application/json"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("accept-language", "en-GB,en;q=0.9"),
    ("connection", "keep-alive"),
    ("content-length", "1873"),
    ("content-type", "application/json"),
    ("openai-beta", "assistants=v2"),
    ("openai-organization", "org-0123456789abcdefghijklmn"),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("user-agent", "OpenAI/Python 1.99.9"),
    ("x-forwarded-proto", "https"),
    ("x-request-id", "5b1f5e0a-1c8e-4f0e-9a7e-2f7d3b6c1a90"),
    ("x-stainless-arch", "x64"),
    ("x-stainless-lang", "python"),
    ("x-stainless-os", "Linux"),
    ("x-stainless-runtime-version", "3.13.1"),
];

/// One gRPC message for each caller: the encoded request in its five-byte frame.
pub(crate) fn requests(callers: Range<usize>) -> Vec<Bytes> {
    callers.map(|caller| framed(&check(caller))).collect()
}

fn check(caller: usize) -> CheckRequest {
    let [_, a, b, c] = u32::try_from(caller).unwrap().to_be_bytes();
    let ip = format!("10.{a}.{b}.{c}");
    let text = |text: String| Value { kind: Some(value::Kind::StringValue(text.into())) };
    let nested = |fields: Vec<FieldEntry>| Value { kind: Some(value::Kind::StructValue(Struct { fields })) };
    let field = |key: &'static str, value| FieldEntry { key: key.into(), value: Some(value) };
    let claims = nested(vec![
        field("iss", text("https://issuer.example.com".into())),
        field("sub", text(format!("user-{caller}"))),
        field("tier", text("enterprise".into())),
    ]);
    let mut headers: Vec<TextEntry> =
        HEADERS.iter().map(|(key, value)| TextEntry { key: (*key).into(), value: (*value).into() }).collect();
    headers.extend([
        TextEntry { key: "x-api-key".into(), value: format!("sk-benchmark-0123456789abcdef-{caller}").into() },
        TextEntry { key: "x-client-ip".into(), value: ip.clone().into() },
        TextEntry { key: "x-forwarded-for".into(), value: ip.clone().into() },
    ]);
    let http = HttpRequest {
        id: format!("{caller:020}").into(),
        method: "POST".into(),
        headers,
        path: "/v1/chat/completions".into(),
        host: "api.example.com".into(),
        header_map: None,
    };
    let socket = SocketAddress { address: ip.into() };
    CheckRequest {
        attributes: Some(AttributeContext {
            source: Some(Peer {
                address: Some(Address { address: Some(address::Address::SocketAddress(socket)) }),
                principal: "".into(),
            }),
            request: Some(Request { http: Some(http) }),
            context_extensions: Vec::new(),
            metadata_context: Some(Metadata {
                filter_metadata: vec![NamespaceEntry {
                    key: "envoy.filters.http.jwt_authn".into(),
                    value: Struct { fields: vec![field("claims", claims)] }.encode_to_vec().into(),
                }],
            }),
        }),
    }
}
