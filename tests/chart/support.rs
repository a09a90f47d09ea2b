//! The real helm, and what it renders.

#[path = "../e2e/support/child.rs"]
#[allow(dead_code, reason = "shared with tests/e2e, which uses more of it")]
pub mod child;
#[path = "../e2e/support/client.rs"]
#[allow(dead_code, reason = "shared with tests/e2e, which uses more of it")]
pub mod client;
#[path = "../it/support/eventually.rs"]
mod eventually;
#[path = "../it/support/redis.rs"]
#[allow(dead_code, reason = "shared with tests/it, which uses more of it")]
pub mod redis;
#[path = "../it/support/service.rs"]
#[allow(dead_code, reason = "shared with tests/it, which uses more of it")]
pub mod service;
#[path = "../e2e/support/token.rs"]
#[allow(dead_code, reason = "shared with tests/e2e, which uses more of it")]
pub mod token;

pub use eventually::eventually;
use serde::Deserialize as _;
use serde_json::Value;
use std::env;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::NamedTempFile;

/// The Kubernetes that is rendered for, where a test does not care.
pub const KUBERNETES: &str = "1.37.0";

pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn chart() -> PathBuf {
    repository().join("helm/tidegate")
}

/// A YAML file of the repository.
pub fn yaml(path: &str) -> Value {
    serde_yaml::from_str(&fs::read_to_string(repository().join(path)).unwrap()).unwrap()
}

/// The files with this ending in a directory of the repository, by name.
pub fn files(directory: &str, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository().join(directory)).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    files.sort();
    files
}

pub fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// A program that the environment names, or that `scripts/tool` fetched, or that is on the PATH.
pub fn program(variable: &str, fetched: &str, plain: &str) -> PathBuf {
    let fetched = repository().join(".tools").join(fetched);
    let candidates = [env::var_os(variable).map(PathBuf::from), Some(fetched), Some(plain.into())];
    let runs =
        |program: &PathBuf| Command::new(program).arg("version").output().is_ok() && !program.as_os_str().is_empty();
    candidates.into_iter().flatten().find(runs).unwrap_or_else(|| {
        panic!("no {plain}: `make test-chart` fetches it; or set {variable}=/path/to/{plain}");
    })
}

/// One generation of helm.
pub struct Helm {
    pub generation: u32,
    program: PathBuf,
}

impl Helm {
    pub fn four() -> Self {
        Self { generation: 4, program: program("HELM", "helm-4.3.1", "helm") }
    }

    pub fn three() -> Self {
        Self { generation: 3, program: program("HELM3", "helm3-3.17.2", "helm3") }
    }

    pub fn both() -> [Self; 2] {
        [Self::four(), Self::three()]
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        Command::new(&self.program).args(arguments).output().unwrap()
    }

    /// What `helm template` prints of the release `t` in the namespace `limits`; more arguments come last.
    ///
    /// # Errors
    /// What helm says when it refuses.
    pub fn print(&self, release: &str, arguments: &[&str]) -> Result<String, String> {
        let chart = chart();
        let first =
            ["template", release, chart.to_str().unwrap(), "--namespace", "limits", "--kube-version", KUBERNETES];
        let output = self.run(&[&first, arguments].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// [`Helm::print`] as resources, with these values.
    pub fn render(&self, release: &str, values: &Value, arguments: &[&str]) -> Vec<Value> {
        let file = written(&values.to_string());
        let arguments = [&["--values", file.path().to_str().unwrap()], arguments].concat();
        documents(&self.print(release, &arguments).unwrap_or_else(|error| panic!("{values}: {error}")))
    }
}

/// What helm 4 makes of values, as the release `t`.
pub fn rendered(values: &Value) -> Vec<Value> {
    Helm::four().render("t", values, &[])
}

/// Why helm 4 refuses values.
pub fn refusal(values: &Value) -> String {
    let file = written(&values.to_string());
    Helm::four().print("t", &["--values", file.path().to_str().unwrap()]).expect_err("these values are refused")
}

/// The documents of a YAML stream that are not empty.
pub fn documents(text: &str) -> Vec<Value> {
    let parsed = serde_yaml::Deserializer::from_str(text).map(|document| Value::deserialize(document).unwrap());
    parsed.filter(|document| !document.is_null()).collect()
}

/// The only resource of a kind with a name.
pub fn resource<'a>(resources: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let mut found = resources.iter().filter(|found| found["kind"] == kind && found["metadata"]["name"] == name);
    let first = found.next().unwrap_or_else(|| {
        let there: Vec<_> = resources.iter().map(|found| (&found["kind"], &found["metadata"]["name"])).collect();
        panic!("no {kind} {name} among {there:?}")
    });
    assert!(found.next().is_none(), "{kind} {name} is there twice");
    first
}

/// tidegate's own configuration in the ConfigMap of a release, as text.
pub fn config_of(resources: &[Value]) -> String {
    let mut texts = resources.iter().filter_map(|found| found["data"]["tidegate.yaml"].as_str());
    let text = texts.next().expect("a ConfigMap holds tidegate.yaml").to_owned();
    assert!(texts.next().is_none());
    text
}

/// The values of ci/, by the name of their file.
pub fn ci_values() -> Vec<PathBuf> {
    files("helm/tidegate/ci", "-values.yaml").into_iter().filter(|path| is_understood(path)).collect()
}

/// Whether this tidegate has the keys that a file of values needs: `# needs: a.b`. Those are left out by name.
fn is_understood(path: &Path) -> bool {
    let text = fs::read_to_string(path).unwrap();
    let Some(needed) = text.lines().find_map(|line| line.strip_prefix("# needs: ")) else {
        return true;
    };
    let schema = tidegate::config::schema();
    let there = match needed.split_once('.') {
        None => !schema["properties"][needed].is_null(),
        Some((_, key)) => !schema["$defs"]["Identity"]["properties"][key].is_null(),
    };
    if !there {
        eprintln!("left out: {}, as tidegate has no {needed}", name(path));
    }
    there
}

/// The value of `name:value` among lines.
pub fn field(lines: &str, name: &str) -> Option<String> {
    lines.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}

/// A file with this text, which is gone when it is dropped.
pub fn written(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

pub fn envoy() -> PathBuf {
    program("ENVOY", "venv/bin/envoy", "envoy")
}
