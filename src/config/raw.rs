//! Every key of the config, once. What serde reads, and what `tidegate schema` describes.
//!
//! All of it is optional and nothing of it is proven: see `validate`. The comments here are the descriptions that
//! editors show, so they speak to the operator.

use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;

/// The configuration of tidegate. Everything is optional: what is left out is as in `tidegate config default`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "tidegate")]
pub(super) struct Raw {
    /// Where Envoy connects: `address:port`, or `unix:/path`. Default: 0.0.0.0:50051.
    pub(super) listen: Option<String>,
    /// TLS where Envoy connects. Left out: plain text.
    pub(super) tls: Option<ListenTls>,
    /// The HTTP endpoint for probes, Prometheus and operators.
    pub(super) admin: Option<Admin>,
    /// Starts every bucket's name in Redis. Printable ASCII without blanks, `{` and `}`, at most 64 bytes. Default: `rl:`.
    pub(super) key_prefix: Option<String>,
    /// Where buckets are kept. Left out: in this process's memory.
    pub(super) redis: Option<Redis>,
    /// Buckets in this process's memory: all of them without `redis`, and with it those of `on_store_error: local`.
    pub(super) memory: Option<Memory>,
    /// Buckets that Redis found empty, remembered so that it need not be asked again; of no effect without `redis`.
    pub(super) deny_cache: Option<DenyCache>,
    /// Charge a request once though Envoy asks about it again within 5 seconds, as it may when a Check times out. Holds
    /// where the same replica is asked. Default: false.
    pub(super) dedupe: Option<bool>,
    /// What happens to requests while Redis does not answer; tiers and rules may say otherwise. Default: allow.
    pub(super) on_store_error: Option<OnStoreError>,
    /// How many replicas of tidegate there are, or may come to be: `on_store_error: local` needs it, and gives each the
    /// limits divided by it. 1 to 10000.
    #[schemars(extend("minimum" = 1, "maximum" = 10_000))]
    pub(super) replicas_hint: Option<u64>,
    /// Whether the service is ready only while Redis answers. Default: true.
    pub(super) readiness_requires_store: Option<bool>,
    /// Whose clock refills buckets. Default: redis.
    pub(super) clock: Option<Clock>,
    /// Whether denials are carried out. Default: enforce.
    pub(super) mode: Option<Mode>,
    /// How long to say NOT_SERVING before connections are closed; `0s` to skip it. Default: 5s.
    pub(super) drain: Option<Span>,
    /// How long open calls may take after that. Default: 10s.
    pub(super) shutdown: Option<Span>,
    /// When Envoy is asked to open a new connection for the old one, give or take a tenth, so that new replicas get
    /// their share; `0s` for never. No call is lost by it. Default: 5m.
    pub(super) max_connection_age: Option<Span>,
    /// The tier of callers of whom nothing else is known. Default: free.
    pub(super) default_tier: Option<String>,
    /// Accept a default tier that allows more than another tier. Default: false.
    pub(super) allow_generous_default: Option<bool>,
    /// What callers may spend, by the name of their tier. Names are 1 to 64 of a-z, 0-9, `_` and `-`, in any case.
    pub(super) tiers: Option<BTreeMap<String, Tier>>,
    /// Where callers and their tiers are read.
    pub(super) identity: Option<Identity>,
    /// Known API keys.
    pub(super) api_keys: Option<List<ApiKey>>,
    /// What Redis says of API keys that `api_keys` does not name; of no effect without `redis`.
    pub(super) key_metadata: Option<KeyMetadata>,
    /// Known users.
    pub(super) users: Option<List<User>>,
    /// What differs for parts of the traffic. The first that matches counts.
    pub(super) rules: Option<List<Rule>>,
    /// The sets of headers that tell clients their limits; `[]` for none. Default: [x-ratelimit].
    pub(super) headers: Option<List<HeaderSet>>,
    /// How Envoy is told that Redis failed and the request is to be denied. Default: error_response.
    pub(super) error_answer: Option<ErrorAnswer>,
    /// Remove the headers that carry API keys before the request goes upstream. Default: false.
    pub(super) strip_api_key: Option<bool>,
    /// The status that a suspended API key is denied with: 403 or 429. Default: 403.
    #[schemars(extend("enum" = [403, 429]))]
    pub(super) suspended_answer: Option<u64>,
    /// What the process says of itself, on standard error.
    pub(super) log: Option<Log>,
    /// Who was refused what, and why, one line of JSON each. Left out: no trail.
    pub(super) audit: Option<Audit>,
    /// Spans of checks, for an OpenTelemetry collector.
    pub(super) traces: Option<Traces>,
}

