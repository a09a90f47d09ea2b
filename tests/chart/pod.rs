//! The rendered pod, run by podman from an image that stands in for the real one: its arguments, its configuration, its
//! mounts and its security. Left out unless PODMAN names a podman, which is no part of `make test`.
//!
//! Not proven by it: what podman's `kube play` does not know, which is probes over gRPC (the test asks in their place),
//! volumes of Secrets, and ports on the host's network.

use crate::support::redis::free_port;
use crate::support::{documents, eventually, rendered, resource, written};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// Lower limits than podman sets may be forbidden to whoever runs this.
const CONTAINERS_CONF: &str = r#"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"#;

struct Podman {
    program: String,
    conf: tempfile::NamedTempFile,
}

impl Podman {
    fn found() -> Option<Self> {
        let program = std::env::var("PODMAN").ok().filter(|program| !program.is_empty())?;
        Some(Self { program, conf: written(CONTAINERS_CONF) })
    }

    fn try_run(&self, arguments: &[&str]) -> Result<String, String> {
        let output =
            Command::new(&self.program).env("CONTAINERS_CONF", self.conf.path()).args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn run(&self, arguments: &[&str]) -> String {
        self.try_run(arguments).unwrap_or_else(|error| panic!("podman {arguments:?}: {error}"))
    }
}

/// The program and the libraries that it is linked to, and nothing else.
fn image(podman: &Podman, name: &str, within: &Path) {
    let program = env!("CARGO_BIN_EXE_tidegate");
    let linked = Command::new("ldd").arg(program).output().unwrap().stdout;
    let linked = String::from_utf8(linked).unwrap();
    let libraries = linked.split_whitespace().filter(|word| word.starts_with('/'));
    let root = within.join("root");
    for (file, at) in libraries.map(|library| (library, library)).chain([(program, "/usr/bin/tidegate")]) {
        let at = root.join(at.trim_start_matches('/'));
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::copy(file, at).unwrap();
    }
    let tar = within.join("root.tar");
    let (root, tar) = (root.to_str().unwrap(), tar.to_str().unwrap());
    assert!(Command::new("tar").args(["-C", root, "-cf", tar, "."]).status().unwrap().success());
    podman.run(&["import", "--quiet", "--change", r#"ENTRYPOINT ["/usr/bin/tidegate"]"#, tar, name]);
}

/// What podman is given: the Deployment and the ConfigMap, without what it cannot do.
fn playable(image: &str, ports: [u16; 2]) -> String {
    let (repository, tag) = image.trim_start_matches("localhost/").split_once(':').unwrap();
    let [listen, admin] = ports.map(|port| format!("127.0.0.1:{port}"));
    let release = format!("t{}", std::process::id());
    let values = json!({
        "fullnameOverride": release,
        "image": {"registry": "localhost", "repository": repository, "tag": tag, "pullPolicy": "Never"},
        // Ports that nobody else has on this host.
        "extraEnv": [
            {"name": "TIDEGATE_LISTEN", "value": listen},
            {"name": "TIDEGATE_ADMIN_LISTEN", "value": admin},
        ],
    });
    let resources = rendered(&values);
    let mut deployment = resource(&resources, "Deployment", &release).clone();
    let container = deployment["spec"]["template"]["spec"]["containers"][0].as_object_mut().unwrap();
    for key in ["ports", "startupProbe", "livenessProbe", "readinessProbe"] {
        container.remove(key).unwrap();
    }
    let config = resource(&resources, "ConfigMap", &release);
    let text = |document: &Value| serde_yaml::to_string(document).unwrap();
    format!("{}---\n{}", text(config), text(&deployment))
}

/// Takes the pod and the image away, however the test ends.
struct Played<'a> {
    podman: &'a Podman,
    manifest: tempfile::NamedTempFile,
    image: String,
}

impl Drop for Played<'_> {
    fn drop(&mut self) {
        let manifest = self.manifest.path().to_str().unwrap();
        drop(self.podman.try_run(&["kube", "down", manifest]));
        drop(self.podman.try_run(&["rmi", "--force", &self.image]));
    }
}

fn serving(port: u16, service: &str) -> Option<bool> {
    crate::support::service::block_on(async {
        let channel = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap().connect().await.ok()?;
        let asked = HealthCheckRequest { service: service.to_owned() };
        let answer = HealthClient::new(channel).check(asked).await.ok()?;
        Some(answer.into_inner().status() == ServingStatus::Serving)
    })
}

#[test]
fn the_rendered_pod_runs_restricted_and_answers_its_probes() {
    let Some(podman) = Podman::found() else {
        eprintln!("left out: the rendered pod in podman, as PODMAN names none");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let name = format!("localhost/tidegate-of-a-test:{}", std::process::id());
    image(&podman, &name, directory.path());
    let ports = [(); 2].map(|()| free_port());
    let manifest = written(&playable(&name, ports));
    let played = Played { podman: &podman, manifest, image: name };
    podman.run(&["kube", "play", "--network=host", played.manifest.path().to_str().unwrap()]);

    for service in ["liveness", "readiness"] {
        eventually(&format!("{service} is well"), || serving(ports[0], service).filter(|well| *well));
    }
    let deployment = &documents(&fs::read_to_string(played.manifest.path()).unwrap())[1];
    let container = format!("{}-pod-0-tidegate", deployment["metadata"]["name"].as_str().unwrap());
    assert_eq!(podman.run(&["inspect", "--format", "{{.HostConfig.ReadonlyRootfs}}", &container]), "true");
    let pid = podman.run(&["inspect", "--format", "{{.State.Pid}}", &container]);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| crate::support::field(&status, name).unwrap_or_else(|| panic!("no {name} in {status}"));
    assert_eq!(field("Uid"), "65532\t65532\t65532\t65532");
    assert_eq!((field("CapEff"), field("NoNewPrivs"), field("Seccomp")), ("0".repeat(16), "1".into(), "2".into()));

    // It ends by itself when it is told to, and is not killed.
    podman.run(&["stop", "--time", "20", &container]);
    assert_eq!(podman.run(&["inspect", "--format", "{{.State.ExitCode}}", &container]), "0");
}
