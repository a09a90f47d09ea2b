//! The metrics of TLS handshakes: how each listener's ended.

use super::catalogue;
use super::{Counters, Handshake, Listener};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// Counts of handshakes by listener. A listener without TLS has none.
#[derive(Debug)]
pub struct Tls(Counters<2>);

impl Tls {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let handshakes = Counters::default();
        super::register(registry, catalogue::TLS_HANDSHAKES, handshakes.clone());
        Self(handshakes)
    }

    /// Those of one listener, all at 0 unless they have been counted in.
    pub fn of(&self, listener: Listener) -> HandshakeCounters {
        HandshakeCounters(Handshake::ALL.map(|result| {
            let labels = [("listener", listener.word().into()), ("result", result.word().into())];
            self.0.get_or_create_owned(&labels)
        }))
    }
}

/// Counts of one listener's handshakes.
#[derive(Debug)]
pub struct HandshakeCounters([Counter; Handshake::ALL.len()]);

impl HandshakeCounters {
    pub fn count(&self, result: Handshake) {
        self.0[result as usize].inc();
    }
}
