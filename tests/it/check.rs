//! Check from CheckRequest to CheckResponse, in process: memory store, set clock, no network.

use crate::support;
use proptest::prelude::*;
use prost::Message;
use std::sync::Arc;
use tidegate::bucket::{Dimension, Key, Quota, Timestamp};
use tidegate::clock::SetClock;
use tidegate::ext_authz::Service;
use tidegate::ext_authz::proto::authorization_server::Authorization;
use tidegate::ext_authz::proto::{
    Address, AttributeContext, CheckRequest, CheckResponse, DeniedHttpResponse, HeaderMap, HeaderValue, HttpRequest,
    Peer, Pipe, Request, SocketAddress, TextEntry, address::Address as Arm, check_response::HttpResponse,
};
use tidegate::limiter::Limiter;
use tidegate::policy::Policy;
use tidegate::policy::api_key::Digester;
use tidegate::policy::client_ip::AddressSource;
use tidegate::policy::decision::FailurePolicy;
use tidegate::policy::identity::{KeySource, Sources, UserSource};
use tidegate::policy::limits::Limits;
use tidegate::policy::tier::{Tier, Tiers};
use tidegate::store::memory::MemoryStore;
use tidegate::store::{Pending, Store};

const START: u64 = 1_700_000_000_000_000;

/// A service whose clock stands still until it is moved.
struct Bench {
    service: Service,
    store: Arc<dyn Store>,
    clock: Arc<SetClock>,
}

impl Bench {
    fn new(limits: Limits) -> Self {
        let clock = Arc::new(SetClock::new(Timestamp { micros: START }));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(clock.clone(), 10_000));
        let service = Service::new(Arc::new(Limiter::new(policy(limits), store.clone())));
        Self { service, store, clock }
    }

    fn at(&self, millis: u64) -> &Self {
        self.clock.set(Timestamp { micros: START + millis * 1000 });
        self
    }

    fn check(&self, request: CheckRequest) -> CheckResponse {
        let answer = futures_util::FutureExt::now_or_never(self.service.check(tonic::Request::new(request)));
        answer.expect("memory answers at once").unwrap().into_inner()
    }

    fn tokens(&self, dimension: Dimension, id: &str) -> Option<f64> {
        let key = Key::new("rl:", dimension, id);
        let found = futures_util::FutureExt::now_or_never(self.store.inspect(&key));
        found.unwrap().unwrap().map(|state| state.tokens)
    }
}

fn quota(max_tokens: f64, refill_rate: f64) -> Option<Quota> {
    Some(Quota::parse(max_tokens, refill_rate).unwrap())
}

/// Users by `x-user`, keys by `x-api-key`, addresses by peer; one tier.
fn policy(limits: Limits) -> Policy {
    let sources = Sources {
        user: vec![UserSource::Header("x-user".into())],
        key: vec![KeySource::Header("x-api-key".into())],
        ip: AddressSource::Peer,
        ..Sources::default()
    };
    let free = Tier { name: "free".into(), limits, on_store_error: None };
    support::policy(Tiers::new(free, Vec::new()), sources)
}

