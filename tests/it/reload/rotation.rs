//! Secrets that change while the service runs: the pepper, with the one before it, and Redis's password.

use super::*;
use crate::support::redis::{change_password, clients_of_ours as connections};
use tidegate::policy::api_key::Digester;

fn digest(pepper: &str, key: &str) -> String {
    Digester::new(Some(pepper.as_bytes())).digest(key.as_bytes()).to_string()
}

#[test]
fn while_a_pepper_is_replaced_keys_are_known_under_the_previous_one_and_charged_under_the_new_one() {
    let server = Server::start(&[]);
    let _: i64 = server.run(&["HSET", &format!("rl:apikey:{}", digest("old", "sk-redis")), "tier", "gold"]);
    let bad = format!("rl:apikey:{}", digest("old", "sk-bad"));
    let _: i64 = server.run(&["HSET", &bad, "suspended", "1"]);
    let folder = Folder::new();
    let (pepper, previous) = (folder.write("pepper", "old\n"), folder.write("previous", ""));
    let file = folder.write(
        "tidegate.yaml",
        &format!(
            "identity: {{user: [], key: [{{header: x-api-key}}]}}\ndefault_tier: free\n\
             tiers:\n  free: {{per_key: {{max_tokens: 2, refill_rate: 1}}}}\n  gold: {{per_key: {{max_tokens: 50, refill_rate: 1}}}}\n\
             api_keys: [{{digest: {}, tier: gold}}]\n{}",
            digest("old", "sk-config"),
            redis(&server)
        ),
    );
    let environment = [
        ("TIDEGATE_KEY_PEPPER_FILE", pepper.to_str().unwrap()),
        ("TIDEGATE_KEY_PEPPER_PREVIOUS_FILE", previous.to_str().unwrap()),
    ];
    let service = Tidegate::start_at(&file, &environment);
    let tier = |key: &str| told(&ask(&service, &[("x-api-key", key)]), "tier").unwrap();
    let known = || ["sk-config", "sk-redis"].map(tier);
    let suspended = || told(&ask(&service, &[("x-api-key", "sk-bad")]), "decision").as_deref() == Some("suspended");
    assert_eq!((known().map(|tier| tier == "gold"), suspended()), ([true, true], true));

    folder.write("previous", "old\n");
    until_reloads(&service, (1, 0));
    folder.replace("pepper", "new\n");
    until_reloads(&service, (2, 0));
    assert_eq!((known().map(|tier| tier == "gold"), suspended()), ([true, true], true));
    let charged = |pepper| format!("rl:key:{}", digest(pepper, "sk-redis"));
    assert!(server.run::<bool>(&["EXISTS", &charged("new")]));

    // Once it is known under the new one, that counts.
    let _: i64 = server.run(&["HSET", &format!("rl:apikey:{}", digest("new", "sk-later")), "tier", "gold"]);
    let _: i64 = server.run(&["HSET", &format!("rl:apikey:{}", digest("old", "sk-later")), "suspended", "1"]);
    assert_eq!(tier("sk-later"), "gold");

    folder.write("previous", "");
    until_reloads(&service, (3, 0));
    assert_eq!((known().map(|tier| tier == "free"), suspended()), ([true, true], false));
    assert_eq!(tier("sk-later"), "gold");
    assert!(!service.log().contains("\"old") && !service.log().contains("\"new"), "{}", service.log());
}

#[test]
fn a_changed_password_of_redis_is_used_for_new_connections_and_the_old_one_works_on() {
    let server = Server::start(&["--requirepass", "first"]);
    let mut admin = server.connection();
    let folder = Folder::new();
    let password = folder.write("password", "first");
    let file = folder.write("tidegate.yaml", &config(100, &redis(&server)));
    let environment = [("TIDEGATE_REDIS_PASSWORD_FILE", password.to_str().unwrap())];
    let service = Tidegate::start_at(&file, &environment);
    assert_eq!(limit(&service), "100");
    let [before] = connections(&mut admin).try_into().unwrap();

    let () = ::redis::cmd("CONFIG").arg("SET").arg("requirepass").arg("second").query(&mut admin).unwrap();
    assert_eq!(limit(&service), "100");
    folder.write("password", "second");
    until_reloads(&service, (1, 0));
    assert_eq!(limit(&service), "100");
    assert_eq!(connections(&mut admin), [before.as_str()], "the connection stands");

    let _: i64 = ::redis::cmd("CLIENT").arg("KILL").arg("ID").arg(&before).query(&mut admin).unwrap();
    // The first may find the connection closed.
    eventually("checks go on", || {
        (told(&ask(&service, &[("x-user", "alice")]), "decision").as_deref() == Some("allowed")).then_some(())
    });
    let [after] = connections(&mut admin).try_into().unwrap();
    assert_ne!(after, before);
    assert!(!service.log().contains("second"), "{}", service.log());
}

#[test]
fn the_stream_of_the_audit_trail_signs_in_with_a_changed_password_too() {
    let server = Server::start(&["--requirepass", "first"]);
    let mut admin = server.connection();
    let folder = Folder::new();
    let password = folder.write("password", "first");
    let audit = "audit: {sinks: [redis_stream: {key: trail}], fold: 0s}\n";
    let file = folder.write("tidegate.yaml", &config(1, &format!("{}{audit}", redis(&server))));
    let environment = [("TIDEGATE_REDIS_PASSWORD_FILE", password.to_str().unwrap())];
    let service = Tidegate::start_at(&file, &environment);
    let deny = |user: &str| {
        eventually(&format!("{user} is denied"), || {
            (told(&ask(&service, &[("x-user", user)]), "decision").as_deref() == Some("denied")).then_some(())
        });
    };
    let until_told_of = |admin: &mut ::redis::Connection, user: &str| {
        eventually(&format!("the stream tells of {user}"), || {
            let entries: ::redis::Value = ::redis::cmd("XRANGE").arg(&["trail", "-", "+"]).query(admin).unwrap();
            format!("{entries:?}").contains(user).then_some(())
        });
    };
    deny("alice");
    until_told_of(&mut admin, "alice");
    let before = connections(&mut admin);
    assert_eq!(before.len(), 2, "one for buckets, one for the trail");

    folder.write("password", "hunter2");
    until_reloads(&service, (1, 0));
    change_password(&mut admin, "hunter2");
    deny("bob");
    until_told_of(&mut admin, "bob");
    let after = connections(&mut admin);
    assert!(after.len() == 2 && !after.iter().any(|id| before.contains(id)), "{before:?} {after:?}");
    assert!(!service.log().contains("hunter2"), "{}", service.log());
}

#[test]
fn a_secret_that_cannot_be_read_any_more_is_refused_by_the_name_of_its_variable() {
    let folder = Folder::new();
    let pepper = folder.write("pepper", "old");
    let file = folder.write("tidegate.yaml", &config(100, ""));
    let service = Tidegate::start_at(&file, &[("TIDEGATE_KEY_PEPPER_FILE", pepper.to_str().unwrap())]);
    folder.write("pepper", "");
    until_reloads(&service, (0, 1));
    service.wait_for_log("config: TIDEGATE_KEY_PEPPER_FILE: ");
    folder.write("pepper", "new");
    until_reloads(&service, (1, 1));
}