/// Spans of checks, for an OpenTelemetry collector: OTLP over gRPC.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Traces {
    /// `http://host:port`, or `https://host:port` where Mozilla's roots are trusted, or `off`. Default: off.
    pub(super) endpoint: Option<Secret>,
    /// The share of the checks without a parent that are traced, 0 to 1; where Envoy names a parent it has decided.
    /// Default: 1.
    #[schemars(extend("minimum" = 0, "maximum" = 1))]
    pub(super) sample_ratio: Option<f64>,
    /// How long the collector may take for a batch of spans before they are dropped. Default: 5s.
    pub(super) timeout: Option<Span>,
}

/// The HTTP endpoint for probes and Prometheus (`/livez`, `/readyz`, `/metrics`) and for operators.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Admin {
    /// `address:port`, or `off`. Default: 127.0.0.1:8080. Beyond this machine only `/livez`, `/readyz` and `/metrics` are
    /// answered, unless there is a token.
    pub(super) listen: Option<String>,
    /// What all but `/livez`, `/readyz` and `/metrics` then needs, as `authorization: Bearer <token>`. 16 bytes or more.
    /// Better given in TIDEGATE_ADMIN_TOKEN or TIDEGATE_ADMIN_TOKEN_FILE.
    pub(super) token: Option<Secret>,
    /// TLS there. Left out: plain text.
    pub(super) tls: Option<ListenTls>,
}

/// TLS of a listener: what it shows, and what it asks of its clients. Files in PEM, which are read again when they change.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListenTls {
    /// The file of the certificate, and of those between it and its root.
    pub(super) cert: Option<String>,
    /// The file of its key, without a passphrase.
    pub(super) key: Option<String>,
    /// The file of the roots that certificates of clients must lead to. With it, who shows none is refused; left out:
    /// clients need none.
    pub(super) client_ca: Option<String>,
    /// The SPIFFE ids of clients that are let in: `spiffe://trust-domain/path`, or with `/*` at the end all below. It goes
    /// with `client_ca`. Left out: all whom `client_ca` vouches for.
    pub(super) client_spiffe_ids: Option<List<String>>,
}

/// The Redis that holds the buckets.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Redis {
    /// Default: standalone.
    pub(super) topology: Option<Topology>,
    /// `redis://host:port/database`, `rediss://…` for TLS, or `unix:///path`: of a standalone Redis one, with `sentinel`
    /// those of the sentinels, with `cluster` those of some nodes. A password is better given in TIDEGATE_REDIS_PASSWORD
    /// (that of the sentinels in TIDEGATE_REDIS_SENTINEL_PASSWORD).
    pub(super) urls: Option<List<Secret>>,
    /// The name under which the sentinels monitor the master.
    pub(super) sentinel_master: Option<String>,
    /// The ACL user to sign in as, instead of one in the address.
    pub(super) username: Option<String>,
    /// The number of the database. Default: that in the address, else 0.
    pub(super) database: Option<u64>,
    /// What is trusted and shown with `rediss://`.
    pub(super) tls: Option<Tls>,
    /// What CLIENT LIST shows. Default: tidegate.
    pub(super) client_name: Option<String>,
    /// One round trip, waiting for a connection included; Envoy's own timeout must be longer. Default: 50ms.
    pub(super) timeout: Option<Span>,
    /// Connections to each server, each shared by many calls at once: 1 to 64. Default: 1.
    pub(super) pool_size: Option<u64>,
    /// Calls to each server that may be on their way at once; others wait, for half of
    /// `timeout` at most. Default: 512.
    pub(super) max_in_flight: Option<u64>,
    /// When a failing server is not asked any more.
    pub(super) breaker: Option<Breaker>,
}

/// What is trusted and shown with `rediss://`; files in PEM.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    /// The roots that servers' certificates must lead to. Default: Mozilla's, as built in.
    pub(super) ca_file: Option<String>,
    /// This client's certificate and those between it and the root.
    pub(super) cert_file: Option<String>,
    /// Its key.
    pub(super) key_file: Option<String>,
}

/// When a failing server is not asked any more.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Breaker {
    /// Failures in a row. Default: 5.
    pub(super) failures: Option<u64>,
    /// How often it is probed then. Default: 250ms.
    pub(super) probe_interval: Option<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Topology {
    Standalone,
    Sentinel,
    Cluster,
}

/// Buckets that Redis found empty, so that clients that do not stop asking are denied without asking Redis.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DenyCache {
    /// Buckets remembered at most; 0 switches it off. Default: 100000.
    pub(super) size: Option<u64>,
    /// How long an answer of Redis is used at most, and so how late a bucket that is reset elsewhere may be seen.
    /// Default: 1s.
    pub(super) max_age: Option<Span>,
}

