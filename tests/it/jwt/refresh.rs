//! Keys that are fetched: a server of them that goes away, hangs, answers nonsense, replaces them. Checks go on.

use super::*;
use crate::support::jwks_server::{Behaviour, JwksServer};
use std::time::{Duration, Instant};

/// Far longer than a check takes without waiting for anything, and shorter than a fetch that hangs.
const AT_ONCE: Duration = Duration::from_secs(2);

fn config_of(url: &str, more: &str) -> String {
    config(&format!("jwks_url: '{url}'"), more)
}

fn refreshes(service: &Tidegate, result: &str) -> u64 {
    get(service.admin, "/metrics").value(&format!("tidegate_jwks_refreshes_total{{result=\"{result}\"}}"))
}

fn until_refreshed(service: &Tidegate, result: &str, times: u64) {
    eventually(&format!("there were {times} of {result}"), || (refreshes(service, result) >= times).then_some(()));
}

/// A check with a token, which is answered at once.
fn is_user_at_once(service: &Tidegate, token: &str) -> bool {
    let begun = Instant::now();
    let is_user = is_user(service, token);
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    is_user
}

#[test]
fn keys_are_fetched_in_the_background_and_stay_while_the_server_does_anything_else() {
    let ed = Signer::ed("d");
    let server = JwksServer::start(Behaviour::keys(jwks(&[&ed])));
    let service = Tidegate::start(&config_of(&server.url(), ", jwks_refresh: 1s"));
    let token = |user: &str| ed.token(&claims(user));
    until_refreshed(&service, "success", 1);
    assert!(is_user_at_once(&service, &token("alice")));
    for (behaviour, result) in [
        (Behaviour::Answer(500, "hunter2".into()), "bad_status"),
        (Behaviour::Answer(302, String::new()), "bad_status"),
        (Behaviour::keys("<html>hunter2"), "bad_body"),
        (Behaviour::keys("{\"keys\": []}"), "bad_body"),
        (Behaviour::Flood, "bad_body"),
        (Behaviour::Hang, "unreachable"),
    ] {
        let before = refreshes(&service, result);
        server.behave(behaviour.clone());
        until_refreshed(&service, result, before + 1);
        let user = format!("{result}-{before}");
        assert!(is_user_at_once(&service, &token(&user)), "{behaviour:?}");
        assert_eq!(get(service.admin, "/metrics").value("tidegate_jwks_keys"), 1);
    }
    let port = server.address.port();
    drop(server);
    let before = refreshes(&service, "unreachable");
    until_refreshed(&service, "unreachable", before + 2);
    assert!(is_user_at_once(&service, &token("bob")));
    service.wait_for_log("cannot fetch the keys that verify tokens, the last ones stay");
    let before = refreshes(&service, "success");
    let _server = JwksServer::start_on(port, Behaviour::keys(jwks(&[&ed])));
    until_refreshed(&service, "success", before + 1);
    assert!(!service.log().contains("hunter2"), "{}", service.log());
    assert_eq!(count(&service, "unknown_key"), 0);
}

#[test]
fn a_server_that_is_away_or_hangs_holds_up_neither_the_start_nor_a_check() {
    let ed = Signer::ed("d");
    let nobody = JwksServer::start(Behaviour::Hang);
    let port = nobody.address.port();
    let hanging = Tidegate::start(&config_of(&nobody.url(), ""));
    eventually("it was asked for keys", || (nobody.requests() > 0).then_some(()));
    let token = ed.token(&claims("alice"));
    for _ in 0..20 {
        assert!(!is_user_at_once(&hanging, &token));
    }
    assert_eq!(count(&hanging, "unknown_key"), 20);
    drop(nobody);

    let away = Tidegate::start(&config_of(&format!("http://127.0.0.1:{port}/.well-known/jwks.json"), ""));
    until_refreshed(&away, "unreachable", 1);
    assert!(!is_user_at_once(&away, &token));
    let metrics = get(away.admin, "/metrics");
    assert_eq!(metrics.value("tidegate_jwks_keys"), 0);
    assert!(metrics.body.contains("\ntidegate_jwks_age_seconds "), "{metrics:?}");
    // It comes, and is found without anybody's help; what was refused for want of keys is believed.
    let _server = JwksServer::start_on(port, Behaviour::keys(jwks(&[&ed])));
    eventually("the token is believed", || is_user_at_once(&away, &token).then_some(()));
}

