//! The service itself as a child of the test.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;
use tidegate::ext_authz::metadata;
use tidegate::ext_authz::proto::authorization_client::AuthorizationClient;
use tidegate::ext_authz::proto::{
    Address, AttributeContext, CheckRequest, CheckResponse, HttpRequest, Peer, Request, SocketAddress, TextEntry,
    address::Address as Arm, value::Kind,
};

use tonic::transport::{Channel, Endpoint};

const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Long enough for a busy machine; only a broken one waits that long.
const PATIENCE: Duration = Duration::from_secs(20);

/// The program, with nothing of the developer's own environment, and an admin port that nobody else has.
pub fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"TIDEGATE_")) {
        command.env_remove(name);
    }
    command.args(arguments).env("TIDEGATE_ADMIN_LISTEN", "127.0.0.1:0");
    command
}

/// `tidegate serve` on a free port; it ends when this is dropped.
#[derive(Debug)]
pub struct Tidegate {
    child: Child,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    log: Arc<Mutex<String>>,
    _config: Option<NamedTempFile>,
}

impl Tidegate {
    /// Starts it with a configuration and returns when it serves.
    pub fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    /// As [`Tidegate::start`], with environment variables.
    pub fn start_with(config: &str, environment: &[(&str, &str)]) -> Self {
        Self::start_on("127.0.0.1:0", config, environment)
    }

    /// As [`Tidegate::start_with`], listening elsewhere than on a free port. On a unix socket, `address` means nothing.
    pub fn start_on(listen: &str, config: &str, environment: &[(&str, &str)]) -> Self {
        Self::start_printing(Stdio::inherit(), listen, config, environment)
    }

    /// As [`Tidegate::start_on`], with its standard output somewhere.
    pub fn start_printing(stdout: Stdio, listen: &str, config: &str, environment: &[(&str, &str)]) -> Self {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(config.as_bytes()).unwrap();
        let path = file.path().to_owned();
        Self::run(stdout, listen, &path, environment, Some(file))
    }

    /// As [`Tidegate::start_with`], with a file that the test may change meanwhile.
    pub fn start_at(config: &Path, environment: &[(&str, &str)]) -> Self {
        Self::run(Stdio::inherit(), "127.0.0.1:0", config, environment, None)
    }

    fn run(
        stdout: Stdio,
        listen: &str,
        config: &Path,
        environment: &[(&str, &str)],
        file: Option<NamedTempFile>,
    ) -> Self {
        let mut child = program(&["serve", "--listen", listen, "--config"])
            .arg(config)
            .env("TIDEGATE_LOG_FORMAT", "json")
            .envs(environment.iter().copied())
            .stdout(stdout)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let log = Arc::new(Mutex::new(String::new()));
        let addresses = lines.by_ref().find_map(|line| {
            note(&log, &line);
            let line: serde_json::Value = serde_json::from_str(&line).ok()?;
            let fields = &line["fields"];
            let address = |name: &str| fields[name].as_str()?.parse().ok();
            let addresses = || ["listen", "admin"].map(|name| address(name).unwrap_or(NOWHERE));
            (fields["message"] == "serving").then(addresses)
        });
        let [address, admin] = addresses.unwrap_or_else(|| panic!("tidegate did not serve:\n{}", log.lock().unwrap()));
        let sink = log.clone();
        std::thread::spawn(move || lines.for_each(|line| note(&sink, &line)));
        Self { child, address, admin, log, _config: file }
    }

    /// All that it logged so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until it has logged a text.
    pub fn wait_for_log(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(Instant::now() < deadline, "{text} is not in the log:\n{}", self.log());
            std::thread::yield_now();
        }
    }

    /// Its standard output, where that is a pipe.
    pub fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// How many file descriptors it may have open; those that it has stay open.
    pub fn limit_files(&self, most: u32) {
        let pid = self.child.id().to_string();
        let status = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={most}:")]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for its end and tells its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

fn note(log: &Mutex<String>, line: &str) {
    let mut log = log.lock().unwrap();
    log.push_str(line);
    log.push('\n');
}

impl Drop for Tidegate {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A request from 192.0.2.1 with these headers.
pub fn check(headers: &[(&str, &str)]) -> CheckRequest {
    let entry = |(key, value): &(&str, &str)| TextEntry {
        key: key.as_bytes().to_vec().into(),
        value: value.as_bytes().to_vec().into(),
    };
    let http = HttpRequest { headers: headers.iter().map(entry).collect(), ..HttpRequest::default() };
    let socket = SocketAddress { address: "192.0.2.1".into() };
    let address = Some(Address { address: Some(Arm::SocketAddress(socket)) });
    CheckRequest {
        attributes: Some(AttributeContext {
            source: Some(Peer { address, ..Peer::default() }),
            request: Some(Request { http: Some(http) }),
            ..AttributeContext::default()
        }),
    }
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A connection to the service.
pub async fn client(service: &Tidegate) -> AuthorizationClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", service.address)).unwrap();
    AuthorizationClient::new(endpoint.connect().await.unwrap())
}

/// What the access log would show under a name, as text.
pub fn told(answer: &CheckResponse, name: &str) -> Option<String> {
    let fields = metadata::read(answer).unwrap().fields;
    match fields.into_iter().find(|field| field.key == name)?.value?.kind? {
        Kind::StringValue(text) => Some(String::from_utf8(text.to_vec()).unwrap()),
        Kind::NumberValue(number) => Some(number.to_string()),
        other => Some(format!("{other:?}")),
    }
}
