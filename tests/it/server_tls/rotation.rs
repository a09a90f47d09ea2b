//! Certificates that change while the service runs.

use super::*;

fn reloads(secured: &Secured, result: &str) -> u64 {
    admin::get(secured.service.admin, "/metrics")
        .value(&format!("tidegate_config_reloads_total{{result=\"{result}\"}}"))
}

fn until_reloads(secured: &Secured, result: &str, count: u64) {
    eventually(&format!("{count} reloads end as {result}"), || (reloads(secured, result) == count).then_some(()));
}

/// Has the files hold what another authority signed, in one step as Kubernetes does it: a pair that does not go together
/// would be refused in between.
fn replace(secured: &Secured, pair: &Pair) {
    let (before, old) = (secured.files.path("server.crt"), secured.files.path("server.key"));
    std::fs::write(secured.files.path("new.crt"), &pair.cert).unwrap();
    std::fs::write(secured.files.path("new.key"), &pair.key).unwrap();
    std::fs::rename(secured.files.path("new.crt"), before).unwrap();
    std::fs::rename(secured.files.path("new.key"), old).unwrap();
}

#[test]
fn a_new_certificate_is_seen_by_new_connections_and_old_ones_go_on() {
    let secured = Secured::start(|_| String::new());
    let expiry = || {
        let text = admin::get(secured.service.admin, "/metrics").body;
        let start = "tidegate_tls_certificate_expiry_timestamp_seconds{listener=\"grpc\"} ";
        text.lines().find_map(|line| line.strip_prefix(start)).unwrap().parse::<u64>().unwrap()
    };
    let (other, before) = (Authority::new(), expiry());
    block_on(async {
        let mut old = connect(secured.service.address, &secured.ca, None).await.unwrap();
        assert_eq!(code(&mut old).await, Ok(0));
        let late = other.sign(&["127.0.0.1"], &[], |params| params.not_after = rcgen::date_time_ymd(2090, 1, 1));
        replace(&secured, &late);
        secured.service.wait_for_log("certificates were changed");
        assert_eq!(code(&mut old).await, Ok(0));
        assert_eq!(secured.handshakes("ok"), 1, "the connection stands");
        let mut new = connect(secured.service.address, &other, None).await.unwrap();
        assert_eq!(code(&mut new).await, Ok(0));
        assert!(connect(secured.service.address, &secured.ca, None).await.is_err());
        assert_eq!(code(&mut old).await, Ok(0));
    });
    assert_eq!(secured.handshakes("ok"), 2);
    secured.until_handshakes("refused_by_client", 1);
    assert!(before != expiry() && expiry() == 3_786_912_000, "{}", expiry());
}

#[test]
fn files_that_do_not_fit_are_refused_and_what_was_shown_is_shown_on() {
    let secured = Secured::start(|files| with_ca(files, ""));
    let client = secured.ca.client(&[]);
    for (name, text, said) in [
        ("server.crt", "no certificate", "config: tls.cert: holds no certificate in PEM"),
        ("server.key", &secured.ca.server().key, "config: tls.key: is not the key of the first certificate in cert"),
        ("ca.crt", "", "config: tls.client_ca: holds no certificate in PEM"),
    ] {
        let (good, refused) =
            (std::fs::read_to_string(secured.files.path(name)).unwrap(), reloads(&secured, "refused"));
        let succeeded = reloads(&secured, "success");
        secured.files.write(name, text);
        until_reloads(&secured, "refused", refused + 1);
        secured.service.wait_for_log(said);
        assert_eq!(secured.check(Some(&client)), Ok(0), "{name}");
        secured.files.write(name, &good);
        until_reloads(&secured, "success", succeeded + 1);
    }
    assert!(!secured.service.log().contains("certificates were changed"), "they are what they were");
    assert!(!secured.service.log().contains("PRIVATE KEY"), "{}", secured.service.log());
}

#[test]
fn whom_to_let_in_is_followed_and_whether_there_is_tls_takes_a_restart() {
    let secured = Secured::start(|files| with_ca(files, ""));
    let client = secured.ca.client(&["spiffe://mesh.example/ns/others/sa/x"]);
    assert_eq!(secured.check(Some(&client)), Ok(0));
    let config = |tls: &str| secured.files.write("tidegate.yaml", &format!("drain: 0s\n{tls}"));
    let ids = with_ca(&secured.files, &format!(", client_spiffe_ids: ['{GATEWAY}']"));
    config(&format!("tls: {}\n", section(&secured.files, &ids)));
    secured.service.wait_for_log("certificates were changed");
    assert!(secured.check(Some(&client)).is_err());
    secured.until_handshakes("not_allowed", 1);
    assert_eq!(secured.check(Some(&secured.ca.client(&[GATEWAY]))), Ok(0));

    config("");
    until_reloads(&secured, "refused", 1);
    secured.service.wait_for_log("config: tls: a change needs a restart");
    assert_eq!(secured.check(Some(&secured.ca.client(&[GATEWAY]))), Ok(0));
}

#[test]
fn a_reload_is_asked_for_by_signal_and_over_the_admin_endpoint_too() {
    let secured = Secured::start(|_| String::new());
    secured.service.signal("HUP");
    until_reloads(&secured, "success", 1);
    assert_eq!(admin::ask(secured.service.admin, "POST", "/reload").status(), 200);
    assert_eq!(secured.check(None), Ok(0));
    assert!(!secured.service.log().contains("certificates were changed"));
}
