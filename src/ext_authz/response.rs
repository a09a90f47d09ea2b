//! Words a decision for Envoy: the one function from decisions to CheckResponses.
//!
//! In Envoy it is `status.code` that decides: with 0, even a `denied_response` lets the request pass.

use super::headers::{self, number, replace};
use super::metadata;
use super::proto::{
    CheckResponse, DeniedHttpResponse, HeaderValueOption, HttpStatus, OkHttpResponse, Status as RpcStatus, StatusCode,
    check_response::HttpResponse,
};
use crate::bucket::Dimension;
use crate::policy::Plan;
use crate::policy::api_key::Digester;
use crate::policy::decision::{Answers, Decision, ErrorAnswer, Outcome, Standing, SuspendedAnswer};
use bytes::Bytes;
use std::fmt::Write as _;
use tonic::{Code, Status};

/// How long, in seconds, a client should wait while the store is away.
const RETRY_STORE_AFTER: u64 = 1;

/// The pushback of a gRPC client that is not to try again: gRFC A6 takes any negative number so.
const NEVER_RETRY: &[u8] = b"-1";

/// What the wording depends on besides the decision.
#[derive(Debug)]
pub struct Wording<'a, K> {
    pub answers: &'a Answers,
    /// Hides identities in metadata as it hides API keys.
    pub digester: &'a Digester,
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
    decision: &Decision,
    wording: Wording<'a, K>,
) -> Result<CheckResponse, Status> {
    if decision.passes() {
        return Ok(passed(plan, decision, wording));
    }
    match &decision.outcome {
        Outcome::Failed(_) if wording.answers.error_answer == ErrorAnswer::GrpcStatus => {
            Err(Status::unavailable("rate limiter unavailable"))
        }
        Outcome::Failed(_) => Ok(unavailable(plan, decision, wording.digester)),
        Outcome::Suspended => Ok(suspended(plan, decision, &wording)),
        _ => Ok(denied(plan, decision, &wording)),
    }
}

fn passed<'a, K: Iterator<Item = &'a str>>(
    plan: &Plan<'_>,
    decision: &Decision,
    wording: Wording<'a, K>,
) -> CheckResponse {
    let mut ok = OkHttpResponse::default();
    if decision.degraded() {
        // Replaces the client's own. A name that is both set and removed would end removed.
        ok.headers.push(replace(headers::DEGRADED, Bytes::from_static(b"true")));
    } else {
        ok.headers_to_remove.push(Bytes::from_static(headers::DEGRADED.as_bytes()));
    }
    if wording.answers.strip_api_key {
        ok.headers_to_remove.extend(wording.key_headers.map(|name| Bytes::copy_from_slice(name.as_bytes())));
    }
    ok.response_headers_to_add = limit_headers(plan, decision, wording.answers);
    answer(Code::Ok, HttpResponse::OkResponse(ok), metadata::write(plan, decision, wording.digester))
}

fn denied<K>(plan: &Plan<'_>, decision: &Decision, wording: &Wording<'_, K>) -> CheckResponse {
    let retry_after = retry_after(&decision.outcome);
    let mut fields = limit_headers(plan, decision, wording.answers);
    fields.extend(retry_after.map(|seconds| replace(headers::RETRY_AFTER, number(seconds))));
    if wording.grpc {
        // Without it Envoy turns a 429 into UNAVAILABLE, which clients retry at once.
        fields.push(replace(headers::GRPC_STATUS, number(Code::ResourceExhausted as u64)));
        fields.extend(retry_after.map(|seconds| replace(headers::GRPC_PUSHBACK, number(seconds.saturating_mul(1000)))));
    }
    let response = http(StatusCode::TooManyRequests, fields, denied_body(&decision.outcome));
    let metadata = metadata::write(plan, decision, wording.digester);
    answer(Code::ResourceExhausted, HttpResponse::DeniedResponse(response), metadata)
}

