//! Files and keys of a configuration with TLS that are at fault: all of them are told at once, each by its path.

use super::*;
use tidegate::config::{self, Config, Environment, Faults, Flags};

fn load(files: &Files, config: &str) -> Result<Config, Faults> {
    let path = files.write("tidegate.yaml", config);
    let flags = Flags { config: Some(path.into()), ..Flags::default() };
    config::load(&flags, &Environment::default())
}

fn told(files: &Files, config: &str) -> Vec<String> {
    load(files, config).unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn each_file_is_told_with_what_is_wrong_with_it() {
    let (ca, files) = (Authority::new(), Files::new());
    let pair = ca.server();
    files.write_pair("server", &pair);
    files.write("ca.crt", &ca.pem());
    files.write("other.key", &ca.server().key);
    files.write("none", "nothing in PEM");
    files.write("damaged", &pair.cert.replace("-----END CERTIFICATE-----", ""));
    files.write("lies", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    files.write("locked", "-----BEGIN ENCRYPTED PRIVATE KEY-----\naHVudGVyMg==\n-----END ENCRYPTED PRIVATE KEY-----\n");
    files.write("odd", "-----BEGIN PRIVATE KEY-----\naHVudGVyMg==\n-----END PRIVATE KEY-----\n");
    let at = |name: &str| files.path(name).display().to_string();
    for (cert, key, ca, faults) in [
        ("none", "server.key", "ca.crt", &["tls.cert: holds no certificate in PEM"][..]),
        ("damaged", "server.key", "ca.crt", &["tls.cert: holds a certificate that is no PEM"]),
        ("lies", "server.key", "ca.crt", &["tls.cert: holds something in place of an X.509 certificate"]),
        ("server.key", "server.key", "ca.crt", &["tls.cert: holds no certificate in PEM"]),
        ("server.crt", "none", "ca.crt", &["tls.key: holds no private key in PEM"]),
        ("server.crt", "locked", "ca.crt", &["tls.key: holds an encrypted private key; write it without a passphrase"]),
        ("server.crt", "odd", "ca.crt", &["tls.key: holds a private key of a kind that cannot be used"]),
        ("server.crt", "other.key", "ca.crt", &["tls.key: is not the key of the first certificate in cert"]),
        ("server.crt", "server.key", "none", &["tls.client_ca: holds no certificate in PEM"]),
        ("absent", "server.key", "ca.crt", &["tls.cert: \"/"]),
        (
            "none",
            "locked",
            "lies",
            &["tls.cert: holds no", "tls.key: holds an encrypted", "tls.client_ca: holds something in place"],
        ),
        ("absent", "none", "ca.crt", &["tls.cert: \"/", "tls.key: holds no private key"]),
    ] {
        let config = format!("tls: {{cert: {}, key: {}, client_ca: {}}}\n", at(cert), at(key), at(ca));
        let told = told(&files, &config);
        assert_eq!(told.len(), faults.len(), "{told:?}");
        for (line, start) in told.iter().zip(faults) {
            assert!(line.starts_with(start), "{start} is not what {line} says");
            assert!(!line.contains("aHVudGVyMg") && !line.contains("hunter2"), "{line}");
        }
    }
}

#[test]
fn the_faults_of_both_listeners_are_told_at_once() {
    let (ca, files) = (Authority::new(), Files::new());
    files.write_pair("server", &ca.server());
    let config = "tls: {cert: /nonexistent/a, key: /nonexistent/b}\nadmin: {tls: {cert: /nonexistent/c}}\n";
    let mut told = told(&files, config);
    told.sort();
    let starts = [
        "admin.tls.cert: \"/nonexistent/c\" cannot be read: ",
        "admin.tls.key: is missing",
        "tls.cert: \"/nonexistent/a\" cannot be read: ",
        "tls.key: \"/nonexistent/b\" cannot be read: ",
    ];
    assert_eq!(told.len(), starts.len(), "{told:?}");
    for (line, start) in told.iter().zip(starts) {
        assert!(line.starts_with(start), "{start} is not what {line} says");
    }
}

#[test]
fn certificates_out_of_date_are_warned_of_and_used() {
    let (ca, files) = (Authority::new(), Files::new());
    let old = ca.sign(&["localhost"], &[], |params| {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    });
    let early = ca.sign(&["localhost"], &[], |params| params.not_before = rcgen::date_time_ymd(2090, 1, 1));
    for (pair, said) in [
        (old, "tls.cert: certificate 1 expired at 2021-01-01T00:00:00Z: who checks it refuses it"),
        (early, "tls.cert: certificate 1 is valid from 2090-01-01T00:00:00Z only: "),
    ] {
        files.write_pair("server", &pair);
        let config = load(&files, &format!("tls: {}\n", section(&files, ""))).unwrap();
        let warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
        assert!(warnings.len() == 1 && warnings[0].starts_with(said), "{warnings:?}");
        assert!(config.settings.tls.is_some());
    }
}

#[test]
fn a_token_that_is_sent_in_plain_text_beyond_this_machine_is_warned_of() {
    let warned = |listen: &str, tls: &str| {
        let config = format!("admin: {{listen: '{listen}', token: 0123456789abcdef{tls}}}\n");
        let config = config::parse(config.as_bytes()).unwrap();
        config.warnings.iter().any(|warning| warning.path == "admin.tls")
    };
    assert!(warned("0.0.0.0:8080", ""));
    assert!(warned("off", ", tls: {cert: a, key: b}"), "it is of no effect");
    for (listen, tls) in [("127.0.0.1:8080", ""), ("[::1]:8080", ""), ("0.0.0.0:8080", ", tls: {cert: a, key: b}")] {
        assert!(!warned(listen, tls), "{listen}{tls}");
    }
}
