//! The real binary: what it prints, and how it ends.

use crate::support::service::program;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

fn tidegate(arguments: &[&str]) -> Command {
    let mut command = program(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str]) -> Ran {
    tidegate(arguments).output().unwrap().into()
}

fn run_with_stdin(command: &mut Command, input: &[u8]) -> Ran {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    // The child may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap().into()
}

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

fn file(yaml: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), yaml).unwrap();
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

#[test]
fn validate_tells_all_faults_and_ends_with_78() {
    let bad = file("listn: x\nmode: off\ntiers: {free: {per_user: {max_tokens: 0, refill_rate: -1}}}\n");
    let ran = run(&["validate", path(&bad)]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(78), ""));
    let lines: Vec<&str> = ran.err.lines().collect();
    assert_eq!(lines.len(), 5, "{}", ran.err);
    assert_eq!(lines[4], "tidegate: 4 faults in the configuration");
}

#[test]
fn validate_says_ok_with_warnings_apart() {
    let good = file("default_tier: a\ntiers: {a: {}}\n");
    let ran = run(&["validate", path(&good)]);
    assert_eq!((ran.code, ran.out), (Some(0), format!("{}: ok\n", path(&good))));
    assert!(ran.err.starts_with("warning: tiers.a: per_user is left out"), "{}", ran.err);
}

#[test]
fn validate_of_nothing_ends_with_78() {
    let ran = run(&["validate", "/nonexistent/tidegate.yaml"]);
    assert_eq!(ran.code, Some(78));
    assert!(ran.err.starts_with("/nonexistent/tidegate.yaml: cannot read this file"), "{}", ran.err);
}

#[test]
fn the_printed_default_config_is_a_good_one() {
    let ran = run(&["config", "default"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), tidegate::config::DEFAULT));
    let ran = run(&["validate", path(&file(&ran.out))]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
}

#[test]
fn schema_prints_a_schema() {
    let ran = run(&["schema"]);
    let schema: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, &schema["title"]), (Some(0), &serde_json::json!("tidegate")));
    assert!(jsonschema::meta::is_valid(&schema));
}

#[test]
fn hash_key_prints_the_digest_that_redis_holds() {
    let plain = "f3abf2a6cc4f00987743db5f544ba345\n";
    let peppered = "a84029a881ee3a5626797adc981f0106\n";
    for input in [&b"sk-test"[..], b"sk-test\n", b"sk-test\r\n"] {
        let ran = run_with_stdin(&mut tidegate(&["hash-key"]), input);
        assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(0), plain, ""));
    }
    let ran = run_with_stdin(tidegate(&["hash-key"]).env("TIDEGATE_KEY_PEPPER", "pepper"), b"sk-test");
    assert_eq!(ran.out, peppered);
    let config = file("identity: {key_pepper: pepper}\n");
    let ran = run_with_stdin(&mut tidegate(&["hash-key", "--config", path(&config)]), b"sk-test");
    assert_eq!(ran.out, peppered);
    let secret = file("pepper\n");
    let ran = run_with_stdin(tidegate(&["hash-key"]).env("TIDEGATE_KEY_PEPPER_FILE", path(&secret)), b"sk-test");
    assert_eq!(ran.out, peppered);
}

#[test]
fn hash_key_of_nothing_fails() {
    for input in [&b""[..], b"\n"] {
        let ran = run_with_stdin(&mut tidegate(&["hash-key"]), input);
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
        assert!(ran.err.contains("no API key"), "{}", ran.err);
    }
}

#[test]
fn wrong_usage_ends_with_2() {
    for arguments in [
        &[][..],
        &["sreve"],
        &["validate"],
        &["serve", "--port", "1"],
        &["bucket", "show"],
        &["bucket", "show", "--user", "a", "--ip", "1.2.3.4"],
        &["bucket", "show", "--user", ""],
        &["bucket", "show", "--ip", "localhost"],
        &["bucket", "list", "--limit", "0"],
        &["key", "show"],
        &["key", "set", "--key-stdin"],
        &["key", "set", "--tier", "free"],
        &["key", "set", "--key-stdin", "--digest", "27bfcdcb2e1daa6e9bd7d26e2f0ab4cd", "--tier", "free"],
    ] {
        let ran = run(arguments);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn help_and_version_are_no_failure() {
    let ran = run(&["--version"]);
    assert_eq!((ran.code, ran.out), (Some(0), format!("tidegate {}\n", env!("CARGO_PKG_VERSION"))));
    let ran = run(&["--help"]);
    assert_eq!(ran.code, Some(0));
    for name in tidegate::config::VARIABLES {
        assert!(ran.out.contains(name), "{name}");
    }
    for command in [
        &["serve", "--help"][..],
        &["bucket", "show", "--help"],
        &["bucket", "list", "--help"],
        &["key", "set", "--help"],
        &["hash-key", "--help"],
    ] {
        assert!(run(command).out.contains("Examples:"), "{command:?}");
    }
}

#[test]
fn buckets_in_memory_cannot_be_looked_at_from_outside() {
    let ran = run(&["bucket", "show", "--user", "alice"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    assert!(ran.err.contains("buckets in memory live inside the serving process"), "{}", ran.err);
    let ran = run(&["bucket", "list"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    let ran = run(&["key", "show", "--digest", "27bfcdcb2e1daa6e9bd7d26e2f0ab4cd"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    assert!(ran.err.contains("no Redis is configured"), "{}", ran.err);
}

#[test]
fn serve_refuses_a_bad_config_and_environment_together() {
    let bad = file("mode: off\n");
    let ran: Ran = tidegate(&["serve", "--config", path(&bad), "--listen", "nowhere"])
        .env("TIDEGATE_REDIS_URL", "rediss://:hunter2@h/x")
        .output()
        .unwrap()
        .into();
    assert_eq!(ran.code, Some(78));
    for part in ["mode: ", "--listen: ", "TIDEGATE_REDIS_URL: ", "3 faults"] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    assert!(!ran.err.contains("hunter2"));
}

#[test]
fn a_password_is_never_printed() {
    let secrets = file(
        "redis: {urls: [\"redis://:hunter2@h/x\"]}\nidentity: {key_pepper: [hunter2]}\nlisten: \"redis://:hunter2@h\"\n",
    );
    let commands: [&[&str]; 5] = [
        &["validate", path(&secrets)],
        &["serve", "--config", path(&secrets)],
        &["bucket", "show", "--user", "a", "--redis-url", "redis://:hunter2@h:bad"],
        &["key", "show", "--key-stdin", "--redis-url", "redis://:hunter2@h:bad"],
        &["serve", "--redis-url", "hunter2@h"],
    ];
    for command in commands {
        let ran = run(command);
        assert_eq!(ran.code, Some(78), "{command:?}: {}", ran.err);
        assert!(!ran.err.contains("hunter2") && !ran.out.contains("hunter2"), "{command:?}: {}", ran.err);
    }
}