/// Says nothing of limits and of waiting, neither of which helps.
fn suspended<K>(plan: &Plan<'_>, decision: &Decision, wording: &Wording<'_, K>) -> CheckResponse {
    let (status, code) = match wording.answers.suspended {
        SuspendedAnswer::Forbidden => (StatusCode::Forbidden, Code::PermissionDenied),
        SuspendedAnswer::TooManyRequests => (StatusCode::TooManyRequests, Code::ResourceExhausted),
    };
    let mut fields = Vec::with_capacity(3);
    if wording.grpc {
        fields.push(replace(headers::GRPC_STATUS, number(code as u64)));
        if code == Code::ResourceExhausted {
            fields.push(replace(headers::GRPC_PUSHBACK, Bytes::from_static(NEVER_RETRY)));
        }
    }
    let response = http(status, fields, Bytes::from_static(br#"{"error":"api_key_suspended"}"#));
    answer(code, HttpResponse::DeniedResponse(response), metadata::write(plan, decision, wording.digester))
}

fn unavailable(plan: &Plan<'_>, decision: &Decision, digester: &Digester) -> CheckResponse {
    let fields = vec![replace(headers::RETRY_AFTER, number(RETRY_STORE_AFTER))];
    let body = Bytes::from_static(br#"{"error":"rate_limiter_unavailable"}"#);
    let response = http(StatusCode::ServiceUnavailable, fields, body);
    answer(Code::Unavailable, HttpResponse::ErrorResponse(response), metadata::write(plan, decision, digester))
}

fn http(code: StatusCode, mut headers: Vec<HeaderValueOption>, body: Bytes) -> DeniedHttpResponse {
    headers.push(replace(headers::CONTENT_TYPE, Bytes::from_static(b"application/json")));
    DeniedHttpResponse { status: Some(HttpStatus { code: code.into() }), headers, body }
}

fn answer(code: Code, response: HttpResponse, metadata: Bytes) -> CheckResponse {
    CheckResponse {
        status: Some(RpcStatus { code: code.into() }),
        http_response: Some(response),
        dynamic_metadata: metadata,
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
fn limit_headers(plan: &Plan<'_>, decision: &Decision, answers: &Answers) -> Vec<HeaderValueOption> {
    let mut fields = Vec::with_capacity(8);
    if let Some((_, standing)) = &decision.binding {
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
fn ietf_headers(standing: &Standing, decision: &Decision, fields: &mut Vec<HeaderValueOption>) {
    let Standing { dimension, limit, remaining, reset, window } = standing;
    let effective = retry_after(&decision.outcome).unwrap_or(*reset);
    fields.push(replace(headers::IETF_POLICY, format!(r#""{dimension}";q={limit};w={window}"#)));
    fields.push(replace(headers::IETF_LIMIT, format!(r#""{dimension}";r={remaining};t={effective}"#)));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
    use super::*;
    use crate::bucket::{Charge, Charges, Key, Level, Quota, Source, Taken};
    use crate::ext_authz::proto::value::Kind;
    use crate::policy::Step;
    use crate::policy::decision::{FailurePolicy, Local, Mode, Unavailable, decide};
    use crate::policy::identity::Caller;
    use std::num::NonZeroU32;

    fn plan(mode: Mode, on_store_error: FailurePolicy, costs: [f64; 2]) -> Plan<'static> {
        let quota = Quota::parse(10.0, 2.0).unwrap();
        let charge = |dimension, id, cost| Charge { key: Key::new("rl:", dimension, id), quota, cost };
        Plan {
            caller: Caller::default(),
            charges: Charges::from_iter([
                charge(Dimension::User, "alice", costs[0]),
                charge(Dimension::Key, "00112233445566778899aabbccddeeff", costs[1]),
            ]),
            tier: "free",
            rule: Some("chat"),
            exempt: false,
            suspended: false,
            key_name: None,
            cost: costs[0],
            mode,
            on_store_error,
            oddity: None,
        }
    }

    fn enforced() -> Plan<'static> {
        plan(Mode::Enforce, FailurePolicy::Deny, [1.0, 1.0])
    }

    const ADMITTED: [f64; 2] = [4.2, 9.0];
    const DENIED: [f64; 2] = [0.5, 0.0];

    fn words(plan: &Plan<'_>, levels: Option<[f64; 2]>, answers: Answers, grpc: bool) -> Result<CheckResponse, Status> {
        let level = |tokens| Level { tokens, elapsed: 0.0 };
        let taken = levels.map(|levels| Taken {
            admitted: levels == ADMITTED,
            levels: levels.map(level).into_iter().collect(),
            source: Source::Store,
        });
        write_of(plan, taken.as_ref().map(Some).ok_or(AWAY), answers, grpc)
    }

    const AWAY: Unavailable<'_> = Unavailable { error: "timeout", local: None };

    fn write_of(
        plan: &Plan<'_>,
        answer: Result<Option<&Taken>, Unavailable<'_>>,
        answers: Answers,
        grpc: bool,
    ) -> Result<CheckResponse, Status> {
        let digester = Digester::default();
        let key_headers = ["x-api-key"].into_iter();
        write(plan, &decide(plan, answer), Wording { answers: &answers, digester: &digester, key_headers, grpc })
    }

    /// What buckets of this process answer under the policy `local` of two replicas, when they hold so much.
    fn words_of_local(plan: &Plan<'_>, tokens: f64) -> CheckResponse {
        let charges = plan.share(NonZeroU32::new(2).unwrap()).unwrap();
        let admitted = tokens >= charges[0].cost;
        let levels = charges.iter().map(|_| Level { tokens, elapsed: 0.0 }).collect();
        let local = Local { charges, taken: Taken { admitted, levels, source: Source::Store } };
        write_of(plan, Err(Unavailable { local: Some(&local), ..AWAY }), Answers::default(), false).unwrap()
    }

    fn pairs(headers: &[HeaderValueOption]) -> Vec<(String, String)> {
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        headers.iter().map(|h| h.header.as_ref().unwrap()).map(|h| (text(&h.key), text(&h.value))).collect()
    }

    fn owned(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn metadata_of(response: &CheckResponse, name: &str) -> Option<Kind> {
        let fields = metadata::read(response).unwrap().fields;
        fields.into_iter().find(|field| field.key == name)?.value?.kind
    }

    fn code(response: &CheckResponse) -> i32 {
        response.status.as_ref().unwrap().code
    }

    #[test]
    fn an_admitted_request_is_told_of_its_binding_bucket() {
        let response = words(&enforced(), Some(ADMITTED), Answers::default(), false).unwrap();
        let Some(HttpResponse::OkResponse(ok)) = &response.http_response else { panic!("{response:?}") };
        assert_eq!(code(&response), 0);
        let expected =
            owned(&[("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "4"), ("x-ratelimit-reset", "3")]);
        assert_eq!(pairs(&ok.response_headers_to_add), expected);
        assert_eq!(ok.headers, []);
        assert_eq!(ok.headers_to_remove, ["x-ratelimit-degraded"], "a client's own is removed");
        assert_eq!(metadata_of(&response, "decision"), Some(Kind::StringValue("allowed".into())));
        assert_eq!(metadata_of(&response, "remaining"), Some(Kind::NumberValue(4.0)));
    }

    #[test]
    fn a_denial_names_every_exhausted_bucket_and_the_longest_wait() {
        let response = words(&enforced(), Some(DENIED), Answers::default(), false).unwrap();
        let Some(HttpResponse::DeniedResponse(denied)) = &response.http_response else { panic!("{response:?}") };
        assert_ne!(code(&response), 0, "with 0 Envoy would let it pass");
        assert_eq!(denied.status.as_ref().unwrap().code, 429);
        assert_eq!(denied.body, r#"{"error":"rate_limit_exceeded","retry_after":1,"limits":["user","key"]}"#);
        let expected = owned(&[
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "5"),
            ("retry-after", "1"),
            ("content-type", "application/json"),
        ]);
        assert_eq!(pairs(&denied.headers), expected);
        assert_eq!(metadata_of(&response, "retry_after"), Some(Kind::NumberValue(1.0)));
        let identity = metadata_of(&response, "identity");
        assert_eq!(identity, Some(Kind::StringValue("00112233445566778899aabbccddeeff".into())));
    }

    #[test]
    fn only_a_grpc_client_is_sent_a_grpc_status() {
        let response = words(&enforced(), Some(DENIED), Answers::default(), true).unwrap();
        let Some(HttpResponse::DeniedResponse(denied)) = &response.http_response else { panic!("{response:?}") };
        let headers = pairs(&denied.headers);
        assert!(headers.contains(&("grpc-status".into(), "8".into())));
        assert!(headers.contains(&("grpc-retry-pushback-ms".into(), "1000".into())));
    }

    #[test]
    fn a_cost_that_never_fits_is_denied_without_a_retry_after() {
        let plan = plan(Mode::Enforce, FailurePolicy::Allow, [11.0, 1.0]);
        assert_eq!(plan.step(), Step::NeverFits);
        let response = words(&plan, None, Answers::default(), true).unwrap();
        let Some(HttpResponse::DeniedResponse(denied)) = &response.http_response else { panic!("{response:?}") };
        assert_eq!(denied.body, r#"{"error":"rate_limit_exceeded","never_fits":true,"limits":["user"]}"#);
        let names: Vec<String> = pairs(&denied.headers).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["x-ratelimit-limit", "x-ratelimit-remaining", "grpc-status", "content-type"]);
        assert_eq!(metadata_of(&response, "decision"), Some(Kind::StringValue("never_fits".into())));
    }

    #[test]
    fn in_shadow_mode_nothing_is_denied_and_all_is_told() {
        let plan = plan(Mode::Shadow, FailurePolicy::Deny, [1.0, 1.0]);
        for levels in [Some(DENIED), None] {
            let response = words(&plan, levels, Answers::default(), false).unwrap();
            assert_eq!(code(&response), 0);
            assert_eq!(metadata_of(&response, "shadow"), Some(Kind::BoolValue(true)));
        }
    }

    #[test]
    fn a_failed_store_is_said_to_the_upstream_when_requests_pass() {
        let plan = plan(Mode::Enforce, FailurePolicy::Allow, [1.0, 1.0]);
        let response = words(&plan, None, Answers::default(), false).unwrap();
        let Some(HttpResponse::OkResponse(ok)) = &response.http_response else { panic!("{response:?}") };
        assert_eq!(pairs(&ok.headers), owned(&[("x-ratelimit-degraded", "true")]));
        assert_eq!(ok.headers_to_remove, [] as [Bytes; 0], "a name both set and removed would end removed");
        assert_eq!(ok.response_headers_to_add, []);
    }

    #[test]
    fn a_failed_store_is_an_error_when_requests_are_denied() {
        let response = words(&enforced(), None, Answers::default(), false).unwrap();
        let Some(HttpResponse::ErrorResponse(error)) = &response.http_response else { panic!("{response:?}") };
        assert_ne!(code(&response), 0);
        assert_eq!(error.status.as_ref().unwrap().code, 503);
        assert_eq!(error.body, r#"{"error":"rate_limiter_unavailable"}"#);
        assert!(pairs(&error.headers).contains(&("retry-after".into(), "1".into())));

        let old = Answers { error_answer: ErrorAnswer::GrpcStatus, ..Answers::default() };
        assert_eq!(words(&enforced(), None, old, false).unwrap_err().code(), Code::Unavailable);
    }

    fn local(mode: Mode, cost: f64) -> Plan<'static> {
        plan(mode, FailurePolicy::Local { replicas: NonZeroU32::new(2).unwrap() }, [cost; 2])
    }

    #[test]
    fn what_local_buckets_admit_is_said_to_the_upstream_and_told_with_their_share() {
        let response = words_of_local(&local(Mode::Enforce, 1.0), 4.2);
        let Some(HttpResponse::OkResponse(ok)) = &response.http_response else { panic!("{response:?}") };
        assert_eq!(pairs(&ok.headers), owned(&[("x-ratelimit-degraded", "true")]));
        let told = owned(&[("x-ratelimit-limit", "5"), ("x-ratelimit-remaining", "4"), ("x-ratelimit-reset", "1")]);
        assert_eq!(pairs(&ok.response_headers_to_add), told);
        assert_eq!(metadata_of(&response, "decision"), Some(Kind::StringValue("allowed".into())));
        assert_eq!(metadata_of(&response, "degraded"), Some(Kind::BoolValue(true)));
        assert_eq!(metadata_of(&response, "store_error"), Some(Kind::StringValue("timeout".into())));
    }

    #[test]
    fn what_local_buckets_deny_is_a_429_with_the_wait_of_their_share() {
        let response = words_of_local(&local(Mode::Enforce, 4.0), 1.0);
        let Some(HttpResponse::DeniedResponse(denied)) = &response.http_response else { panic!("{response:?}") };
        assert_eq!(denied.status.as_ref().unwrap().code, 429);
        assert_eq!(denied.body, r#"{"error":"rate_limit_exceeded","retry_after":3,"limits":["user","key"]}"#);
        assert_eq!(pairs(&denied.headers)[0], ("x-ratelimit-limit".into(), "5".into()));
        assert_eq!(metadata_of(&response, "decision"), Some(Kind::StringValue("denied".into())));
        assert_eq!(metadata_of(&response, "degraded"), Some(Kind::BoolValue(true)));

        let shadowed = words_of_local(&local(Mode::Shadow, 4.0), 1.0);
        let Some(HttpResponse::OkResponse(ok)) = &shadowed.http_response else { panic!("{shadowed:?}") };
        assert_eq!(pairs(&ok.headers), owned(&[("x-ratelimit-degraded", "true")]));
        assert_eq!(metadata_of(&shadowed, "decision"), Some(Kind::StringValue("denied".into())));
    }

    #[test]
    fn a_cost_above_every_local_share_is_answered_as_by_deny_and_not_as_one_that_never_fits() {
        let plan = local(Mode::Enforce, 6.0);
        assert_eq!((plan.step(), plan.share(NonZeroU32::new(2).unwrap())), (Step::Take, None));
        let response = words(&plan, None, Answers::default(), false).unwrap();
        let Some(HttpResponse::ErrorResponse(error)) = &response.http_response else { panic!("{response:?}") };
        assert_eq!(error.status.as_ref().unwrap().code, 503);
        assert!(pairs(&error.headers).contains(&("retry-after".into(), "1".into())));
        assert_eq!(metadata_of(&response, "decision"), Some(Kind::StringValue("unavailable".into())));
    }

    #[test]
    fn what_the_store_decided_is_not_called_degraded() {
        let response = words(&enforced(), Some(ADMITTED), Answers::default(), false).unwrap();
        assert_eq!((metadata_of(&response, "degraded"), metadata_of(&response, "store_error")), (None, None));
    }

    #[test]
    fn a_suspended_key_is_denied_without_a_word_of_waiting() {
        let of = |answer, grpc| {
            let plan = Plan {
                charges: Charges::new(),
                suspended: true,
                key_name: Some("acme".into()),
                ..plan(Mode::Enforce, FailurePolicy::Allow, [1.0, 1.0])
            };
            let response = words(&plan, None, Answers { suspended: answer, ..Answers::default() }, grpc).unwrap();
            assert_eq!(metadata_of(&response, "decision"), Some(Kind::StringValue("suspended".into())));
            assert_eq!(metadata_of(&response, "key_name"), Some(Kind::StringValue("acme".into())));
            let Some(HttpResponse::DeniedResponse(denied)) = &response.http_response else { panic!("{response:?}") };
            assert_eq!(denied.body, r#"{"error":"api_key_suspended"}"#);
            (code(&response), denied.status.as_ref().unwrap().code, pairs(&denied.headers))
        };
        use SuspendedAnswer::{Forbidden, TooManyRequests};
        let (json, forbidden) = (("content-type", "application/json"), ("grpc-status", "7"));
        assert_eq!(of(Forbidden, false), (7, 403, owned(&[json])));
        assert_eq!(of(Forbidden, true), (7, 403, owned(&[forbidden, json])));
        assert_eq!(of(TooManyRequests, false), (8, 429, owned(&[json])));
        let never = [("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1"), json];
        assert_eq!(of(TooManyRequests, true), (8, 429, owned(&never)));
    }

    #[test]
    fn headers_are_the_operators_choice() {
        let answers = Answers { x_ratelimit: false, ietf: true, strip_api_key: true, ..Answers::default() };
        let response = words(&enforced(), Some(ADMITTED), answers, false).unwrap();
        let Some(HttpResponse::OkResponse(ok)) = &response.http_response else { panic!("{response:?}") };
        let expected = owned(&[("ratelimit-policy", r#""user";q=10;w=5"#), ("ratelimit", r#""user";r=4;t=3"#)]);
        assert_eq!(pairs(&ok.response_headers_to_add), expected);
        assert_eq!(ok.headers_to_remove, ["x-ratelimit-degraded", "x-api-key"]);
    }
}
