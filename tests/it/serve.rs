//! The running service: start, health, what it logs, drain; and the commands that look into its Redis.

use crate::support::redis::Server;
use crate::support::service::{Tidegate, check};
use std::io::Write;
use std::process::{Command, Output, Stdio};
use tidegate::ext_authz::SERVICE;
use tidegate::ext_authz::proto::authorization_client::AuthorizationClient;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(future)
}

async fn connect(service: &Tidegate) -> Channel {
    Endpoint::from_shared(format!("http://{}", service.address)).unwrap().connect().await.unwrap()
}

async fn health(channel: &Channel, service: &str) -> ServingStatus {
    let request = HealthCheckRequest { service: service.into() };
    HealthClient::new(channel.clone()).check(request).await.unwrap().into_inner().status()
}

/// Waits until a service's health is `wanted`: the stream tells every change, so this is no polling.
async fn until(channel: &Channel, service: &str, wanted: ServingStatus) {
    let request = HealthCheckRequest { service: service.into() };
    let mut changes = HealthClient::new(channel.clone()).watch(request).await.unwrap().into_inner();
    while changes.message().await.unwrap().unwrap().status() != wanted {}
}

#[test]
fn on_memory_it_is_alive_and_ready_and_drains_on_sigterm() {
    let mut service = Tidegate::start("drain: 200ms\n");
    block_on(async {
        let channel = connect(&service).await;
        for name in ["", "liveness"] {
            assert_eq!(health(&channel, name).await, ServingStatus::Serving, "{name}");
        }
        for name in [SERVICE, "readiness"] {
            until(&channel, name, ServingStatus::Serving).await;
        }
        let unknown = HealthCheckRequest { service: "unknown".into() };
        assert!(HealthClient::new(channel.clone()).check(unknown).await.is_err());

        service.signal("TERM");
        until(&channel, SERVICE, ServingStatus::NotServing).await;
        assert_eq!(health(&channel, "").await, ServingStatus::Serving, "it still runs while it drains");
        let answer = AuthorizationClient::new(channel).check(check(&[])).await.unwrap().into_inner();
        assert_eq!(answer.status.unwrap().code, 0, "a check during the drain is answered");
    });
    assert_eq!(service.wait(), Some(0));
}

#[test]
fn a_second_signal_stops_at_once() {
    let mut service = Tidegate::start("drain: 5m\n");
    service.signal("TERM");
    service.wait_for_log("draining");
    service.signal("INT");
    assert_eq!(service.wait(), Some(0));
    // The last words may be read after the end is known.
    service.wait_for_log("a second signal");
}

#[test]
fn without_redis_it_starts_follows_the_policy_and_is_ready_when_redis_comes() {
    let server = Server::start(&[]);
    let url = server.url();
    let place = server.kill();
    let service = Tidegate::start(&format!("redis: {{urls: ['{url}'], timeout: 1s}}\non_store_error: deny\n"));
    block_on(async {
        let channel = connect(&service).await;
        assert_eq!(health(&channel, "").await, ServingStatus::Serving);
        assert_eq!(health(&channel, SERVICE).await, ServingStatus::NotServing);
        let mut client = AuthorizationClient::new(channel.clone());
        let answer = client.check(check(&[])).await.unwrap().into_inner();
        assert_eq!(answer.status.unwrap().code, 14);
        service.wait_for_log("the store failed");

        let Some(_server) = Server::again(&place) else { return };
        until(&channel, SERVICE, ServingStatus::Serving).await;
        let answer = client.check(check(&[])).await.unwrap().into_inner();
        assert_eq!(answer.status.unwrap().code, 0);
    });
}

#[test]
fn an_api_key_is_in_no_log_at_any_level_and_in_no_redis_key() {
    const KEY: &str = "sk-very-secret-1234567890";
    let server = Server::start(&[]);
    let config = format!("redis: {{urls: ['{}'], timeout: 10s}}\n", server.url());
    let environment = [("TIDEGATE_LOG", "trace"), ("TIDEGATE_KEY_PEPPER", "pepper-of-the-test")];
    let service = Tidegate::start_with(&config, &environment);
    block_on(async {
        let mut client = AuthorizationClient::new(connect(&service).await);
        for _ in 0..20 {
            let answer = client.check(check(&[("x-api-key", KEY)])).await.unwrap().into_inner();
            assert!(!format!("{answer:?}").contains(KEY));
        }
    });
    let keys: Vec<String> = server.run(&["KEYS", "*"]);
    assert!(keys.iter().any(|key| key.starts_with("rl:key:")), "{keys:?}");
    for key in &keys {
        let stored: Vec<String> = server.run(&["HGETALL", key]);
        assert!(!key.contains("secret") && !stored.concat().contains("secret"));
    }
    let log = service.log();
    assert!(log.contains("\"TRACE\""), "the log is as fine as asked");
    for secret in [KEY, "very-secret", "pepper-of-the-test"] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

#[test]
fn a_port_that_is_taken_is_said() {
    let service = Tidegate::start("drain: 0s\n");
    let address = service.address.to_string();
    let output = tidegate(&["serve", "--listen", &address], &[], "");
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains(&format!("cannot listen on {address}: ")), "{told}");
}

#[test]
fn a_unix_socket_that_nobody_listens_on_is_replaced_and_one_in_use_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listen = format!("unix:{}", path.display());
    let mut service = Tidegate::start_on(&listen, "drain: 0s\n", &[]);
    let output = tidegate(&["serve", "--listen", &listen], &[], "");
    assert_eq!(output.status.code(), Some(1));
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
    assert!(!path.exists(), "the socket is removed");

    std::fs::write(&path, "a file").unwrap();
    let output = tidegate(&["serve", "--listen", &listen], &[], "");
    assert!(String::from_utf8(output.stderr).unwrap().contains("is no socket"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
}

fn tidegate(arguments: &[&str], environment: &[(&str, &str)], stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(arguments)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn bucket_show_and_reset_name_buckets_as_the_service_does() {
    const PASSWORD: &str = "pass/word";
    let server = Server::start(&["--requirepass", PASSWORD]);
    let environment = [("TIDEGATE_REDIS_PASSWORD", PASSWORD), ("TIDEGATE_REDIS_URL", &server.url())];
    let service = Tidegate::start_with(
        "redis: {urls: ['redis://x'], timeout: 10s}\nidentity: {user: [{header: x-user}]}\n",
        &environment,
    );
    let headers = [("x-user", "a b"), ("x-api-key", "sk-1")];
    block_on(async {
        let mut client = AuthorizationClient::new(connect(&service).await);
        assert_eq!(client.check(check(&headers)).await.unwrap().into_inner().status.unwrap().code, 0);
    });
    let bucket = |verb, which: &[&str], stdin| {
        let arguments = [&["bucket", verb, "--json"][..], which].concat();
        let output = tidegate(&arguments, &environment, stdin);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    for (which, stdin) in [(&["--user", "a b"][..], ""), (&["--key-stdin"], "sk-1\n"), (&["--ip", "192.0.2.1"], "")] {
        let shown = bucket("show", which, stdin);
        assert_eq!(shown["stored"], true, "{shown}");
        assert_eq!(bucket("reset", which, stdin)["reset"], true);
        assert_eq!(bucket("reset", which, stdin)["reset"], false);
        assert_eq!(bucket("show", which, stdin)["stored"], false);
    }

    let wrong = [("TIDEGATE_REDIS_PASSWORD", "wr0ng-secret"), environment[1]];
    let output = tidegate(&["bucket", "show", "--user", "a"], &wrong, "");
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("redis refused the credentials") && !told.contains("wr0ng-secret"), "{told}");
}
