//! Words a decision for Envoy: the one function from decisions to CheckResponses.
//!
//! In Envoy it is `status.code` that decides: with 0, even a `denied_response` lets the request pass.

use super::headers::{self, number, replace};
use super::proto::{
    CheckResponse, DeniedHttpResponse, FieldEntry, HeaderValueOption, HttpStatus, OkHttpResponse, Status as RpcStatus,
    StatusCode, Struct, Value, check_response::HttpResponse, value::Kind,
};
use crate::bucket::Dimension;
use crate::policy::Plan;
use crate::policy::decision::{Answers, Decision, ErrorAnswer, FailurePolicy, Mode, Outcome, Standing};
use crate::policy::identity;
use bytes::Bytes;
use std::fmt::Write as _;
use tonic::{Code, Status};

/// How long, in seconds, a client should wait while the store is away.
const RETRY_STORE_AFTER: u64 = 1;

/// What the wording depends on besides the decision.
#[derive(Debug)]
pub struct Wording<'a, K> {
    pub answers: &'a Answers,
    /// The headers that carry API keys.
    pub key_headers: K,
    /// Whether the client speaks gRPC.
    pub grpc: bool,
}

/// Words the answer.
///
/// # Errors
/// When the store failed, the policy is to deny and Envoy is to be told by a failing call
/// ([`ErrorAnswer::GrpcStatus`]).
pub fn write<'a, K: Iterator<Item = &'a str>>(
    plan: &Plan<'_>,
    decision: &Decision<'_>,
    wording: Wording<'a, K>,
) -> Result<CheckResponse, Status> {
    if decision.passes() {
        return Ok(passed(plan, decision, wording));
    }
    match &decision.outcome {
        Outcome::Failed(_) if wording.answers.error_answer == ErrorAnswer::GrpcStatus => {
            Err(Status::unavailable("rate limiter unavailable"))
        }
        Outcome::Failed(_) => Ok(unavailable(plan, decision)),
        _ => Ok(denied(plan, decision, &wording)),
    }
}

fn passed<'a, K: Iterator<Item = &'a str>>(
    plan: &Plan<'_>,
    decision: &Decision<'_>,
    wording: Wording<'a, K>,
) -> CheckResponse {
    let mut ok = OkHttpResponse::default();
    if matches!(decision.outcome, Outcome::Failed(_)) {
        // Replaces the client's own. A name that is both set and removed would end removed.
        ok.headers.push(replace(headers::DEGRADED, Bytes::from_static(b"true")));
    } else {
        ok.headers_to_remove.push(Bytes::from_static(headers::DEGRADED.as_bytes()));
    }
    if wording.answers.strip_api_key {
        ok.headers_to_remove.extend(wording.key_headers.map(|name| Bytes::copy_from_slice(name.as_bytes())));
    }
    ok.response_headers_to_add = limit_headers(plan, decision, wording.answers);
    answer(Code::Ok, HttpResponse::OkResponse(ok), plan, decision)
}

fn denied<K>(plan: &Plan<'_>, decision: &Decision<'_>, wording: &Wording<'_, K>) -> CheckResponse {
    let retry_after = retry_after(&decision.outcome);
    let mut fields = limit_headers(plan, decision, wording.answers);
    fields.extend(retry_after.map(|seconds| replace(headers::RETRY_AFTER, number(seconds))));
    if wording.grpc {
        // Without it Envoy turns a 429 into UNAVAILABLE, which clients retry at once.
        fields.push(replace(headers::GRPC_STATUS, number(Code::ResourceExhausted as u64)));
        fields.extend(retry_after.map(|seconds| replace(headers::GRPC_PUSHBACK, number(seconds.saturating_mul(1000)))));
    }
    let response = http(StatusCode::TooManyRequests, fields, denied_body(&decision.outcome));
    answer(Code::ResourceExhausted, HttpResponse::DeniedResponse(response), plan, decision)
}