/// Buckets in this process's memory.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Memory {
    /// Buckets at most. Default: 1000000.
    pub(super) capacity: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum OnStoreError {
    /// Requests pass unlimited.
    Allow,
    /// Requests are answered 503.
    Deny,
    /// Each replica goes on with buckets in its own memory, at the limits divided by `replicas_hint`.
    Local,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Clock {
    /// Redis's own: one clock for all replicas.
    Redis,
    /// Each replica's own.
    Local,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    Enforce,
    /// Everything is counted and told, nothing is denied.
    Shadow,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
pub(super) enum HeaderSet {
    /// `x-ratelimit-limit`, `x-ratelimit-remaining`, `x-ratelimit-reset`.
    #[serde(rename = "x-ratelimit")]
    XRatelimit,
    /// The IETF draft's `RateLimit` and `RateLimit-Policy`.
    #[serde(rename = "ietf")]
    Ietf,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ErrorAnswer {
    /// For Envoy 1.37 and later.
    ErrorResponse,
    /// The call itself fails: for older Envoys.
    GrpcStatus,
}

/// What the process says of itself.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Log {
    /// `error`, `warn`, `info`, `debug`, `trace`, `off`, or a list such as `info,tidegate::store=debug`. Default: info.
    pub(super) filter: Option<String>,
    /// Default: text.
    pub(super) format: Option<LogFormat>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum LogFormat {
    Text,
    Json,
}

/// The audit trail: denials, answers without Redis, what operators did. `docs/audit.md` has its fields.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Audit {
    /// Where it is written: each kind of sink once. Default: none, which is no trail.
    pub(super) sinks: Option<List<AuditSink>>,
    /// Tell users by a digest, under the pepper if there is one. Default: false.
    pub(super) hash_users: Option<bool>,
    /// Events that wait for each sink at most; what comes then is dropped and counted. 16 to 1048576. Default: 8192.
    #[schemars(extend("minimum" = 16, "maximum" = 1_048_576))]
    pub(super) queue: Option<u64>,
    /// How long denials of one caller are counted before they are told in one event, after the first; `0s`: each is told
    /// by itself. At most 5m. Default: 10s.
    pub(super) fold: Option<Span>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum AuditSink {
    /// Standard output.
    Stdout,
    /// A file that others rotate; it is opened anew on SIGHUP.
    File(AuditFile),
    /// A stream in the Redis that holds the buckets.
    RedisStream(AuditStream),
}

/// A file that lines are appended to.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditFile {
    /// An absolute path. The folder must be there.
    pub(super) path: Option<String>,
}

/// A Redis stream.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditStream {
    /// Printable ASCII without blanks, `{` and `}`, at most 64 bytes. Default: `audit` after `key_prefix`.
    pub(super) key: Option<String>,
    /// Entries that are kept, about: 1 to 100000000. Default: 100000.
    pub(super) max_length: Option<u64>,
}

/// What may be spent; a dimension that is left out is not limited.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Tier {
    pub(super) per_user: Option<Quota>,
    pub(super) per_key: Option<Quota>,
    pub(super) per_ip: Option<Quota>,
    /// Instead of the global `on_store_error`.
    pub(super) on_store_error: Option<OnStoreError>,
}

/// One bucket's size and inflow.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Quota {
    /// Tokens in a full bucket: the largest burst. Above 0.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub(super) max_tokens: Option<f64>,
    /// Tokens per second: the rate in the long run. Above 0.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub(super) refill_rate: Option<f64>,
}

/// Where callers and their tiers are read. Of each list, the first source that gives something counts.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Identity {
    /// Where the user's id is read; `[]` for no users.
    pub(super) user: Option<List<UserSource>>,
    /// Where the API key is read; `[]` for no keys.
    pub(super) key: Option<List<KeySource>>,
    /// Where the client's address is read.
    pub(super) ip: Option<Ip>,
    /// Where the tier is read; `[]` for the default tier only.
    pub(super) tier: Option<List<TierSource>>,
    /// Mixed into the digests of API keys, so that a stolen dump of Redis cannot be searched for guessed keys.
    /// Better given in TIDEGATE_KEY_PEPPER or TIDEGATE_KEY_PEPPER_FILE. Changing it changes all digests: see
    /// `key_pepper_previous`.
    pub(super) key_pepper: Option<Secret>,
    /// The pepper before this one, while it is replaced: an API key that is not known under its digest of now is looked up
    /// under that of then, in `api_keys` and in Redis. Better given in TIDEGATE_KEY_PEPPER_PREVIOUS or
    /// TIDEGATE_KEY_PEPPER_PREVIOUS_FILE.
    pub(super) key_pepper_previous: Option<Secret>,
    /// Which bearer tokens are verified here, so that `user` and `tier` may read them as `{jwt: sub}`. For gateways where
    /// Envoy's jwt_authn runs after tidegate is asked, or not at all: see docs/jwt.md. Left out: no token is looked at.
    pub(super) jwt: Option<Jwt>,
}

