//! What operators ask of this process and do to it over the admin endpoint.

use super::log::Log;
use super::reload::{Cause, Loaded, Reloader};
use super::shown;
use crate::audit::Audit;
use crate::bucket::{Dimension, Key};
use crate::config;
use crate::ext_authz::{self, json};
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::policy::api_key::Digest;
use crate::policy::client_ip::{self, ClientAddress};
use crate::policy::identity::stored_user;
use crate::server::admin::{Operations, Told, Which};
use crate::store::{Store, StoreError};
use futures_util::future::BoxFuture;
use hyper::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::SystemTime;

/// The parts that are asked and told.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) limiter: Arc<Limiter>,
    pub(super) store: Arc<dyn Store>,
    pub(super) reloader: Arc<Reloader>,
    pub(super) audit: Option<Arc<Audit>>,
    pub(super) log: Arc<Log>,
}

impl Operations for Desk {
    fn config(&self) -> Told {
        let loaded = self.reloader.loaded();
        let refusal = loaded.refusal.as_ref().map(
            |refusal| json!({"at": time(refusal.at), "cause": refusal.cause.to_string(), "faults": refusal.why.faults}),
        );
        Told::ok(json!({
            "from": self.reloader.source().to_string(),
            "hash": loaded.hash,
            "loaded_at": time(loaded.at),
            "cause": loaded.cause.to_string(),
            "last_refusal": refusal,
            "config": *loaded.shown,
        }))
    }

    fn reload<'a>(&'a self, by: &'a str) -> BoxFuture<'a, Told> {
        Box::pin(async move {
            tracing::info!(by, "a reload was asked for");
            match self.reloader.reload(Cause::Request).await {
                Ok(loaded) => Told::ok(reloaded(&loaded)),
                Err(refused) => Told {
                    status: StatusCode::UNPROCESSABLE_ENTITY,
                    body: json!({"error": "refused, what was in force stays", "faults": refused.faults}),
                },
            }
        })
    }

    fn bucket<'a>(&'a self, which: Which<'a>) -> BoxFuture<'a, Told> {
        Box::pin(async move {
            let key = match named(self.limiter.snapshot().policy(), which) {
                Ok(key) => key,
                Err(told) => return told,
            };
            match self.store.inspect(&key).await {
                Ok(state) => Told::ok(shown::bucket(self.limiter.snapshot().policy(), &key, state)),
                Err(error) => unavailable(&error),
            }
        })
    }

    fn reset<'a>(&'a self, which: Which<'a>, by: &'a str) -> BoxFuture<'a, Told> {
        Box::pin(async move {
            let key = match named(self.limiter.snapshot().policy(), which) {
                Ok(key) => key,
                Err(told) => return told,
            };
            match self.store.reset(&key).await {
                Ok(there_was) => {
                    tracing::info!(key = key.as_str(), there_was, by, "a bucket was reset");
                    if let Some(audit) = &self.audit {
                        audit.bucket_reset(&key, &self.limiter.snapshot().policy().sources.digester, by);
                    }
                    Told::ok(json!({"key": key.as_str(), "reset": there_was}))
                }
                Err(error) => unavailable(&error),
            }
        })
    }

    fn explain<'a>(&'a self, check: &'a [u8]) -> BoxFuture<'a, Told> {
        Box::pin(async move {
            match json::parse(check) {
                Ok(check) => Told::ok(ext_authz::explain(&self.limiter, &check).await),
                Err(error) => Told::fault(StatusCode::BAD_REQUEST, error.to_string()),
            }
        })
    }

    fn log_filter(&self) -> Told {
        Told::ok(json!({"filter": self.log.filter()}))
    }

    fn filter_log(&self, filter: &[u8], by: &str) -> Told {
        let text = String::from_utf8_lossy(filter);
        let filter = match config::log_filter(text.trim()) {
            Ok(filter) => filter,
            Err(faults) => return Told::fault(StatusCode::BAD_REQUEST, faults.to_string()),
        };
        match self.log.set_filter(&filter) {
            Ok(()) => {
                tracing::warn!(filter, by, "the log's filter was changed; a restart undoes that");
                if let Some(audit) = &self.audit {
                    audit.log_filter_set(&filter, by);
                }
                self.log_filter()
            }
            Err(error) => Told::fault(StatusCode::BAD_REQUEST, error.to_string()),
        }
    }
}

fn reloaded(loaded: &Loaded) -> Value {
    json!({"hash": loaded.hash, "loaded_at": time(loaded.at)})
}

fn time(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}

fn unavailable(error: &StoreError) -> Told {
    Told::fault(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}

/// The bucket that a path names. Of a user either form of the id will do: as the identity provider gives it, or as it is
/// stored and shown.
fn named(policy: &Policy, which: Which<'_>) -> Result<Key, Told> {
    let fault = |what: String| Err(Told::fault(StatusCode::BAD_REQUEST, what));
    let text = || std::str::from_utf8(which.id).unwrap_or_default();
    let (dimension, id) = match which.dimension {
        "user" if is_stored(which.id) => (Dimension::User, text().to_owned()),
        "user" => (Dimension::User, stored_user(which.id).into_owned()),
        "key" => match text().parse::<Digest>() {
            Ok(digest) => (Dimension::Key, digest.to_string()),
            Err(error) => return fault(format!("key: {error}; never send the key itself")),
        },
        "ip" => match address(text(), policy) {
            Some(address) => (Dimension::Ip, address.to_string()),
            None => return fault("ip: write an IP address, or unknown".into()),
        },
        _ => return fault("write /buckets/user/{id}, /buckets/key/{digest} or /buckets/ip/{address}".into()),
    };
    let Some(tier) = which.tier else { return Ok(policy.bucket(dimension, &id, None)) };
    match policy.tiers.index(tier.as_bytes()) {
        tier @ Some(_) => Ok(policy.bucket(dimension, &id, tier)),
        None => fault(format!("tier: there is no such tier; there are {}", tiers(policy))),
    }
}

fn tiers(policy: &Policy) -> String {
    policy.tiers.iter().map(|tier| tier.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Whether it is the stored form of an odd user id.
fn is_stored(id: &[u8]) -> bool {
    id.strip_prefix(b"~").is_some_and(|hex| std::str::from_utf8(hex).is_ok_and(|hex| hex.parse::<Digest>().is_ok()))
}

fn address(text: &str, policy: &Policy) -> Option<ClientAddress> {
    if text == "unknown" {
        return Some(ClientAddress::Unknown);
    }
    let bare = text.split_once('/').map_or(text, |(address, _)| address);
    client_ip::parse(bare.as_bytes()).map(|address| ClientAddress::new(address, &policy.sources.prefixes))
}
