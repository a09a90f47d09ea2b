//! Where spans go, and of which checks.

use super::text::span;
use crate::config::fault::{Report, quoted};
use crate::config::raw;
use crate::trace::Traces;
use hyper::Uri;
use std::time::Duration;

const ENDPOINT: &str = "traces.endpoint";
const RIGHT: &str = "write http://host:4317 or https://host:4317, or off";

/// The outer `None`: there are faults. The inner: no traces.
pub(super) fn traces(raw: Option<&raw::Traces>, report: &mut Report) -> Option<Option<Traces>> {
    let Some(raw) = raw else { return Some(None) };
    let sample_ratio = sample_ratio(raw.sample_ratio, report);
    let sane = Duration::from_millis(10)..=Duration::from_secs(60);
    let timeout = span("traces.timeout", raw.timeout.as_ref(), Duration::from_secs(5), sane, report);
    let endpoint = endpoint(raw, report);
    let (endpoint, sample_ratio, timeout) = (endpoint?, sample_ratio?, timeout?);
    Some(endpoint.map(|endpoint| Traces { endpoint, sample_ratio, timeout }))
}

fn sample_ratio(ratio: Option<f64>, report: &mut Report) -> Option<f64> {
    let ratio = ratio.unwrap_or(1.0);
    if (0.0..=1.0).contains(&ratio) {
        return Some(ratio);
    }
    let right = "write 0 to 1, such as 0.01 for one check of a hundred";
    report.fault("traces.sample_ratio", format!("{ratio} is out of range; {right}"));
    None
}

/// The outer `None`: there are faults. The inner: there is none.
fn endpoint(raw: &raw::Traces, report: &mut Report) -> Option<Option<String>> {
    let Some(raw::Secret(text)) = &raw.endpoint else {
        if raw.sample_ratio.is_some() || raw.timeout.is_some() {
            report.warn("traces", "is of no effect without an endpoint");
        }
        return Some(None);
    };
    if text == "off" {
        return Some(None);
    }
    match fault_of(text) {
        None => Some(Some(text.clone())),
        Some(fault) => {
            report.fault(ENDPOINT, fault);
            None
        }
    }
}

/// What is wrong with an address. Shows nothing of one that may hold a password.
fn fault_of(text: &str) -> Option<String> {
    if text.contains('@') {
        let instead = "give credentials as headers in OTEL_EXPORTER_OTLP_HEADERS";
        return Some(format!("holds a user or a password, which would be logged; {instead}"));
    }
    let shown = quoted(text);
    let Ok(uri) = text.parse::<Uri>() else {
        return Some(format!("{shown} is no address of a collector; {RIGHT}"));
    };
    let host = uri.host().filter(|host| !host.is_empty());
    let (Some("http" | "https"), Some(host)) = (uri.scheme_str(), host) else {
        return Some(format!("{shown} is no address of a collector; {RIGHT}"));
    };
    let with_port = uri.authority().is_some_and(|authority| authority.as_str() != host);
    if with_port && uri.port_u16().is_none_or(|port| port == 0) {
        return Some(format!("{shown} has no port of 1 to 65535 behind its colon; {RIGHT}"));
    }
    let bare = uri.path() == "/" && uri.query().is_none() && !text.contains('#');
    (!bare).then(|| format!("{shown} has a path, which OTLP over gRPC has not; {RIGHT}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_scheme_a_host_and_perhaps_a_port() {
        for good in
            ["http://collector:4317", "https://h", "http://127.0.0.1:1/", "http://[::1]:4317", "HTTPS://H:65535"]
        {
            assert_eq!(fault_of(good), None, "{good}");
        }
        for (bad, why) in [
            ("", "no address"),
            ("collector:4317", "no address"),
            ("grpc://collector:4317", "no address"),
            ("http://", "no address"),
            ("http://:4317", ""),
            ("http://a b:4317", "no address"),
            ("http://a\n:4317", "no address"),
            ("unix:///run/collector", "no address"),
            ("http://h:0", "no port"),
            ("http://h:65536", "no port"),
            ("http://h:", "no port"),
            ("http://h:4318/v1/traces", "a path"),
            ("http://h/?x=1", "a path"),
            ("http://h/#x", "a path"),
            ("http://u:hunter2@h:4317", "a password"),
            ("http://u:hun/ter2@h", "a password"),
        ] {
            let told = fault_of(bad).unwrap_or_default();
            assert!(!told.is_empty() && told.contains(why) && !told.contains("hunter2"), "{bad:?}: {told:?}");
        }
    }
}