/// Which bearer tokens (JWT) are believed. Exactly one of `jwks_file`, `jwks_url` and `secret_file`. Who has no good token
/// has no claims, and so is limited as one of the default tier; nobody is refused for it.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Jwt {
    /// A file with the issuer's public keys, a JSON Web Key Set. Read again when it changes.
    pub(super) jwks_file: Option<String>,
    /// Where the issuer publishes them: `https://host/path`, or `http://host/path`. Fetched in the background: what was
    /// fetched last stays in force while it is away.
    pub(super) jwks_url: Option<String>,
    /// How often `jwks_url` is fetched, 1s to 24h; a token with a key that is not known has it fetched at once. Default:
    /// 5m.
    pub(super) jwks_refresh: Option<Span>,
    /// Roots in PEM that the certificate of `jwks_url` must lead to. Default: Mozilla's, as built in.
    pub(super) ca_file: Option<String>,
    /// A file with a secret of 32 bytes or more that the issuer shares, for HS256; a line end at its end is no part of it.
    pub(super) secret_file: Option<String>,
    /// What tokens state as `iss`. Needed.
    pub(super) issuer: Option<String>,
    /// What tokens state as `aud`: one of these. Needed; `[]` believes tokens for anybody.
    pub(super) audiences: Option<List<String>>,
    /// The header with the token, in lower case; `Bearer ` before it is left out. Default: authorization.
    pub(super) header: Option<String>,
    /// How far the issuer's clock may be from this one, for `exp` and `nbf`: up to 5m. Default: 60s.
    pub(super) leeway: Option<Span>,
    /// Tokens at most that are remembered by a digest, good ones until they expire and as many bad ones for a minute:
    /// 1 to 1000000. Default: 10000.
    pub(super) cache_size: Option<u64>,
}

/// A claim of a verified token: its name, such as `sub`, or the names that lead to it, such as `[realm, sub]`.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(super) enum Claim {
    Name(String),
    Path(List<String>),
}

impl<'de> Deserialize<'de> for Claim {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrPath;
        impl<'de> serde::de::Visitor<'de> for NameOrPath {
            type Value = Claim;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a claim, or the list of names that lead to it")
            }

            fn visit_str<E>(self, name: &str) -> Result<Claim, E> {
                Ok(Claim::Name(name.to_owned()))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, names: A) -> Result<Claim, A::Error> {
                List::deserialize(serde::de::value::SeqAccessDeserializer::new(names)).map(Claim::Path)
            }
        }
        deserializer.deserialize_any(NameOrPath)
    }
}

