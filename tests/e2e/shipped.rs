//! The files as they are shipped.

use crate::support::service::{self, Tidegate};
use crate::support::{Gateway, envoy, repository, shipped};
use std::fs;
use std::process::Command;

#[test]
fn envoy_accepts_the_shipped_configuration() {
    envoy::validate(&repository().join("envoy/envoy.yaml")).unwrap();
}

#[test]
fn tidegate_accepts_the_shipped_configuration() {
    let output =
        Command::new(service::binary()).arg("validate").arg(repository().join("envoy/tidegate.yaml")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_demo_token_is_alices_and_its_key_is_the_one_in_envoys_configuration() {
    let gateway = Gateway::before(Tidegate::start(&shipped("envoy/tidegate.yaml")), |_| ());
    let token = fs::read_to_string(repository().join("envoy/demo/alice.jwt")).unwrap();
    let alice = gateway.stranger().bearer(token.trim());
    let first = alice.get("/v1/hello");
    assert_eq!((first.status, first.number("x-ratelimit-limit")), (200, 10));
    let statuses = alice.statuses("/v1/hello", 30);
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
}

/// Both run on the same host as shipped, and find each other.
#[test]
fn the_two_configurations_name_the_same_address() {
    let envoy = fs::read_to_string(repository().join("envoy/envoy.yaml")).unwrap();
    assert_eq!(shipped("envoy/tidegate.yaml")["listen"], "127.0.0.1:50051");
    assert!(envoy.contains("{address: 127.0.0.1, port_value: 50051}"));
}
