//! An OpenTelemetry collector in the test's own process. tests/e2e shares it.

use super::eventually;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

pub type Batches = Arc<Mutex<Vec<ExportTraceServiceRequest>>>;

/// A collector that keeps what it gets.
#[derive(Debug)]
pub struct Collector {
    pub address: SocketAddr,
    pub batches: Batches,
    _runtime: tokio::runtime::Runtime,
}

#[derive(Debug)]
struct Keeper(Batches);

#[tonic::async_trait]
impl TraceService for Keeper {
    async fn export(
        &self,
        batch: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(batch.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// On a free port.
    pub fn start() -> Self {
        Self::start_on(0)
    }

    pub fn start_on(port: u16) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind(("127.0.0.1", port))).unwrap();
        let (address, batches) = (listener.local_addr().unwrap(), Batches::default());
        let service = TraceServiceServer::new(Keeper(batches.clone()));
        runtime.spawn(Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)));
        Self { address, batches, _runtime: runtime }
    }

    /// For the configuration.
    pub fn section(&self) -> String {
        format!("traces: {{endpoint: 'http://{}'}}\n", self.address)
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        let batches = self.batches.lock().unwrap();
        let scopes = batches.iter().flat_map(|batch| &batch.resource_spans).flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    /// Waits for so many checks and gives them in the order in which they began.
    pub fn checks(&self, count: usize) -> Vec<Span> {
        let mut checks = eventually(&format!("{count} checks are exported"), || {
            let checks: Vec<Span> = self.spans().into_iter().filter(|span| span.name == "check").collect();
            (checks.len() >= count).then_some(checks)
        });
        assert_eq!(checks.len(), count, "{checks:#?}");
        checks.sort_by_key(|span| span.start_time_unix_nano);
        checks
    }

    pub fn children(&self, of: &Span) -> Vec<Span> {
        self.spans().into_iter().filter(|span| span.parent_span_id == of.span_id).collect()
    }

    /// All that was exported, as it was sent.
    pub fn bytes(&self) -> Vec<u8> {
        self.batches.lock().unwrap().iter().flat_map(Message::encode_to_vec).collect()
    }
}

fn text(value: Option<&Value>) -> String {
    match value {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(value)) => value.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Attributes as `name=value`, in order of their names.
pub fn told(attributes: &[KeyValue]) -> Vec<String> {
    let value = |pair: &KeyValue| text(pair.value.as_ref().unwrap().value.as_ref());
    let mut told: Vec<String> = attributes.iter().map(|pair| format!("{}={}", pair.key, value(pair))).collect();
    told.sort();
    told
}
