//! Connections: how old they grow, what is refused, and what happens when the system has none to give.

use crate::support::redis::Server;
use crate::support::service::{Tidegate, check};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tidegate::ext_authz::proto::CheckRequest;
use tidegate::ext_authz::proto::authorization_client::AuthorizationClient;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// Long enough for a busy machine; only a broken one waits that long.
const PATIENCE: Duration = Duration::from_secs(20);

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

async fn client(service: &Tidegate) -> AuthorizationClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", service.address)).unwrap();
    AuthorizationClient::new(endpoint.connect().await.unwrap())
}

async fn code(mut client: AuthorizationClient<Channel>) -> Result<i32, Status> {
    Ok(client.check(check(&[])).await?.into_inner().status.unwrap().code)
}

/// Waits until it is so, and lets the other tasks have their turns. It happens in another process, which tells nobody.
async fn until(what: &str, so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::task::yield_now().await;
    }
}

/// A service whose checks hang while its Redis is frozen, and whose connections are soon old.
fn aging(redis: &Server, more: &str) -> Tidegate {
    let redis = format!("redis: {{urls: ['{}'], timeout: 10s}}", redis.url());
    let config = format!("{redis}\non_store_error: deny\nmax_connection_age: 1s\n{more}");
    Tidegate::start_with(&config, &[("TIDEGATE_LOG", "debug")])
}

#[test]
fn the_calls_of_an_old_connection_end_and_a_new_connection_follows() {
    let redis = Server::start(&[]);
    let service = aging(&redis, "tiers: {free: {per_ip: {max_tokens: 1000, refill_rate: 1000}}}\n");
    block_on(async {
        let client = client(&service).await;
        assert_eq!(code(client.clone()).await.unwrap(), 0);
        redis.signal("STOP");
        let calls: Vec<_> = (0..64).map(|_| tokio::spawn(code(client.clone()))).collect();
        until("the connection is old", || service.log().contains("a connection is old")).await;
        redis.signal("CONT");
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap(), 0);
        }
        assert_eq!(code(client).await.unwrap(), 0, "the client has connected again");
    });
}

#[test]
fn a_call_that_hangs_on_an_old_connection_is_dropped_after_shutdown() {
    let redis = Server::start(&[]);
    let service = aging(&redis, "shutdown: 100ms\n");
    block_on(async {
        let client = client(&service).await;
        assert_eq!(code(client.clone()).await.unwrap(), 0);
        redis.signal("STOP");
        let status = code(client).await.unwrap_err();
        assert_ne!(status.code(), Code::Ok);
    });
    service.wait_for_log("dropping what an old connection has in flight");
    redis.signal("CONT");
}

/// A service that is told to stop while `calls` of its calls hang, and has closed its port.
async fn stopping(redis: &Server, more: &str, calls: usize) -> (Tidegate, Vec<JoinHandle<Result<i32, Status>>>) {
    let config = format!("redis: {{urls: ['{}'], timeout: 10s}}\non_store_error: deny\ndrain: 0s\n", redis.url());
    let service = Tidegate::start(&format!("{config}{more}"));
    let mut client = client(&service).await;
    assert_eq!(code(client.clone()).await.unwrap(), 0);
    redis.signal("STOP");
    let hanging: Vec<_> = (0..calls).map(|_| tokio::spawn(code(client.clone()))).collect();
    // The calls have arrived when one that comes after them on the same connection is answered.
    let exempt = client.check(exempt()).await.unwrap().into_inner();
    assert_eq!(exempt.status.unwrap().code, 0);
    service.signal("TERM");
    until("the port is closed", || TcpStream::connect(service.address).is_err()).await;
    (service, hanging)
}

const EXEMPT: &str = "rules: [{name: exempt, match: {path: {exact: /exempt}}, exempt: true}]\n";

fn exempt() -> CheckRequest {
    let mut check = check(&[]);
    let request = check.attributes.as_mut().unwrap().request.as_mut().unwrap();
    request.http.as_mut().unwrap().path = "/exempt".into();
    check
}

