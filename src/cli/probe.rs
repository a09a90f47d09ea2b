//! `tidegate probe`: a running service's address -> whether it is well, one line, and the exit code.
//!
//! Small and quick, as containers are probed by it every few seconds. Knows how a service is asked, and nothing of the
//! service's configuration.

mod check;
mod dial;

use super::{Failure, print};
use crate::config::Environment;
use check::Answer;
use clap::{Args, ValueEnum};
use dial::{Dial, Target, TlsFiles};
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate probe
  tidegate probe unix:/run/tidegate.sock --service liveness
  tidegate probe limiter:50051 --check --expect allowed
  tidegate probe limiter:50051 --tls --ca ca.pem --cert client.pem --key client.key

--check has one request decided, and charged, as that of an address that nobody has: 100:: (RFC 6666), in the bucket
rl:ip:100::/64 of the default tier. It has no user and no API key, and its path is /tidegate/probe. Whoever checks more
often than that bucket refills is told `denied`, which is well unless --expect says otherwise.
Exit codes: 0 well, and as expected; 1 not; 2 wrong usage.";

#[derive(Debug, Args)]
pub(super) struct Probe {
    /// Where it listens: host:port or unix:/path [default: TIDEGATE_LISTEN as seen from here, else 127.0.0.1:50051]
    address: Option<String>,
    /// What grpc.health.v1 is asked of: readiness, liveness, …
    #[arg(long, value_name = "NAME", default_value = "readiness")]
    service: String,
    /// Have one request of nobody's checked too
    #[arg(long)]
    check: bool,
    /// The answer to it that is right; without this, any but a failure
    #[arg(long, value_name = "ANSWER", requires = "check")]
    expect: Option<Expected>,
    /// Connect with TLS
    #[arg(long)]
    tls: bool,
    /// The roots that the service's certificate must lead to, in PEM; without them, Mozilla's
    #[arg(long, value_name = "FILE", requires = "tls")]
    ca: Option<PathBuf>,
    /// A certificate to show, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls", "key"])]
    cert: Option<PathBuf>,
    /// Its key, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls", "cert"])]
    key: Option<PathBuf>,
    /// The name that the service's certificate must have; without it, the host
    #[arg(long, value_name = "NAME", requires = "tls")]
    server_name: Option<String>,
    /// How long all of it may take
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// An answer that is asserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Expected {
    Allowed,
    Denied,
}

impl Expected {
    fn word(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
        }
    }
}

/// What was found out, as far as it came.
#[derive(Debug, Default)]
struct Found {
    health: Option<&'static str>,
    check: Option<Answer>,
}

pub(super) fn run(probe: Probe) -> Result<(), Failure> {
    let from = probe.address.clone().or_else(|| Environment::of_process().listen());
    let target = Target::parse(from.as_deref().unwrap_or("127.0.0.1:50051")).map_err(Failure::Usage)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (begun, mut found) = (Instant::now(), Found::default());
    let asked = runtime.block_on(async {
        let late = |_| Err(format!("no answer within {}", humantime::format_duration(probe.timeout)));
        tokio::time::timeout(probe.timeout, ask(&probe, &target, &mut found)).await.unwrap_or_else(late)
    });
    // A name that is still being looked up is waited for by nobody.
    runtime.shutdown_background();
    let took = begun.elapsed();
    if probe.json {
        print(&format!("{}\n", told(&probe, &target, &found, &asked, took)))?;
    }
    match asked {
        Ok(()) if probe.json => Ok(()),
        Ok(()) => print(&format!("{target}: {}, in {} ms\n", line(&probe, &found), took.as_millis())),
        Err(why) => Err(Failure::Other(format!("{target}: {why}"))),
    }
}

/// Asks one thing after the other, until one is not well.
async fn ask(probe: &Probe, target: &Target, found: &mut Found) -> Result<(), String> {
    let channel = dial(probe, target)?.connect().await?;
    let health = health(channel.clone(), &probe.service).await?;
    found.health = Some(health);
    if health != SERVING {
        return Err(format!("{} is {health}", named(&probe.service)));
    }
    if !probe.check {
        return Ok(());
    }
    let answer = found.check.insert(check::ask(channel).await?);
    match probe.expect {
        Some(expected) if expected.word() != answer.word() => Err(format!("check: {answer}, not {}", expected.word())),
        None if !answer.is_decided() => Err(format!("check: {answer}")),
        _ => Ok(()),
    }
}

fn dial<'a>(probe: &Probe, target: &'a Target) -> Result<Dial<'a>, String> {
    if !probe.tls {
        return Ok(Dial::plain(target));
    }
    let read = |path: &PathBuf| std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()));
    let files = TlsFiles {
        ca: probe.ca.as_ref().map(read).transpose()?,
        client: probe.cert.as_ref().map(read).transpose()?.zip(probe.key.as_ref().map(read).transpose()?),
        server_name: probe.server_name.clone(),
    };
    Dial::tls(target, files)
}

const SERVING: &str = "serving";

/// What grpc.health.v1 says of a service, in words.
async fn health(channel: Channel, service: &str) -> Result<&'static str, String> {
    let request = HealthCheckRequest { service: service.to_owned() };
    match HealthClient::new(channel).check(request).await {
        Ok(answer) => Ok(match answer.into_inner().status() {
            ServingStatus::Serving => SERVING,
            ServingStatus::NotServing => "not serving",
            ServingStatus::ServiceUnknown => "unknown",
            ServingStatus::Unknown => "in an unknown state",
        }),
        Err(status) if status.code() == Code::NotFound => Ok("unknown"),
        Err(status) => Err(format!("health: {}", dial::status(&status))),
    }
}

/// `""` is the name of all of it.
fn named(service: &str) -> &str {
    if service.is_empty() { "the process" } else { service }
}

fn line(probe: &Probe, found: &Found) -> String {
    let health = format!("{} is {}", named(&probe.service), found.health.unwrap_or("not known"));
    match &found.check {
        Some(answer) => format!("{health}, check: {answer}"),
        None => health,
    }
}

fn told(
    probe: &Probe,
    target: &Target,
    found: &Found,
    asked: &Result<(), String>,
    took: Duration,
) -> serde_json::Value {
    json!({
        "address": target.to_string(),
        "healthy": asked.is_ok(),
        "error": asked.as_ref().err(),
        "service": probe.service,
        "health": found.health.map(|health| health.replace(' ', "_")),
        "check": found.check.as_ref().map(Answer::json),
        "expected": probe.expect.map(Expected::word),
        "duration_ms": took.as_secs_f64() * 1e3,
    })
}
