//! The wire between tidegate and Redis.

use crate::support::proxy::{Proxy, Wire};
use crate::support::redis::Server;
use crate::support::trial::{SLACK, Setup, Trial, Window, timeout};
use std::time::Duration;

const TOPOLOGY: &str = "wire";

/// Runs a fault of the wire that is taken out after a second.
fn fault(name: &'static str, wire: Wire) {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let trial = Trial::start(Setup::standalone(&proxy.url()));
    let injected = trial.now();
    proxy.set(wire);
    trial.until_failing();
    trial.hold(Duration::from_secs(1));
    proxy.set(Wire::Pass);
    let cleared = trial.now();
    trial.until_recovered();
    trial.end().judge(name, TOPOLOGY, Window { injected, cleared }, SLACK);
}

#[test]
fn a_wire_that_is_cut_is_mended_without_a_restart() {
    fault("cut: connections reset, 1 s", Wire::Reset);
}

#[test]
fn a_wire_that_swallows_everything_is_answered_for() {
    fault("black hole, 1 s", Wire::BlackHole);
}

#[test]
fn a_wire_that_is_slower_than_the_timeout_is_answered_for() {
    fault("delay of four timeouts, 1 s", Wire::Delay(4 * timeout()));
}

#[test]
fn a_connection_whose_server_is_gone_without_a_word_is_replaced() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let trial = Trial::start(Setup::standalone(&proxy.url()));
    let injected = trial.now();
    proxy.strand();
    trial.until_failing();
    trial.until_recovered();
    trial.end().judge("half-open connection", TOPOLOGY, Window::since(injected), SLACK);
}
