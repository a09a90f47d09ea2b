//! Real Redis servers as children of the test.

use redis::{Connection, ConnectionLike};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidegate::store::redis::{CallLimits, RedisSettings, RedisStore, RedisUrl};

/// Starts the server and ends it when standard input closes, which happens even if the test process is killed.
const KEEPER: &str = r#""$@" </dev/null >server.log 2>&1 & echo $!; read -r _; kill -9 $!; wait $! 2>/dev/null"#;

/// Long enough for a busy machine; only a broken one waits that long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A redis-server of its own, without persistence; it ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    keeper: Child,
    pub pid: u32,
    port: u16,
    arguments: Vec<String>,
    directory: TempDir,
}

impl Server {
    pub fn start(arguments: &[&str]) -> Self {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let port = free_port();
            if let Some(server) = Self::start_on(port, arguments) {
                return server;
            }
        }
        panic!("no redis-server came up within {PATIENCE:?}");
    }

    /// `None` when something else took the port first.
    fn start_on(port: u16, arguments: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let (keeper, pid) = launch(directory.path(), port, &arguments);
        let server = Self { keeper, pid, port, arguments, directory };
        server.answers().then_some(server)
    }

    /// Waits until this very process answers. False when another owns the port.
    fn answers(&self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match self.process_id() {
                Some(pid) => return pid == self.pid,
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        false
    }

    fn process_id(&self) -> Option<u32> {
        let mut connection = self.connect()?;
        let information: String = match redis::cmd("INFO").arg("server").query(&mut connection) {
            Ok(text) => text,
            Err(_) => return None,
        };
        information.lines().find_map(|line| line.strip_prefix("process_id:"))?.parse().ok()
    }

    fn connect(&self) -> Option<Connection> {
        let client = redis::Client::open(self.url()).ok()?;
        let mut connection = client.get_connection_with_timeout(PATIENCE).ok()?;
        connection.set_read_timeout(Some(PATIENCE)).ok()?;
        if let Some(password) = self.password() {
            redis::cmd("AUTH").arg(password).query::<()>(&mut connection).ok()?;
        }
        Some(connection)
    }

    /// What it was told to ask of its clients.
    fn password(&self) -> Option<&str> {
        let place = self.arguments.iter().position(|word| word == "--requirepass")?;
        self.arguments.get(place + 1).map(String::as_str)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn connection(&self) -> Connection {
        self.connect().unwrap()
    }

    /// Runs a command given as words.
    pub fn run<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_run(words).unwrap()
    }

    /// As [`Server::run`], of a server that may be down or refuse.
    pub fn try_run<T: redis::FromRedisValue>(&self, words: &[&str]) -> Result<T, String> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        let mut connection = self.connect().ok_or("no connection")?;
        let reply = connection.req_command(&command).and_then(redis::Value::extract_error);
        reply.and_then(|value| Ok(redis::from_redis_value(value)?)).map_err(|error| error.to_string())
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid.to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Ends the server as `kill -9` does; [`Server::restart`] brings it back.
    pub fn crash(&mut self) {
        drop(self.keeper.stdin.take());
        drop(self.keeper.wait());
    }

    /// Starts a crashed server where it was: on its port and in its directory, with what it wrote there.
    pub fn restart(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            (self.keeper, self.pid) = launch(self.directory.path(), self.port, &self.arguments);
            if self.answers() {
                return;
            }
            self.crash();
        }
        panic!("port {} was not to be had again within {PATIENCE:?}", self.port);
    }

    /// Ends the server and says on which port it was.
    pub fn kill(self) -> (u16, Vec<String>) {
        (self.port, self.arguments.clone())
    }

    /// Starts a server on a port that [`Server::kill`] gave back. `None` when something else took it meanwhile.
    pub fn again((port, arguments): &(u16, Vec<String>)) -> Option<Self> {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Self::start_on(*port, &arguments)
    }

    /// As [`Server::again`], until what took the port meanwhile has left it.
    pub fn back(place: &(u16, Vec<String>)) -> Self {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(server) = Self::again(place) {
                return server;
            }
        }
        panic!("port {} was not to be had again within {PATIENCE:?}", place.0);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.crash();
    }
}

/// A port of 127.0.0.1 that nobody has at this instant.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Starts the program in a directory: its keeper and its process id. A first argument that is no option is the text
/// of a configuration file, as a sentinel must have one.
fn launch(directory: &Path, port: u16, arguments: &[String]) -> (Child, u32) {
    let mut command = Command::new("sh");
    command.args(["-c", KEEPER, "sh", &binary()]);
    let (text, options) = match arguments.split_first() {
        Some((text, options)) if !text.starts_with("--") => (Some(text), options),
        _ => (None, arguments),
    };
    if let Some(text) = text {
        let file = directory.join("server.conf");
        if !file.exists() {
            std::fs::write(&file, text).unwrap();
        }
        command.arg(file);
    }
    let mut keeper = command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .args(options)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (keeper, line.trim().parse().unwrap())
}

/// The server that tests share; each uses its own key prefix.
pub fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(&[]))
}

/// Settings for a server, with more patience than production has.
pub fn settings(url: &str) -> RedisSettings {
    let url: RedisUrl = url.parse().unwrap();
    within(PATIENCE, RedisSettings::new(url))
}

/// The same settings with another timeout.
pub fn within(timeout: Duration, settings: RedisSettings) -> RedisSettings {
    RedisSettings { limits: CallLimits { timeout, ..settings.limits }, ..settings }
}

pub fn store(url: &str) -> RedisStore {
    RedisStore::new(settings(url))
}

fn binary() -> String {
    let name = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let found = Command::new(&name).arg("--version").stdout(Stdio::null()).status();
    assert!(
        found.is_ok_and(|status| status.success()),
        "cannot run {name}: these tests need a real Redis. Install it (apt-get install redis-server) or set \
         REDIS_SERVER=/path/to/redis-server"
    );
    name
}

/// The ids of the connections of tidegate's stores, by the name that they give themselves.
pub fn clients_of_ours(connection: &mut Connection) -> Vec<String> {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(connection).unwrap();
    let ours = list.lines().filter(|line| line.contains(" name=tidegate "));
    ours.map(|line| line.split(' ').next().unwrap().trim_start_matches("id=").to_owned()).collect()
}

/// Has another password asked for, and closes the connections of tidegate's stores; this one stays, and so do those of
/// other servers.
pub fn change_password(connection: &mut Connection, password: &str) {
    let rule = format!(">{password}");
    let () = redis::cmd("ACL").arg(&["SETUSER", "default", "resetpass", &rule]).query(connection).unwrap();
    for id in clients_of_ours(connection) {
        // It may have gone by itself.
        let _: redis::RedisResult<i64> = redis::cmd("CLIENT").arg(&["KILL", "ID", &id]).query(connection);
    }
}
