//! Explains a request: who it is, what it would be charged, and what would be answered. For people.

use super::proto::check_response::HttpResponse;
use super::proto::{CheckRequest, CheckResponse, HeaderValueOption};
use super::{key_headers, request, response};
use crate::bucket::{Charge, Level, Taken};
use crate::jwt::Verified;
use crate::limiter::{Explained, Limiter, counted_as};
use crate::policy::TierFrom;
use crate::policy::decision::{Decision, Outcome};
use crate::policy::identity::UserFrom;
use crate::policy::request::Request;
use serde_json::{Map, Value, json};
use tonic::{Code, Status};

/// Says of a request what a Check of it would come to now, as JSON. Takes nothing.
///
/// Identities stand there in their stored form: of an odd user id, and of every API key, a digest. Nothing else that a
/// client wrote is repeated.
pub async fn explain(limiter: &Limiter, check: &CheckRequest) -> Value {
    let snapshot = limiter.snapshot();
    let (grpc, verdict, explained) = {
        let read = request::read(check);
        let verified = snapshot.verify(&read);
        let verdict = verified.as_ref().map(|verified| verified.verdict.word());
        let request = Request { claims: verified.as_ref().and_then(Verified::claims), ..read };
        (request.is_grpc(), verdict, limiter.explain(&snapshot, &request))
    };
    let Explained { plan, decision, found, tier_from, user_from } = explained.await;
    let (answers, sources) = (&snapshot.policy().answers, &snapshot.policy().sources);
    let wording = response::Wording { answers, digester: &sources.digester, key_headers: key_headers(sources), grpc };
    let answer = response::write(&plan, &decision, wording);
    let levels = found.as_ref().ok().and_then(Option::as_ref);
    let buckets: Vec<Value> =
        plan.charges.iter().enumerate().map(|(place, charge)| bucket(charge, levels, place)).collect();
    let mut told = Map::new();
    let mut tell = |name: &str, value: Value| told.insert(name.to_owned(), value);
    tell("decision", counted_as(&decision.outcome).word().into());
    tell("why", why(&decision).into());
    tell("mode", decision.mode.word().into());
    let ip = plan.caller.ip.as_ref().map(ToString::to_string);
    let key = plan.caller.key.map(|digest| digest.to_string());
    tell("caller", json!({"user": plan.caller.user, "key": key, "key_name": plan.key_name.as_deref(), "ip": ip}));
    tell("user_from", user_from.map(user_source).into());
    if let Some(verdict) = verdict {
        tell("jwt", verdict.into());
    }
    tell("tier", plan.tier.into());
    tell("tier_from", source_of(tier_from).into());
    tell("rule", plan.rule.into());
    tell("cost", plan.cost.into());
    tell("suspended", plan.suspended.into());
    tell("buckets", buckets.into());
    if let Err(error) = found {
        tell("store_error", error.into());
        tell("on_store_error", plan.on_store_error.word().into());
    }
    if let Some(oddity) = plan.oddity {
        tell("context_extensions", format!("cannot be followed: {oddity:?}").into());
    }
    tell("answer", answered(answer));
    told.into()
}

fn user_source(user_from: UserFrom) -> &'static str {
    match user_from {
        UserFrom::Metadata => "metadata",
        UserFrom::Jwt => "jwt",
        UserFrom::Principal => "principal",
        UserFrom::Header => "header",
    }
}

fn source_of(tier_from: TierFrom) -> &'static str {
    match tier_from {
        TierFrom::Rule => "rule",
        TierFrom::User => "users",
        TierFrom::Metadata => "metadata",
        TierFrom::Jwt => "jwt",
        TierFrom::Header => "header",
        TierFrom::ApiKey => "api_key",
        TierFrom::Default => "default_tier",
    }
}

/// The reason in a sentence.
fn why(decision: &Decision) -> String {
    let names = |dimensions: &[crate::bucket::Dimension]| {
        dimensions.iter().map(|dimension| dimension.name()).collect::<Vec<_>>().join(" and ")
    };
    match &decision.outcome {
        Outcome::Exempt => "the rule exempts it from all limits".into(),
        Outcome::Suspended => "its API key is suspended".into(),
        Outcome::Unlimited => "no limit is configured that concerns it".into(),
        Outcome::Admitted => "every bucket covers its cost".into(),
        Outcome::Denied { retry_after, exhausted } => {
            format!("the bucket of its {} does not cover its cost for {retry_after} s", names(exhausted))
        }
        Outcome::NeverFits { exceeded } => {
            format!("its cost is more than the bucket of its {} ever holds", names(exceeded))
        }
        Outcome::Failed(_) => "the store does not answer, so on_store_error decides".into(),
    }
}

fn bucket(charge: &Charge, found: Option<&Taken>, place: usize) -> Value {
    let quota = &charge.quota;
    let mut told = json!({
        "key": charge.key.as_str(),
        "dimension": charge.key.dimension.name(),
        "max_tokens": quota.max_tokens(),
        "refill_rate": quota.refill_rate(),
        "cost": charge.cost,
    });
    if let Some(level) = found.and_then(|found| found.levels.get(place)) {
        told["tokens"] = level.tokens(quota).into();
        told["covers"] = (level.tokens(quota) >= charge.cost).into();
        told["full_in"] = Level::wait(level, quota, quota.max_tokens()).into();
    }
    told
}

fn answered(answer: Result<CheckResponse, Status>) -> Value {
    let answer = match answer {
        Ok(answer) => answer,
        Err(status) => return json!({"grpc_status": grpc_name(status.code()), "call_fails": true}),
    };
    let code = answer.status.map_or(Code::Ok, |status| Code::from(status.code));
    let mut told = json!({"grpc_status": grpc_name(code)});
    match answer.http_response {
        Some(HttpResponse::OkResponse(ok)) => {
            told["passes"] = true.into();
            told["headers_to_client"] = headers(&ok.response_headers_to_add);
            told["headers_to_upstream"] = headers(&ok.headers);
            let removed = ok.headers_to_remove.iter().map(|name| String::from_utf8_lossy(name).into_owned());
            told["headers_removed"] = removed.collect();
        }
        Some(HttpResponse::DeniedResponse(denied) | HttpResponse::ErrorResponse(denied)) => {
            told["passes"] = false.into();
            told["http_status"] = denied.status.map_or(0, |status| status.code).into();
            told["headers_to_client"] = headers(&denied.headers);
            told["body"] = serde_json::from_slice(&denied.body).unwrap_or_default();
        }
        None => {}
    }
    told
}

fn headers(headers: &[HeaderValueOption]) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let pairs = headers.iter().filter_map(|option| option.header.as_ref());
    pairs.map(|header| (text(&header.key), Value::from(text(&header.value)))).collect::<Map<_, _>>().into()
}

/// As gRPC's documents spell it.
fn grpc_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::PermissionDenied => "PERMISSION_DENIED",
        _ => "UNAVAILABLE",
    }
}
