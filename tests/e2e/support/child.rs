//! Programs as children of the test: they end when the test does, however that ends.

use super::eventually;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};

/// Runs the program, says its pid, and ends it when standard input closes, which happens even if the test process is
/// killed. Ends with the program's own exit code.
const KEEPER: &str = r#"
exec 3<&0 4>&1 1>&-
"$@" </dev/null >"$KEEPER_OUT" 2>"$KEEPER_ERR" 3<&- 4>&- &
child=$!
echo $child >&4
exec 4>&- 2>/dev/null
(read -r _ <&3; kill -9 $child) &
wait $child
code=$?
kill $!
exit $code
"#;

/// How much of a log is shown when a test fails.
const SHOWN_LINES: usize = 60;

/// A running program, its output in files of a directory that its owner keeps.
#[derive(Debug)]
pub struct Child {
    name: &'static str,
    keeper: Process,
    pid: u32,
    out: PathBuf,
    err: PathBuf,
}

impl Child {
    pub fn start(name: &'static str, program: &Path, arguments: &[&str], env: &[(&str, &str)], within: &Path) -> Self {
        let (out, err) = (within.join(format!("{name}.out")), within.join(format!("{name}.err")));
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "sh"])
            .arg(program)
            .args(arguments)
            .envs(env.iter().copied())
            .env("KEEPER_OUT", &out)
            .env("KEEPER_ERR", &err)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { name, keeper, pid: line.trim().parse().unwrap(), out, err }
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid.to_string()]).status().unwrap();
        assert!(status.success(), "cannot send {name} to {}", self.name);
    }

    /// The exit code, once it has ended.
    pub fn exit_code(&mut self) -> Option<i32> {
        self.keeper.try_wait().unwrap().map(|status| status.code().unwrap_or(-1))
    }

    /// Waits for its end and gives the exit code.
    pub fn wait_until_ended(&mut self) -> i32 {
        eventually(&format!("{} ends", self.name), || self.exit_code())
    }

    /// Waits until `ready` gives something. Fails at once when the program ends.
    pub fn wait_until<T>(&mut self, what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
        let found = eventually(&format!("{} {what}", self.name), || {
            let ended = self.exit_code();
            ready().map(Ok).or(ended.map(Err))
        });
        found.unwrap_or_else(|code| {
            self.show_logs();
            panic!("{} ended with {code} before it {what}", self.name)
        })
    }

    /// What it wrote to standard output.
    pub fn out(&self) -> String {
        read(&self.out)
    }

    /// What it wrote to standard error.
    pub fn err(&self) -> String {
        read(&self.err)
    }

    /// Puts the ends of both logs into the failing test's output.
    pub fn show_logs(&self) {
        for (stream, text) in [("output", self.out()), ("log", self.err())] {
            let lines: Vec<&str> = text.lines().collect();
            let from = lines.len().saturating_sub(SHOWN_LINES);
            eprintln!("--- {}'s {stream}, from line {}:\n{}", self.name, from + 1, lines[from..].join("\n"));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        drop(self.keeper.wait());
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// A file with this text.
pub fn write(path: &Path, text: &str) {
    use std::io::Write as _;
    File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}
