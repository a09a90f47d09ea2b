//! One check of nobody's: a made-up request, and what came of it in words.

use super::dial;
use crate::ext_authz::metadata;
use crate::ext_authz::proto::authorization_client::AuthorizationClient;
use crate::ext_authz::proto::check_response::HttpResponse;
use crate::ext_authz::proto::value::Kind;
use crate::ext_authz::proto::{
    Address, AttributeContext, CheckRequest, CheckResponse, HttpRequest, Peer, Request, SocketAddress, address,
};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::fmt;
use tonic::transport::Channel;

/// An address of the network to which nothing is ever sent (RFC 6666), so that nobody else is charged.
const NOBODY: &str = "100::";

/// A host that nobody has (RFC 2606) and a path, for rules to match on.
const HOST: &str = "probe.tidegate.invalid";
const PATH: &str = "/tidegate/probe";

/// What a check was answered.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    verdict: Verdict,
    /// What is told beside it for Envoy's access log: decision, tier, remaining tokens, …
    metadata: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Denied,
    /// It was not decided, since the store is away.
    Failed,
}

/// Has one request checked.
pub(super) async fn ask(channel: Channel) -> Result<Answer, String> {
    match AuthorizationClient::new(channel).check(request()).await {
        Ok(answer) => Ok(Answer::of(answer.into_inner())),
        Err(status) => Err(format!("check: {}", dial::status(&status))),
    }
}

fn request() -> CheckRequest {
    let text = |text: &'static str| Bytes::from_static(text.as_bytes());
    let socket = address::Address::SocketAddress(SocketAddress { address: text(NOBODY) });
    let http = HttpRequest { method: text("GET"), path: text(PATH), host: text(HOST), ..HttpRequest::default() };
    CheckRequest {
        attributes: Some(AttributeContext {
            source: Some(Peer { address: Some(Address { address: Some(socket) }), ..Peer::default() }),
            request: Some(Request { http: Some(http) }),
            ..AttributeContext::default()
        }),
    }
}

impl Answer {
    fn of(answer: CheckResponse) -> Self {
        let passes = answer.status.as_ref().is_none_or(|status| status.code == 0);
        let verdict = match answer.http_response {
            _ if passes => Verdict::Allowed,
            Some(HttpResponse::ErrorResponse(_)) => Verdict::Failed,
            _ => Verdict::Denied,
        };
        let fields = metadata::read(&answer).map(|told| told.fields).unwrap_or_default();
        let metadata = fields.into_iter().filter_map(|field| {
            let value = match field.value?.kind? {
                Kind::StringValue(text) => String::from_utf8_lossy(&text).into(),
                Kind::NumberValue(number) => whole(number),
                Kind::BoolValue(yes) => yes.into(),
                Kind::StructValue(_) | Kind::ListValue(_) => return None,
            };
            Some((String::from_utf8_lossy(&field.key).into_owned(), value))
        });
        Self { verdict, metadata: metadata.collect() }
    }

    pub(super) fn word(&self) -> &'static str {
        match self.verdict {
            Verdict::Allowed => "allowed",
            Verdict::Denied => "denied",
            Verdict::Failed => "failed",
        }
    }

    /// Whether it says something of the request, and not only that the store is away.
    pub(super) fn is_decided(&self) -> bool {
        self.verdict != Verdict::Failed
    }

    pub(super) fn json(&self) -> Value {
        json!({"answer": self.word(), "metadata": self.metadata})
    }

    fn text(&self, name: &str) -> Option<String> {
        match self.metadata.get(name)? {
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }
}

/// A whole number as one: 10 and not 10.0.
fn whole(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 { (number as i64).into() } else { number.into() }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decision = self.text("decision").filter(|decision| decision != self.word());
        let tier = self.text("tier").map(|tier| format!("tier {tier}"));
        let left =
            self.text("remaining").zip(self.text("limit")).map(|(left, limit)| format!("{left} of {limit} left"));
        let wait = self.text("retry_after").map(|seconds| format!("again in {seconds} s"));
        let more: Vec<String> = [decision, tier, left, wait].into_iter().flatten().collect();
        f.write_str(self.word())?;
        if more.is_empty() { Ok(()) } else { write!(f, " ({})", more.join(", ")) }
    }
}