#[test]
fn a_replaced_key_is_fetched_when_a_token_names_it_and_a_flood_of_unknown_names_fetches_little() {
    let (first, second) = (Signer::ed("1"), Signer::ed("2"));
    let server = JwksServer::start(Behaviour::keys(jwks(&[&first])));
    // Of itself it would fetch them tomorrow.
    let service = Tidegate::start(&config_of(&server.url(), ", jwks_refresh: 24h"));
    until_refreshed(&service, "success", 1);
    let (of_first, of_second) = (first.token(&claims("alice")), second.token(&claims("bob")));
    assert!(is_user_at_once(&service, &of_first));
    server.behave(Behaviour::keys(jwks(&[&first, &second])));
    eventually("the new key is in force", || is_user_at_once(&service, &of_second).then_some(()));
    assert!(is_user_at_once(&service, &of_first));

    server.behave(Behaviour::keys(jwks(&[&second])));
    let (requests, begun) = (server.requests(), Instant::now());
    let stranger = |n: u32| Signer::ed(&format!("x{n}")).token(&claims("mallory"));
    let tokens: Vec<String> = (0..200).map(stranger).collect();
    block_on(async {
        let mut client = client(&service).await;
        for token in &tokens {
            client.check(check(&[("authorization", &format!("Bearer {token}"))])).await.unwrap();
        }
    });
    eventually("the old key is gone", || (!is_user_at_once(&service, &of_first)).then_some(()));
    let most = 2 + begun.elapsed().as_secs() / 4;
    assert!(server.requests() - requests <= most, "{} in {:?}", server.requests() - requests, begun.elapsed());
    assert!(is_user_at_once(&service, &of_second));
}

#[test]
fn over_tls_the_server_must_be_one_that_is_trusted() {
    let ed = Signer::ed("d");
    let server = JwksServer::start_tls(Behaviour::keys(jwks(&[&ed])));
    let ca = KeyFile::new(server.ca.as_ref().unwrap());
    let token = ed.token(&claims("alice"));
    let trusting = Tidegate::start(&config_of(&server.url(), &format!(", ca_file: {}", ca.path().display())));
    until_refreshed(&trusting, "success", 1);
    assert!(is_user_at_once(&trusting, &token));
    let careful = Tidegate::start(&config_of(&server.url(), ""));
    until_refreshed(&careful, "unreachable", 1);
    assert!(!is_user_at_once(&careful, &token));
    careful.wait_for_log("certificate");
    assert_eq!(refreshes(&careful, "success"), 0);
}

#[test]
fn explain_offline_waits_for_the_keys_once() {
    let ed = Signer::ed("d");
    let server = JwksServer::start(Behaviour::keys(jwks(&[&ed])));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config_of(&server.url(), "")).unwrap();
    let token = ed.token(&claims("alice"));
    assert_eq!(explain_offline(file.path(), &token)["jwt"], "verified");
    drop(server);
    assert_eq!(explain_offline(file.path(), &token)["jwt"], "unknown_key");
}

#[test]
fn a_reload_that_does_not_concern_the_keys_fetches_none_and_another_address_has_its_own() {
    let (ed, other) = (Signer::ed("d"), Signer::ed("o"));
    let servers = [&ed, &other].map(|signer| JwksServer::start(Behaviour::keys(jwks(&[signer]))));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidegate.yaml");
    let write = |server: &JwksServer, more: &str| {
        std::fs::write(&file, config_of(&server.url(), &format!(", jwks_refresh: 24h{more}"))).unwrap();
    };
    write(&servers[0], "");
    let service = Tidegate::start_at(&file, &[]);
    until_refreshed(&service, "success", 1);
    let reloads = |times| {
        let series = "tidegate_config_reloads_total{result=\"success\"}";
        eventually("it is reloaded", || (get(service.admin, "/metrics").value(series) == times).then_some(()));
    };
    let tokens = [&ed, &other].map(|signer| signer.token(&claims("alice")));
    let believed = || tokens.each_ref().map(|token| is_user_at_once(&service, token));
    assert!(is_user_at_once(&service, &tokens[0]));
    write(&servers[0], ", leeway: 10s");
    reloads(1);
    assert!(is_user_at_once(&service, &tokens[0]));
    assert_eq!((refreshes(&service, "success"), servers[0].requests()), (1, 1));
    write(&servers[1], "");
    reloads(2);
    until_refreshed(&service, "success", 2);
    assert_eq!(believed(), [false, true]);
}
