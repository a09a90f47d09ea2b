//! What commands do is told by the trail of the configuration that they are given.

use super::*;
use crate::support::service::program;
use std::process::Output;
use tempfile::{NamedTempFile, TempDir};

/// A Redis, and a configuration with these sinks in a folder of its own.
struct Place {
    server: Server,
    folder: TempDir,
    config: NamedTempFile,
}

impl Place {
    /// `FOLDER` in `audit` stands for the folder.
    fn new(audit: &str) -> Self {
        let (server, folder, config) =
            (Server::start(&[]), tempfile::tempdir().unwrap(), NamedTempFile::new().unwrap());
        let audit = audit.replace("FOLDER", folder.path().to_str().unwrap());
        fs::write(config.path(), format!("{STINGY}redis: {{urls: ['{}']}}\n{audit}", server.url())).unwrap();
        Self { server, folder, config }
    }

    fn run(&self, command: &[&str]) -> Output {
        let output =
            program(command).arg("--config").arg(self.config.path()).env("TIDEGATE_REPLICA", "desk-1").output();
        output.unwrap()
    }

    fn file(&self) -> Vec<Json> {
        events(&fs::read_to_string(self.folder.path().join("audit.jsonl")).unwrap_or_default())
    }
}

/// What was printed and what was said by a command that did what it was to do.
fn done(output: Output) -> [String; 2] {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
}

const ALL: &str = "audit: {sinks: [stdout, {file: {path: FOLDER/audit.jsonl}}, {redis_stream: {}}], fold: 5m}\n";
const FILE: &str = "audit: {sinks: [{file: {path: FOLDER/audit.jsonl}}]}\n";

fn digest() -> String {
    Digester::default().digest(KEY.as_bytes()).to_string()
}

#[test]
fn each_act_is_told_in_the_file_and_in_the_stream_and_standard_output_is_the_commands_own() {
    let (place, digest) = (Place::new(ALL), digest());
    let key = ["--digest", digest.as_str()];
    let set = ["--tier", "gold", "--suspended", "true", "--name", "Acme, Inc.", "--per-key", ""];
    let set = [&["key", "set"][..], &key, &set].concat();
    // There is no tier gold.
    assert_eq!((place.run(&set).status.code(), place.file().len()), (Some(1), 0));
    let set: Vec<&str> = set.into_iter().map(|word| if word == "gold" { "free" } else { word }).collect();
    for (command, shown) in [
        (set, "suspended"),
        ([&["key", "show"][..], &key].concat(), "suspended"),
        ([&["key", "delete"][..], &key].concat(), "deleted"),
        (vec!["bucket", "reset", "--user", "alice"], "the bucket was full"),
        (vec!["bucket", "show", "--user", "alice"], "nothing is stored"),
    ] {
        let [printed, said] = done(place.run(&command));
        assert!(printed.contains(shown) && !printed.contains("\"event\"") && said.is_empty(), "{printed}{said}");
    }
    let of = |event: &str, dimension: &str, identity: &str| json!({"v": 1, "event": event, "replica": "desk-1", "dimension": dimension, "identity": identity, "by": "cli"});
    let mut change = of("key_set", "key", &digest);
    change["change"] =
        "tier=free, name=\"Acme, Inc.\", suspended=true, per_key.max_tokens=, per_key.refill_rate=".into();
    let expected = [change, of("key_deleted", "key", &digest), of("bucket_reset", "user", "alice")];
    let told = place.file();
    assert_eq!(told, stream(&place.server, "rl:audit"));
    assert_eq!(told.into_iter().map(timeless).collect::<Vec<_>>(), expected);
}

#[test]
fn a_service_and_a_command_tell_one_file() {
    let place = Place::new(&FILE.replace("]}", "], fold: 0s, hash_users: true}"));
    let service = Tidegate::start_at(place.config.path(), &[]);
    for total in [1, 3] {
        eventually("alice is denied", || (denied(&ask(&service, [from("alice")])) == 1).then_some(()));
        eventually("that is told", || (place.file().len() == total).then_some(()));
        done(place.run(&["bucket", "reset", "--user", "alice"]));
        assert_eq!(place.file().len(), total + 1);
    }
    let told = place.file();
    assert_eq!(told[1]["event"], "bucket_reset");
    assert_eq!(told[1]["identity"], told[0]["identity"], "users are hashed as the service hashes them");
}

#[test]
fn what_cannot_be_told_is_done_and_warned_of() {
    let key = digest();
    let nowhere = Place::new("audit: {sinks: [{file: {path: FOLDER/none/audit.jsonl}}]}\n");
    let [printed, said] = done(nowhere.run(&["key", "set", "--digest", &key, "--suspended", "true", "--json"]));
    assert_eq!(serde_json::from_str::<Json>(&printed).unwrap()["fields"]["suspended"], "true");
    assert_eq!(said.lines().count(), 1, "{said}");
    let warning = "tidegate: warning: this is done, and the audit trail does not tell of it: ";
    assert!(said.starts_with(&format!("{warning}file: ")) && said.contains("No such file"), "{said}");

    let foreign = Place::new(ALL);
    let _: String = foreign.server.run(&["SET", "rl:audit", "no stream"]);
    let [printed, said] = done(foreign.run(&["bucket", "reset", "--user", "alice"]));
    assert!(printed.contains("the bucket was full") && foreign.file().len() == 1, "{printed}");
    assert!(said.starts_with(&format!("{warning}redis_stream: ")) && said.lines().count() == 1, "{said}");
}

#[test]
fn where_no_trail_is_configured_none_is_written() {
    for audit in ["", "audit: {sinks: [stdout]}\n"] {
        let place = Place::new(audit);
        let [printed, said] = done(place.run(&["bucket", "reset", "--user", "alice"]));
        assert!(!printed.contains("event") && said.is_empty(), "{printed}{said}");
        assert_eq!(place.server.run::<Vec<String>>(&["KEYS", "*"]), [""; 0]);
        assert_eq!(fs::read_dir(place.folder.path()).unwrap().count(), 0);
    }
    let server = Server::start(&[]);
    let reset = program(&["bucket", "reset", "--user", "alice", "--redis-url", &server.url()]).output().unwrap();
    let [printed, said] = done(reset);
    assert!(!printed.contains("event") && said.is_empty(), "{printed}{said}");
    assert_eq!(server.run::<Vec<String>>(&["KEYS", "*"]), [""; 0]);
}