fn unavailable(plan: &Plan<'_>, decision: &Decision<'_>) -> CheckResponse {
    let fields = vec![replace(headers::RETRY_AFTER, number(RETRY_STORE_AFTER))];
    let body = Bytes::from_static(br#"{"error":"rate_limiter_unavailable"}"#);
    let response = http(StatusCode::ServiceUnavailable, fields, body);
    answer(Code::Unavailable, HttpResponse::ErrorResponse(response), plan, decision)
}

fn http(code: StatusCode, mut headers: Vec<HeaderValueOption>, body: Bytes) -> DeniedHttpResponse {
    headers.push(replace(headers::CONTENT_TYPE, Bytes::from_static(b"application/json")));
    DeniedHttpResponse { status: Some(HttpStatus { code: code.into() }), headers, body }
}

fn answer(code: Code, response: HttpResponse, plan: &Plan<'_>, decision: &Decision<'_>) -> CheckResponse {
    CheckResponse {
        status: Some(RpcStatus { code: code.into() }),
        http_response: Some(response),
        dynamic_metadata: Some(metadata(plan, decision)),
    }
}

fn retry_after(outcome: &Outcome) -> Option<u64> {
    match outcome {
        Outcome::Denied { retry_after, .. } => Some(*retry_after),
        _ => None,
    }
}

fn dimensions(outcome: &Outcome) -> &[Dimension] {
    match outcome {
        Outcome::Denied { exhausted: dimensions, .. } | Outcome::NeverFits { exceeded: dimensions } => dimensions,
        _ => &[],
    }
}

/// The body is made of constants and numbers, so it needs no escaping.
fn denied_body(outcome: &Outcome) -> Bytes {
    let mut body = String::from(r#"{"error":"rate_limit_exceeded","#);
    // Writing into a String cannot fail.
    let _ = match retry_after(outcome) {
        Some(seconds) => write!(body, r#""retry_after":{seconds},"#),
        None => body.write_str(r#""never_fits":true,"#),
    };
    body.push_str(r#""limits":["#);
    for (place, dimension) in dimensions(outcome).iter().enumerate() {
        let comma = if place == 0 { "" } else { "," };
        let _ = write!(body, r#"{comma}"{dimension}""#);
    }
    body.push_str("]}");
    body.into()
}

/// The headers that tell the client how its binding bucket stands; of a cost that never fits, only what would.
fn limit_headers(plan: &Plan<'_>, decision: &Decision<'_>, answers: &Answers) -> Vec<HeaderValueOption> {
    let mut fields = Vec::with_capacity(8);
    if let Some(standing) = &decision.binding {
        if answers.x_ratelimit {
            fields.push(replace(headers::LIMIT, number(standing.limit)));
            fields.push(replace(headers::REMAINING, number(standing.remaining)));
            fields.push(replace(headers::RESET, number(standing.reset)));
        }
        if answers.ietf {
            ietf_headers(standing, decision, &mut fields);
        }
    } else if let Some(charge) = plan.never_fits().next().filter(|_| answers.x_ratelimit) {
        fields.push(replace(headers::LIMIT, number(charge.quota.max_tokens() as u64)));
        fields.push(replace(headers::REMAINING, number(0)));
    }
    fields
}

/// draft-ietf-httpapi-ratelimit-headers-10: `q` quota, `w` window, `r` remaining, `t` seconds until more is to be had.
fn ietf_headers(standing: &Standing, decision: &Decision<'_>, fields: &mut Vec<HeaderValueOption>) {
    let Standing { dimension, limit, remaining, reset, window } = standing;
    let effective = retry_after(&decision.outcome).unwrap_or(*reset);
    fields.push(replace(headers::IETF_POLICY, format!(r#""{dimension}";q={limit};w={window}"#)));
    fields.push(replace(headers::IETF_LIMIT, format!(r#""{dimension}";r={remaining};t={effective}"#)));
}

/// What Envoy's access log can show under the namespace `envoy.filters.http.ext_authz`.
fn metadata(plan: &Plan<'_>, decision: &Decision<'_>) -> Struct {
    let mut fields = Vec::with_capacity(10);
    let mut text = |name: &'static str, value: Bytes| fields.push(field(name, Kind::StringValue(value)));
    text("decision", Bytes::from_static(decision_name(decision).as_bytes()));
    text("tier", Bytes::copy_from_slice(decision.tier.as_bytes()));
    if let Some(rule) = decision.rule {
        text("rule", Bytes::copy_from_slice(rule.as_bytes()));
    }
    if let Some(name) = decision.key_name {
        text("key_name", Bytes::copy_from_slice(name.as_bytes()));
    }
    let binding =
        decision.binding_charge.and_then(|place| plan.charges.get(place)).or_else(|| plan.never_fits().next());
    if let Some(charge) = binding {
        let dimension = charge.key.dimension;
        text("dimension", Bytes::from_static(dimension.name().as_bytes()));
        text("identity", hashed_identity(dimension, charge.key.id(plan.key_prefix)));
    }
    if let Some(standing) = &decision.binding {
        fields.push(field("limit", Kind::NumberValue(standing.limit as f64)));
        fields.push(field("remaining", Kind::NumberValue(standing.remaining as f64)));
    }
    if let Some(seconds) = retry_after(&decision.outcome) {
        fields.push(field("retry_after", Kind::NumberValue(seconds as f64)));
    }
    if decision.mode == Mode::Shadow {
        fields.push(field("shadow", Kind::BoolValue(true)));
    }
    Struct { fields }
}

fn field(name: &'static str, kind: Kind) -> FieldEntry {
    FieldEntry { key: Bytes::from_static(name.as_bytes()), value: Some(Value { kind: Some(kind) }) }
}

/// What was decided, whether or not it is carried out.
fn decision_name(decision: &Decision<'_>) -> &'static str {
    match decision.outcome {
        Outcome::Exempt => "exempt",
        Outcome::Admitted => "allowed",
        Outcome::Denied { .. } => "denied",
        Outcome::NeverFits { .. } => "never_fits",
        Outcome::Failed(FailurePolicy::Allow) => "degraded",
        Outcome::Failed(FailurePolicy::Deny) => "unavailable",
    }
}

/// A key's id is a digest already; the others are hashed here, so that an access log names nobody.
fn hashed_identity(dimension: Dimension, id: &str) -> Bytes {
    match dimension {
        Dimension::Key => Bytes::copy_from_slice(id.as_bytes()),
        Dimension::User | Dimension::Ip => identity::sha256(id.as_bytes()).to_string().into(),
    }
}
