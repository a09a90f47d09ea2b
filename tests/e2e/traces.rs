//! One trace of Envoy's spans and tidegate's.

use crate::support::collector::{Collector, told};
use crate::support::{Gateway, eventually};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;

fn name(spans: &[Span], id: &[u8]) -> Option<String> {
    spans.iter().find(|span| span.span_id == id).map(|span| span.name.clone())
}

#[test]
fn a_check_is_a_child_of_the_span_that_envoy_makes_of_its_call_whatever_the_client_sends() {
    let collector = Collector::start();
    let (endpoint, address) = (format!("http://{}", collector.address), collector.address.to_string());
    let traced = json!({"endpoint": endpoint, "sample_ratio": 0});
    let gateway = Gateway::start_with(|config| config["traces"] = traced, |envoy| envoy.trace_to(&address));
    let traces = ["4bf92f3577b34da6a3ce929d0e0e4736", "5bf92f3577b34da6a3ce929d0e0e4736"];
    let parent = |trace: &str, flags: &str| format!("00-{trace}-00f067aa0ba902b7-{flags}");
    assert_eq!(gateway.stranger().get("/v1/hello").status, 200);
    let of_client = gateway.stranger().with("traceparent", &parent(traces[0], "01"));
    assert_eq!(of_client.get("/v1/hello").status, 200);
    let unsampled = gateway.stranger().with("traceparent", &parent(traces[1], "00"));
    assert_eq!(unsampled.get("/v1/hello").status, 200);

    let checks = collector.checks(2);
    eventually("Envoy's spans are exported too", || {
        let spans = collector.spans();
        checks.iter().all(|check| name(&spans, &check.parent_span_id).is_some()).then_some(())
    });
    let spans = collector.spans();
    for check in &checks {
        let parent = spans.iter().find(|span| span.span_id == check.parent_span_id).unwrap();
        assert_eq!(parent.trace_id, check.trace_id);
        assert!(parent.name.contains("Authorization.Check"), "{} is not of the call", parent.name);
        assert!(told(&check.attributes).contains(&"tidegate.decision=allowed".to_owned()));
        let whole = parent.start_time_unix_nano..=parent.end_time_unix_nano;
        assert!(whole.contains(&check.start_time_unix_nano), "one machine has one clock");
    }
    let hex = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&checks[1].trace_id), traces[0], "Envoy goes on with the client's trace");
    assert!(checks.iter().all(|check| hex(&check.trace_id) != traces[1]));
}
