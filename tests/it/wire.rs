//! The protos against an independent crate that carries Envoy's complete API: the same bytes, both ways.

use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::service::auth::v3 as full;
use envoy_types::pb::envoy::r#type::v3 as types;
use envoy_types::pb::google::protobuf as wkt;
use prost::Message;
use std::collections::HashMap;
use tidegate::ext_authz::headers::replace;
use tidegate::ext_authz::{proto as ours, request};
use tidegate::policy::request::{Metadata, Scalar};

fn text(value: &str) -> wkt::Value {
    wkt::Value { kind: Some(wkt::value::Kind::StringValue(value.into())) }
}

fn structure(fields: impl IntoIterator<Item = (&'static str, wkt::Value)>) -> wkt::Struct {
    wkt::Struct { fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
}

fn nested(fields: wkt::Struct) -> wkt::Value {
    wkt::Value { kind: Some(wkt::value::Kind::StructValue(fields)) }
}

/// A request with every field filled that Envoy fills, and some that it does not.
fn full_request() -> full::CheckRequest {
    let kinds = |kind| wkt::Value { kind: Some(kind) };
    let claims = structure([
        ("sub", text("alice")),
        ("tier", text("standard")),
        ("uid", kinds(wkt::value::Kind::NumberValue(42.0))),
        ("admin", kinds(wkt::value::Kind::BoolValue(true))),
        ("none", kinds(wkt::value::Kind::NullValue(0))),
        ("aud", kinds(wkt::value::Kind::ListValue(wkt::ListValue { values: vec![text("a"), text("b")] }))),
        ("org", nested(structure([("plan", text("gold"))]))),
    ]);
    let metadata = core::Metadata {
        filter_metadata: HashMap::from([
            ("envoy.filters.http.jwt_authn".to_owned(), structure([("claims", nested(claims))])),
            ("other".to_owned(), structure([])),
        ]),
        typed_filter_metadata: HashMap::from([("t".to_owned(), wkt::Any::default())]),
    };
    let address = |ip: &str| core::Address {
        address: Some(core::address::Address::SocketAddress(core::SocketAddress {
            address: ip.into(),
            resolver_name: "r".into(),
            ipv4_compat: true,
            port_specifier: Some(core::socket_address::PortSpecifier::PortValue(4711)),
            ..core::SocketAddress::default()
        })),
    };
    let peer = |ip: &str, principal: &str| full::attribute_context::Peer {
        address: Some(address(ip)),
        service: "svc".into(),
        labels: HashMap::from([("l".into(), "v".into())]),
        principal: principal.into(),
        certificate: "pem".into(),
    };
    let http = full::attribute_context::HttpRequest {
        id: "1234567890".into(),
        method: "POST".into(),
        headers: HashMap::from([(":path".into(), "/v1/chat?x=1".into()), ("x-api-key".into(), "sk-1".into())]),
        header_map: Some(core::HeaderMap {
            headers: vec![core::HeaderValue {
                key: "x-raw".into(),
                value: String::new(),
                raw_value: b"\xff\x00".to_vec(),
            }],
        }),
        path: "/v1/chat?x=1".into(),
        host: "api.example:443".into(),
        scheme: "https".into(),
        query: "q".into(),
        fragment: "f".into(),
        size: 17,
        protocol: "HTTP/2".into(),
        body: "body".into(),
        raw_body: b"raw".to_vec(),
    };
    full::CheckRequest {
        attributes: Some(full::AttributeContext {
            source: Some(peer("192.0.2.1", "spiffe://a/b")),
            destination: Some(peer("192.0.2.2", "")),
            request: Some(full::attribute_context::Request {
                time: Some(wkt::Timestamp { seconds: 1, nanos: 2 }),
                http: Some(http),
            }),
            context_extensions: HashMap::from([("tidegate.cost".into(), "5".into())]),
            metadata_context: Some(metadata),
            route_metadata_context: Some(core::Metadata::default()),
            tls_session: Some(full::attribute_context::TlsSession { sni: "sni".into() }),
        }),
    }
}

#[test]
fn a_full_check_request_reads_right_through_the_subset() {
    let bytes = full_request().encode_to_vec();
    let check = ours::CheckRequest::decode(&*bytes).unwrap();
    let request = request::read(&check);
    assert_eq!(request.id, b"1234567890");
    assert_eq!(request.method, b"POST");
    assert_eq!(request.host, b"api.example:443");
    assert_eq!(request.path, b"/v1/chat?x=1");
    assert_eq!(request.peer, Some(&b"192.0.2.1"[..]));
    assert_eq!(request.principal, b"spiffe://a/b");
    assert_eq!(request.extension("tidegate.cost"), Some(&b"5"[..]));
    assert_eq!(request.header("x-raw").as_deref(), Some(&b"\xff\x00"[..]));
    assert_eq!(request.header("x-api-key"), None, "where raw headers are sent, they are the headers");
    let find = |path: &[&str]| {
        let path: Vec<String> = path.iter().map(|name| (*name).to_owned()).collect();
        request.metadata.unwrap().find("envoy.filters.http.jwt_authn", &path)
    };
    assert_eq!(find(&["claims", "sub"]), Some(Scalar::Text(b"alice")));
    assert_eq!(find(&["claims", "uid"]), Some(Scalar::Number(42.0)));
    assert_eq!(find(&["claims", "org", "plan"]), Some(Scalar::Text(b"gold")));
    for nobody in [
        &["claims"][..],
        &["claims", "aud"],
        &["claims", "admin"],
        &["claims", "none"],
        &["claims", "sub", "x"],
        &["x"],
        &[],
    ] {
        assert_eq!(find(nobody), None, "{nobody:?}");
    }
}

/// Envoy may let pass a check that cannot be decoded, and a caller may write the depth of a claim.
#[test]
fn claims_nested_deeper_than_a_decoder_goes_are_read_past() {
    let mut deep = text("bottom");
    for _ in 0..300 {
        deep = nested(structure([("a", deep)]));
    }
    let mut bytes = full_request().encode_to_vec();
    // The same field again: a map's entries may come in any number.
    let claims = nested(structure([("deep", deep), ("sub", text("mallory"))]));
    let metadata = core::Metadata {
        filter_metadata: HashMap::from([("deep".to_owned(), structure([("claims", claims)]))]),
        ..core::Metadata::default()
    };
    let attributes = full::AttributeContext { metadata_context: Some(metadata), ..full::AttributeContext::default() };
    bytes.extend(full::CheckRequest { attributes: Some(attributes) }.encode_to_vec());
    let check = ours::CheckRequest::decode(&*bytes).unwrap();
    let request = request::read(&check);
    let path = ["claims".to_owned(), "sub".to_owned()];
    let metadata = request.metadata.unwrap();
    assert_eq!(metadata.find("deep", &path), Some(Scalar::Text(b"mallory")));
    assert_eq!(metadata.find("envoy.filters.http.jwt_authn", &path), Some(Scalar::Text(b"alice")));
}

#[test]
fn damaged_metadata_reads_as_nothing_and_never_panics() {
    let whole = structure([("claims", nested(structure([("sub", text("alice"))])))]).encode_to_vec();
    let path = ["claims".to_owned(), "sub".to_owned()];
    for end in 0..whole.len() {
        for flip in 0..=255_u8 {
            let mut bytes = whole[..end].to_vec();
            if let Some(last) = bytes.last_mut() {
                *last ^= flip;
            }
            let entry = ours::NamespaceEntry { key: "n".into(), value: bytes.into() };
            ours::Metadata { filter_metadata: vec![entry] }.find("n", &path);
        }
    }
}

#[test]
fn decoded_headers_are_read_where_no_raw_ones_are_sent() {
    let mut check = full_request();
    check.attributes.as_mut().unwrap().request.as_mut().unwrap().http.as_mut().unwrap().header_map = None;
    let check = ours::CheckRequest::decode(&*check.encode_to_vec()).unwrap();
    assert_eq!(request::read(&check).header("x-api-key").as_deref(), Some(&b"sk-1"[..]));
}

#[test]
fn a_pipe_peer_reads_as_no_address() {
    let mut check = full_request();
    let pipe = core::address::Address::Pipe(core::Pipe { path: "/run/envoy.sock".into(), mode: 0o600 });
    check.attributes.as_mut().unwrap().source.as_mut().unwrap().address = Some(core::Address { address: Some(pipe) });
    let check = ours::CheckRequest::decode(&*check.encode_to_vec()).unwrap();
    assert_eq!(request::read(&check).peer, None);
}

/// Encodes with ours, decodes with the complete API, encodes that, and decodes with ours: nothing is lost or moved.
fn there_and_back(ours: &ours::CheckResponse) -> full::CheckResponse {
    let theirs = full::CheckResponse::decode(&*ours.encode_to_vec()).unwrap();
    assert_eq!(&ours::CheckResponse::decode(&*theirs.encode_to_vec()).unwrap(), ours);
    theirs
}

fn response(code: i32, http_response: ours::check_response::HttpResponse) -> ours::CheckResponse {
    let kind = ours::value::Kind::NumberValue(3.0);
    let entry = ours::FieldEntry { key: "remaining".into(), value: Some(ours::Value { kind: Some(kind) }) };
    ours::CheckResponse {
        status: Some(ours::Status { code }),
        http_response: Some(http_response),
        dynamic_metadata: ours::Struct { fields: vec![entry] }.encode_to_vec().into(),
    }
}

fn check_header(option: &core::HeaderValueOption) {
    let header = option.header.as_ref().unwrap();
    assert_eq!((header.key.as_str(), header.value.as_str()), ("retry-after", "7"));
    assert!(header.raw_value.is_empty());
    assert_eq!(option.append_action, core::header_value_option::HeaderAppendAction::OverwriteIfExistsOrAdd as i32);
    #[allow(deprecated, reason = "Envoy still reads it")]
    let append = option.append.unwrap();
    assert!(!append.value);
}

#[test]
fn the_answers_read_right_through_the_complete_api() {
    let denied = || ours::DeniedHttpResponse {
        status: Some(ours::HttpStatus { code: ours::StatusCode::TooManyRequests.into() }),
        headers: vec![replace("retry-after", "7")],
        body: "{}".into(),
    };
    let theirs = there_and_back(&response(8, ours::check_response::HttpResponse::DeniedResponse(denied())));
    assert_eq!(theirs.status.as_ref().unwrap().code, 8);
    assert_eq!(
        theirs.dynamic_metadata.as_ref().unwrap().fields["remaining"].kind,
        Some(wkt::value::Kind::NumberValue(3.0))
    );
    let Some(full::check_response::HttpResponse::DeniedResponse(read)) = theirs.http_response else {
        panic!("not a denied_response: {theirs:?}");
    };
    assert_eq!(read.status.unwrap().code, types::StatusCode::TooManyRequests as i32);
    assert_eq!(read.body, "{}");
    check_header(&read.headers[0]);

    let error = ours::DeniedHttpResponse {
        status: Some(ours::HttpStatus { code: ours::StatusCode::ServiceUnavailable.into() }),
        ..denied()
    };
    let theirs = there_and_back(&response(14, ours::check_response::HttpResponse::ErrorResponse(error)));
    let Some(full::check_response::HttpResponse::ErrorResponse(read)) = theirs.http_response else {
        panic!("not an error_response: {theirs:?}");
    };
    assert_eq!(read.status.unwrap().code, types::StatusCode::ServiceUnavailable as i32);

    let ok = ours::OkHttpResponse {
        headers: vec![replace("retry-after", "7")],
        headers_to_remove: vec!["x-api-key".into()],
        response_headers_to_add: vec![replace("retry-after", "7")],
    };
    let theirs = there_and_back(&response(0, ours::check_response::HttpResponse::OkResponse(ok)));
    let Some(full::check_response::HttpResponse::OkResponse(read)) = theirs.http_response else {
        panic!("not an ok_response: {theirs:?}");
    };
    check_header(&read.headers[0]);
    check_header(&read.response_headers_to_add[0]);
    assert_eq!(read.headers_to_remove, ["x-api-key"]);
}

#[test]
fn the_service_goes_by_envoys_name() {
    assert_eq!(tidegate::ext_authz::SERVICE, "envoy.service.auth.v3.Authorization");
}
