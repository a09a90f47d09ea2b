//! The processes that are measured, each a child of its own so that its CPU time is its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use tidegate::ext_authz::proto::authorization_server::{Authorization, AuthorizationServer};
use tidegate::ext_authz::proto::{CheckRequest, CheckResponse, OkHttpResponse, Status, check_response::HttpResponse};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

/// The argument that makes this program the empty service.
pub(crate) const EMPTY_CHECK: &str = "--empty-check";

/// A tier that never denies, and one that soon always does.
pub(crate) const GENEROUS: &str = "{max_tokens: 1000000000, refill_rate: 1000000}";
pub(crate) const STINGY: &str = "{max_tokens: 1, refill_rate: 0.001}";

pub(crate) struct Service {
    child: Child,
    pub(crate) address: SocketAddr,
    /// Where its metrics are, if it was started with such.
    admin: Option<SocketAddr>,
    _config: Option<tempfile::NamedTempFile>,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Service {
    /// The least that a tonic service can do: decode, answer the same to all, encode.
    pub(crate) fn empty_check() -> Self {
        let mut child =
            Command::new(std::env::current_exe().unwrap()).arg(EMPTY_CHECK).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Self { address: line.trim().parse().unwrap(), admin: None, child, _config: None }
    }

    /// tidegate as it ships, with one quota for all buckets of the one tier that callers have.
    pub(crate) fn tidegate(redis: Option<&str>, quota: &str) -> Self {
        Self::run(env!("CARGO_BIN_EXE_tidegate"), redis, quota, "")
    }

    /// As [`Service::tidegate`], of any build, with more of a config. What it prints is nobody's.
    pub(crate) fn run(binary: &str, redis: Option<&str>, quota: &str, config_too: &str) -> Self {
        Self::printing(Stdio::null(), "off", binary, redis, quota, config_too)
    }

    /// As [`Service::run`], printing somewhere, and with an admin endpoint.
    pub(crate) fn printing(
        stdout: Stdio,
        admin: &str,
        binary: &str,
        redis: Option<&str>,
        quota: &str,
        config_too: &str,
    ) -> Self {
        let mut config = tempfile::NamedTempFile::new().unwrap();
        let tier = format!("{{per_user: {quota}, per_key: {quota}, per_ip: {quota}}}");
        let claim = |name| format!("{{metadata: {{namespace: envoy.filters.http.jwt_authn, path: [claims, {name}]}}}}");
        writeln!(config, "default_tier: enterprise\ntiers: {{enterprise: {tier}}}").unwrap();
        writeln!(config, "identity: {{user: [{}], key: [{{header: x-api-key}}],", claim("sub")).unwrap();
        writeln!(config, "  ip: {{from: {{header: x-client-ip}}}}, tier: [{}]}}", claim("tier")).unwrap();
        config.write_all(config_too.as_bytes()).unwrap();
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(config.path());
        if let Some(url) = redis {
            command.args(["--redis-url", url]);
        }
        let mut child = command
            .env("TIDEGATE_LOG_FORMAT", "json")
            .env("TIDEGATE_ADMIN_LISTEN", admin)
            .stdout(stdout)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (address, admin) = announced(&mut child);
        Self { child, address, admin, _config: Some(config) }
    }

    /// Its standard output, where that is a pipe.
    pub(crate) fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().unwrap()
    }

    /// What it has counted, as text.
    pub(crate) fn metrics(&self) -> String {
        let mut socket = TcpStream::connect(self.admin.unwrap()).unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: admin\r\n\r\n").unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        text
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

/// The addresses in the log line that says `serving`; the rest of the log is read and dropped.
fn announced(child: &mut Child) -> (SocketAddr, Option<SocketAddr>) {
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let addresses = lines.by_ref().find_map(|line| {
        let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        let fields = &line["fields"];
        let of = |name: &str| fields[name].as_str()?.parse().ok();
        (fields["message"] == "serving").then(|| (of("listen").unwrap(), of("admin")))
    });
    std::thread::spawn(move || lines.for_each(drop));
    addresses.expect("the service ended before it served")
}

/// CPU time of a process from here on.
pub(crate) struct Cpu {
    pid: u32,
    then: Duration,
}

impl Cpu {
    pub(crate) fn of(pid: u32) -> Self {
        Self { pid, then: cpu_time(pid) }
    }

    pub(crate) fn since(&self) -> Duration {
        cpu_time(self.pid) - self.then
    }
}

/// User and system time, in the kernel's ticks of 10 ms.
fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name, in parentheses, may hold spaces; utime and stime are the 12th and 13th fields after it.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

struct Empty;

#[tonic::async_trait]
impl Authorization for Empty {
    async fn check(&self, _: tonic::Request<CheckRequest>) -> Result<tonic::Response<CheckResponse>, tonic::Status> {
        Ok(tonic::Response::new(CheckResponse {
            status: Some(Status { code: 0 }),
            http_response: Some(HttpResponse::OkResponse(OkHttpResponse::default())),
            dynamic_metadata: bytes::Bytes::new(),
        }))
    }
}

/// Serves the empty service, on the same kind of runtime as tidegate's, until it is killed.
pub(crate) fn serve_empty_check() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        std::io::stdout().flush().unwrap();
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = Server::builder().add_service(AuthorizationServer::new(Empty));
        server.serve_with_incoming(incoming).await.unwrap();
    });
}