#[test]
fn calls_in_flight_end_after_the_port_is_closed() {
    let redis = Server::start(&[]);
    block_on(async {
        let (mut service, hanging) = stopping(&redis, EXEMPT, 8).await;
        redis.signal("CONT");
        for call in hanging {
            assert_eq!(call.await.unwrap().unwrap(), 0);
        }
        assert_eq!(service.wait(), Some(0));
        service.wait_for_log("\"stopped\"");
        assert!(!service.log().contains("dropping what is still in flight"));
    });
}

#[test]
fn calls_that_hang_hold_the_end_up_for_no_longer_than_shutdown() {
    let redis = Server::start(&[]);
    block_on(async {
        let (mut service, hanging) = stopping(&redis, &format!("{EXEMPT}shutdown: 100ms\n"), 1).await;
        for call in hanging {
            assert!(call.await.unwrap().is_err());
        }
        assert_eq!(service.wait(), Some(0));
        service.wait_for_log("dropping what is still in flight");
        redis.signal("CONT");
    });
}

#[test]
fn a_second_signal_ends_the_wait_for_calls_that_hang() {
    let redis = Server::start(&[]);
    block_on(async {
        let (mut service, _hanging) = stopping(&redis, &format!("{EXEMPT}shutdown: 5m\n"), 1).await;
        service.signal("TERM");
        assert_eq!(service.wait(), Some(0));
        service.wait_for_log("a second signal");
        redis.signal("CONT");
    });
}

#[test]
fn whoever_speaks_something_else_or_nothing_is_not_kept() {
    let service = Tidegate::start("drain: 0s\n");
    for greeting in ["GET / HTTP/1.0\r\n\r\n", ""] {
        let mut socket = TcpStream::connect(service.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(greeting.as_bytes()).unwrap();
        // The end, or a reset where something was left unread.
        let ended = socket.read(&mut [0; 64]).map_or_else(|error| error.to_string(), |read| format!("{read} bytes"));
        assert!(ended == "0 bytes" || ended.contains("reset"), "{ended}");
    }
}

#[test]
fn without_file_descriptors_it_serves_those_who_are_connected_and_the_others_later() {
    let service = Tidegate::start("drain: 0s\n");
    block_on(async {
        let connected = client(&service).await;
        assert_eq!(code(connected.clone()).await.unwrap(), 0);
        // Descriptors 0 to 2 are in use, so there is none to be had.
        service.limit_files(3);
        let begun = Instant::now();
        let late = TcpStream::connect(service.address).unwrap();
        service.wait_for_log("cannot accept connections");
        for _ in 0..20 {
            assert_eq!(code(connected.clone()).await.unwrap(), 0);
        }
        let said = service.log().matches("cannot accept connections").count();
        let most = 1 + (begun.elapsed() + Duration::from_millis(10)).as_secs() as usize;
        assert!(said <= most, "{said} lines in {:?}", begun.elapsed());
        service.limit_files(1024);
        assert_eq!(code(client(&service).await).await.unwrap(), 0);
        drop(late);
    });
}

#[test]
fn a_service_or_a_method_that_is_not_there_is_unimplemented() {
    let service = Tidegate::start("drain: 0s\n");
    block_on(async {
        let channel = Endpoint::from_shared(format!("http://{}", service.address)).unwrap().connect().await.unwrap();
        for path in [
            "/envoy.service.auth.v3.Authorization/Nothing",
            "/envoy.service.auth.v3.AuthorizationX/Check",
            "/envoy.service.auth.v3.Authorization",
            "/",
        ] {
            let mut grpc = tonic::client::Grpc::new(channel.clone());
            grpc.ready().await.unwrap();
            let codec = tonic_prost::ProstCodec::<_, tidegate::ext_authz::proto::CheckResponse>::default();
            let status = grpc.unary(tonic::Request::new(check(&[])), path.parse().unwrap(), codec).await.unwrap_err();
            assert_eq!(status.code(), Code::Unimplemented, "{path}");
        }
    });
}