/// A scalar in Envoy's dynamic metadata.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Metadata {
    /// The name of the Envoy filter that wrote it, such as `envoy.filters.http.jwt_authn`.
    pub(super) namespace: Option<String>,
    /// The keys that lead to it, such as `[claims, sub]`.
    pub(super) path: Option<List<String>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum UserSource {
    Metadata(Metadata),
    /// A claim of a token that `identity.jwt` verifies.
    Jwt(Claim),
    /// The identity in the client's verified certificate.
    Principal,
    /// A header, in lower case. The client writes it unless Envoy overwrites it.
    Header(String),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum KeySource {
    /// A header, in lower case.
    Header(String),
    /// `authorization: Bearer <key>`.
    Bearer,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum TierSource {
    Metadata(Metadata),
    /// A claim of a token that `identity.jwt` verifies.
    Jwt(Claim),
    /// What `api_keys` says of the caller's key.
    ApiKey,
    /// A header, in lower case. The client writes it unless Envoy overwrites it.
    Header(String),
}

/// Where the client's address is read, and how much of it makes a client.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Ip {
    /// Default: peer.
    pub(super) from: Option<AddressSource>,
    /// Leading bits that make an IPv4 client: 1 to 32. Default: 32.
    pub(super) ipv4_prefix: Option<u64>,
    /// Leading bits that make an IPv6 client: 1 to 128. Default: 64.
    pub(super) ipv6_prefix: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum AddressSource {
    /// The peer of Envoy's connection.
    Peer,
    /// A header that Envoy overwrites, in lower case.
    Header(String),
    /// X-Forwarded-For, counted from the right.
    Xff(Xff),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Xff {
    /// Which entry from the right: 1 is the one that Envoy itself appended. 1 to 20.
    pub(super) trusted_hops: Option<u64>,
}

/// One known API key. What is left out is as in the caller's tier.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ApiKey {
    /// As `tidegate hash-key` prints it: 32 lower-case hex digits. Never the key itself.
    pub(super) digest: Option<String>,
    /// For logs and metadata; not a secret. Default: the digest.
    pub(super) name: Option<String>,
    /// Read where `identity.tier` says `api_key`.
    pub(super) tier: Option<String>,
    /// Always denied. Default: false.
    pub(super) suspended: Option<bool>,
    pub(super) per_user: Option<Quota>,
    pub(super) per_key: Option<Quota>,
    pub(super) per_ip: Option<Quota>,
}

/// What Redis says of API keys (`tidegate key set`), as each process remembers it.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyMetadata {
    /// Keys at most that are remembered, unknown ones included; 0: Redis is not asked for any. Default: 100000.
    pub(super) size: Option<u64>,
    /// How long before Redis is asked again: a change takes effect within this time. Default: 30s.
    pub(super) max_age: Option<Span>,
}

/// One known user. What is left out is as in the caller's tier.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct User {
    /// The id as the identity provider gives it.
    pub(super) id: Option<String>,
    /// Comes before what `identity.tier` finds.
    pub(super) tier: Option<String>,
    pub(super) per_user: Option<Quota>,
    pub(super) per_key: Option<Quota>,
    pub(super) per_ip: Option<Quota>,
}

/// What differs for a part of the traffic.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    /// Envoy's routes may choose the rule by this name, in the context extension `tidegate.rule`.
    pub(super) name: Option<String>,
    /// What a request must be; left out, it fits all.
    #[serde(rename = "match")]
    pub(super) when: Option<Match>,
    /// Tokens per request; 0 looks and takes nothing. Default: 1.
    #[schemars(extend("minimum" = 0))]
    pub(super) cost: Option<f64>,
    /// Not limited at all.
    pub(super) exempt: Option<bool>,
    /// The tier whose limits count here, whoever calls.
    pub(super) tier: Option<String>,
    /// The buckets that are charged. Default: all.
    pub(super) dimensions: Option<List<Dimension>>,
    /// Count and tell, but never deny.
    pub(super) shadow: Option<bool>,
    /// Instead of the tier's and the global `on_store_error`.
    pub(super) on_store_error: Option<OnStoreError>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Dimension {
    User,
    Key,
    Ip,
}

/// What a request must be: everything stated here.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Match {
    /// Any of these, in upper case.
    pub(super) methods: Option<List<String>>,
    /// Any of these, without port; `*` stands for any text.
    pub(super) hosts: Option<List<String>>,
    /// The path without its query.
    pub(super) path: Option<PathMatch>,
    /// All of these.
    pub(super) headers: Option<List<HeaderMatch>>,
    /// All of these: what the route's ext_authz settings in Envoy say.
    pub(super) context_extensions: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum PathMatch {
    Exact(String),
    Prefix(String),
    /// `*` stands for any text within a segment, `**` for any segments.
    Glob(String),
}

/// A header, and one of `exact`, `prefix`, `present`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HeaderMatch {
    /// In lower case.
    pub(super) name: Option<String>,
    pub(super) exact: Option<String>,
    pub(super) prefix: Option<String>,
    /// Only `true`: whatever its value.
    pub(super) present: Option<bool>,
}

/// A list whose broken entries are null, so that the others keep their places.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct List<T>(Vec<Option<T>>);

impl<T> List<T> {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The entries, with their places.
    pub(super) fn entries(&self) -> impl Iterator<Item = (usize, Option<&T>)> {
        self.0.iter().map(Option::as_ref).enumerate()
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: JsonSchema> JsonSchema for List<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        Vec::<T>::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Vec::<T>::json_schema(generator)
    }
}

/// A text that is not to be seen.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(super) struct Secret(pub(super) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A time with its unit, such as `50ms`, `1s` or `2m`.
#[derive(Debug, JsonSchema)]
#[schemars(extend("pattern" = "^ *([0-9]+ *[a-zµ]+ *)+$", "examples" = ["50ms", "1s"]))]
pub(super) struct Span(pub(super) String);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time with its unit, such as 50ms or 1s")
            }

            fn visit_str<E>(self, text: &str) -> Result<Span, E> {
                Ok(Span(text.to_owned()))
            }
        }
        deserializer.deserialize_str(Text)
    }
}