fn request(headers: &[(&'static str, &[u8])]) -> CheckRequest {
    let entry = |(key, value): &(&'static str, &[u8])| TextEntry { key: (*key).into(), value: value.to_vec().into() };
    let http = HttpRequest { headers: headers.iter().map(entry).collect(), ..HttpRequest::default() };
    from(Arm::SocketAddress(SocketAddress { address: "192.0.2.1".into() }), http)
}

fn from(peer: Arm, http: HttpRequest) -> CheckRequest {
    CheckRequest {
        attributes: Some(AttributeContext {
            source: Some(Peer { address: Some(Address { address: Some(peer) }), ..Peer::default() }),
            request: Some(Request { http: Some(http) }),
            ..AttributeContext::default()
        }),
    }
}

fn denial(response: &CheckResponse) -> Option<&DeniedHttpResponse> {
    match response.http_response.as_ref().unwrap() {
        HttpResponse::DeniedResponse(denied) => Some(denied),
        HttpResponse::OkResponse(_) => None,
        HttpResponse::ErrorResponse(_) => panic!("{response:?}"),
    }
}

fn retry_after(denied: &DeniedHttpResponse) -> u64 {
    let mut headers = denied.headers.iter().map(|option| option.header.as_ref().unwrap());
    let value = &headers.find(|header| header.key == "retry-after").unwrap().value;
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

#[test]
fn an_empty_key_bucket_costs_user_and_address_nothing_and_is_named_with_the_longest_wait() {
    let bench = Bench::new(Limits { user: quota(50.0, 1.0), key: quota(1.0, 0.01), ip: quota(50.0, 1.0) });
    let digest = Digester::default().digest(b"sk-1").to_string();
    let call = || bench.check(request(&[("x-user", b"alice"), ("x-api-key", b"sk-1")]));
    assert_eq!(denial(&call()), None);
    for _ in 0..10 {
        let response = call();
        let denied = denial(&response).unwrap();
        assert_eq!(denied.body, r#"{"error":"rate_limit_exceeded","retry_after":100,"limits":["key"]}"#);
        assert_eq!(retry_after(denied), 100);
    }
    assert_eq!(bench.tokens(Dimension::User, "alice"), Some(49.0));
    assert_eq!(bench.tokens(Dimension::Ip, "192.0.2.1"), Some(49.0));
    assert_eq!(bench.tokens(Dimension::Key, &digest), Some(0.0));
}

#[test]
fn the_longest_wait_of_several_empty_buckets_is_told() {
    let bench = Bench::new(Limits { user: quota(1.0, 0.5), key: None, ip: quota(1.0, 0.1) });
    let call = || bench.check(request(&[("x-user", b"alice")]));
    call();
    let response = call();
    let denied = denial(&response).unwrap();
    assert_eq!(denied.body, r#"{"error":"rate_limit_exceeded","retry_after":10,"limits":["user","ip"]}"#);
    assert_ne!(denial(&bench.at(9_999).check(request(&[("x-user", b"alice")]))), None);
    assert_eq!(denial(&bench.at(10_000).check(request(&[("x-user", b"alice")]))), None);
}

#[test]
fn a_deficit_of_300_ms_is_a_retry_after_of_one_second_and_the_retry_succeeds() {
    let bench = Bench::new(Limits { ip: quota(1.0, 1.0), ..Limits::default() });
    assert_eq!(denial(&bench.check(request(&[]))), None);
    let response = bench.at(700).check(request(&[]));
    assert_eq!(retry_after(denial(&response).unwrap()), 1);
    assert_eq!(denial(&bench.at(1700).check(request(&[]))), None);
}

#[test]
fn hostile_user_ids_have_buckets_of_their_own() {
    let bench = Bench::new(Limits { user: quota(1.0, 0.001), ..Limits::default() });
    let long = vec![b'x'; 10_000];
    let ids: [&[u8]; 13] = [
        b"",
        &long,
        &long[1..],
        b"a{b}c",
        b"user:ip:1.2.3.4",
        b"a\nb",
        b"a\0b",
        b"a\r\nx-injected: 1",
        "\u{1f600}".as_bytes(),
        b"~abc",
        b"~e3b0c44298fc1c149afbf4c8996fb924",
        b"\xff",
        b"plain",
    ];
    for id in ids {
        assert_eq!(denial(&bench.check(request(&[("x-user", id)]))), None, "{id:?} found a bucket already used");
    }
    for id in ids {
        let response = bench.check(request(&[("x-user", id)]));
        assert!(denial(&response).is_some(), "{id:?} found another bucket than before");
        for option in &denial(&response).unwrap().headers {
            let value = &option.header.as_ref().unwrap().value;
            assert!(value.iter().all(|byte| (b' '..=b'~').contains(byte)), "{value:?}");
        }
    }
}

#[test]
fn raw_headers_and_decoded_headers_name_the_same_caller() {
    let bench = Bench::new(Limits { user: quota(1.0, 0.001), ..Limits::default() });
    let raw = HeaderValue { key: "x-user".into(), raw_value: "alice".into(), ..HeaderValue::default() };
    let http = HttpRequest { header_map: Some(HeaderMap { headers: vec![raw] }), ..HttpRequest::default() };
    let raw = from(Arm::SocketAddress(SocketAddress { address: "192.0.2.1".into() }), http);
    assert_eq!(denial(&bench.check(raw)), None);
    assert!(denial(&bench.check(request(&[("x-user", b"alice")]))).is_some());
}

#[test]
fn requests_that_say_little_or_nonsense_are_answered() {
    let bench = Bench::new(Limits { user: quota(5.0, 1.0), key: quota(5.0, 1.0), ip: quota(5.0, 1.0) });
    let attributes = |attributes| CheckRequest { attributes: Some(attributes) };
    let huge = vec![b'h'; 60_000];
    let no_address = Peer { address: Some(Address { address: None }), ..Peer::default() };
    let odd = [
        CheckRequest { attributes: None },
        attributes(AttributeContext::default()),
        attributes(AttributeContext { request: Some(Request { http: None }), ..AttributeContext::default() }),
        attributes(AttributeContext { source: Some(no_address), ..AttributeContext::default() }),
        from(Arm::Pipe(Pipe {}), HttpRequest::default()),
        from(Arm::SocketAddress(SocketAddress { address: "\u{0}".into() }), HttpRequest::default()),
        request(&[]),
        request(&[("x-user", &huge), ("x-api-key", &huge), ("x-forwarded-for", &huge)]),
        request(&[("x-user", b"\xff\xfe"), ("x-api-key", b"\xc3\x28"), ("content-type", b"\xf0")]),
        request(&[("", b""), (":path", b"?#%"), (":authority", b"[::")]),
    ];
    for request in odd {
        let response = bench.check(request);
        assert!(response.status.is_some() && response.http_response.is_some());
    }
}

#[test]
fn whatever_bytes_arrive_are_answered_or_refused_but_never_a_panic() {
    let bench = Bench::new(Limits { user: quota(5.0, 1.0), key: quota(5.0, 1.0), ip: quota(5.0, 1.0) });
    let valid = request(&[("x-user", b"alice"), ("x-api-key", b"sk"), ("x-forwarded-for", b"1.1.1.1")]).encode_to_vec();
    let damaged = (prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8)).prop_map(move |changes| {
        let mut bytes = valid.clone();
        for (index, byte) in changes {
            let place = index.index(bytes.len());
            bytes[place] = byte;
        }
        bytes
    });
    let noise = prop::collection::vec(any::<u8>(), 0..200);
    proptest!(ProptestConfig::with_cases(5000), |(bytes in prop_oneof![damaged, noise])| {
        if let Ok(request) = CheckRequest::decode(&*bytes) {
            let response = bench.check(request);
            // What goes into a string field of Envoy's must be UTF-8: Envoy's decoder refuses anything else.
            let bytes = response.encode_to_vec();
            envoy_types::pb::envoy::service::auth::v3::CheckResponse::decode(&*bytes).unwrap();
        }
    });
}

/// A store that is away.
#[derive(Debug)]
struct Away;

impl Store for Away {
    fn take<'a>(&'a self, _: &'a [tidegate::bucket::Charge]) -> Pending<'a, tidegate::bucket::Taken> {
        Box::pin(async { Err(away()) })
    }
    fn peek<'a>(&'a self, _: &'a [tidegate::bucket::Charge]) -> Pending<'a, tidegate::bucket::Taken> {
        Box::pin(async { Err(away()) })
    }
    fn inspect<'a>(&'a self, _: &'a Key) -> Pending<'a, Option<tidegate::bucket::State>> {
        Box::pin(async { Err(away()) })
    }
    fn reset<'a>(&'a self, _: &'a Key) -> Pending<'a, bool> {
        Box::pin(async { Err(away()) })
    }
    fn probe(&self) -> Pending<'_, ()> {
        Box::pin(async { Err(away()) })
    }
}

fn away() -> tidegate::store::StoreError {
    tidegate::store::StoreError::Connection("gone".into())
}

#[test]
fn while_the_store_is_away_a_peek_and_a_take_follow_the_policy() {
    let limits = Limits { ip: quota(5.0, 1.0), ..Limits::default() };
    for (on_store_error, code) in [(FailurePolicy::Allow, 0), (FailurePolicy::Deny, 14)] {
        let policy = Policy { on_store_error, ..policy(limits) };
        let service = Service::new(Arc::new(Limiter::new(policy, Arc::new(Away))));
        for cost in ["0", "1"] {
            let mut request = request(&[]);
            let entry = TextEntry { key: "tidegate.cost".into(), value: cost.into() };
            request.attributes.as_mut().unwrap().context_extensions.push(entry);
            let answer = futures_util::FutureExt::now_or_never(service.check(tonic::Request::new(request)));
            let response = answer.unwrap().unwrap().into_inner();
            assert_eq!(response.status.unwrap().code, code, "{on_store_error:?} {cost}");
        }
    }
}
