//! Compiles `proto/` with protox, so that a build needs no system `protoc`.

use std::error::Error;

const PROTO: &str = "proto/external_auth.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    tonic_prost_build::configure().bytes(".").build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
