//! The generated types of `proto/external_auth.proto`.

#![allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    missing_debug_implementations,
    unreachable_pub,
    reason = "generated code"
)]

tonic::include_proto!("envoy.service.auth.v3");
