//! The metrics of tokens that are verified here, and of the keys that verify them.

use super::{Counters, JwksRefresh, JwtVerdict, catalogue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// What came of tokens, and of fetching keys.
#[derive(Clone, Debug)]
pub struct Jwt {
    verdicts: [Counter; JwtVerdict::ALL.len()],
    refreshes: [Counter; JwksRefresh::ALL.len()],
}

impl Jwt {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let (verdicts, refreshes) = (Counters::<1>::default(), Counters::<1>::default());
        super::register(registry, catalogue::JWT_VERIFICATIONS, verdicts.clone());
        super::register(registry, catalogue::JWKS_REFRESHES, refreshes.clone());
        Self {
            verdicts: JwtVerdict::ALL.map(|verdict| verdicts.get_or_create_owned(&[("result", verdict.word().into())])),
            refreshes: JwksRefresh::ALL
                .map(|result| refreshes.get_or_create_owned(&[("result", result.word().into())])),
        }
    }

    /// Counts a check by what came of its token.
    pub fn verified(&self, verdict: JwtVerdict) {
        if super::OBSERVED {
            self.verdicts[verdict as usize].inc();
        }
    }

    /// Counts an attempt to fetch keys.
    pub fn refreshed(&self, result: JwksRefresh) {
        self.refreshes[result as usize].inc();
    }
}
