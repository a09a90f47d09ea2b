//! The service itself as a child of the test.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use tempfile::NamedTempFile;

/// `tidegate serve` on a free port; it ends when this is dropped.
#[derive(Debug)]
pub struct Tidegate {
    child: Child,
    pub address: SocketAddr,
    log: Arc<Mutex<String>>,
    _config: NamedTempFile,
}

impl Tidegate {
    /// Starts it with a configuration and returns when it serves.
    pub fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    /// As [`Tidegate::start`], with environment variables.
    pub fn start_with(config: &str, environment: &[(&str, &str)]) -> Self {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(config.as_bytes()).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(file.path())
            .env("TIDEGATE_LOG_FORMAT", "json")
            .envs(environment.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let log = Arc::new(Mutex::new(String::new()));
        let address = lines.by_ref().find_map(|line| {
            note(&log, &line);
            let line: serde_json::Value = serde_json::from_str(&line).ok()?;
            let fields = &line["fields"];
            (fields["message"] == "serving").then(|| fields["listen"].as_str().unwrap().parse().unwrap())
        });
        let address = address.unwrap_or_else(|| panic!("tidegate did not serve:\n{}", log.lock().unwrap()));
        let sink = log.clone();
        std::thread::spawn(move || lines.for_each(|line| note(&sink, &line)));
        Self { child, address, log, _config: file }
    }

    /// All that it logged so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
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
