//! What a reload leaves right: checks that are on their way, and what is remembered of API keys.

use super::*;
use tidegate::policy::api_key::Digester;

fn entry(key: &str) -> String {
    format!("rl:apikey:{}", Digester::default().digest(key.as_bytes()))
}

/// How often a command was run.
fn runs(connection: &mut ::redis::Connection, command: &str) -> u64 {
    let stats: String = ::redis::cmd("INFO").arg("commandstats").query(connection).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn a_check_that_is_on_its_way_is_answered_under_the_policy_that_it_began_with() {
    let server = Server::start(&[]);
    let mut connection = server.connection();
    let more = redis(&server);
    let folder = Folder::new();
    let file = folder.write("tidegate.yaml", &config(100, &more));
    let service = Tidegate::start_at(&file, &[]);
    assert_eq!(limit(&service), "100");
    // Scripts wait, and reading what is known of a key does not.
    let () = ::redis::cmd("CLIENT").arg("PAUSE").arg(60_000).arg("WRITE").query(&mut connection).unwrap();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask(&service, &[("x-user", "alice"), ("x-api-key", "sk-1")]));
        eventually("the check is on its way", || (runs(&mut connection, "hgetall") == 1).then_some(()));
        folder.write("tidegate.yaml", &config(200, &more));
        until_reloads(&service, (1, 0));
        assert!(!asked.is_finished());
        let () = ::redis::cmd("CLIENT").arg("UNPAUSE").query(&mut connection).unwrap();
        let answer = asked.join().unwrap();
        assert_eq!(
            (told(&answer, "decision").as_deref(), told(&answer, "limit").as_deref()),
            (Some("allowed"), Some("100"))
        );
    });
    assert_eq!(limit(&service), "200");
}

fn tiers(list: &str, key: &str, more: &str) -> String {
    let quota = |tokens: &str| format!("{{per_key: {{max_tokens: {tokens}, refill_rate: 1}}}}");
    let tiers: Vec<String> = list
        .split(' ')
        .map(|tier| tier.split_once('=').unwrap())
        .map(|(name, tokens)| format!("{name}: {}", quota(tokens)))
        .collect();
    let tiers = tiers.join(", ");
    format!(
        "identity: {{user: [], key: [{key}]}}\ndefault_tier: free\ntiers: {{{tiers}}}\nkey_metadata: {{max_age: 1h}}\n{more}"
    )
}

#[test]
fn what_is_remembered_of_a_key_names_the_tiers_of_the_present_policy_and_is_not_read_again() {
    let server = Server::start(&[]);
    let (more, header) = (redis(&server), "{header: x-api-key}");
    for (key, fields) in [("sk-gold", ["tier", "gold"]), ("sk-later", ["tier", "later"])] {
        let _: i64 = server.run(&[&["HSET", &entry(key)][..], &fields].concat());
    }
    let folder = Folder::new();
    let file = folder.write("tidegate.yaml", &tiers("free=2 bronze=50 gold=70", "", &more));
    let service = Tidegate::start_at(&file, &[]);
    let tier = |key: &str| {
        let answer = ask(&service, &[("x-api-key", key)]);
        (told(&answer, "tier").unwrap(), told(&answer, "limit").unwrap())
    };
    let is = |tier: &str, limit: &str| (tier.to_owned(), limit.to_owned());
    let mut connection = server.connection();
    ask(&service, &[("x-api-key", "sk-gold")]);
    assert_eq!(runs(&mut connection, "hgetall"), 0, "keys are not read yet");

    for (reloaded, list, gold, later) in [
        (1, "free=2 bronze=50 gold=70", is("gold", "70"), is("free", "2")),
        (2, "free=2 bronze=50 silver=60", is("free", "2"), is("free", "2")),
        (3, "free=2 gold=71 bronze=50 later=80", is("gold", "71"), is("later", "80")),
    ] {
        folder.write("tidegate.yaml", &tiers(list, header, &more));
        until_reloads(&service, (reloaded, 0));
        let _: i64 = server.run(&["DEL", &bucket("sk-gold"), &bucket("sk-later")]);
        assert_eq!((tier("sk-gold"), tier("sk-later")), (gold, later), "{list}");
    }
    assert_eq!(runs(&mut connection, "hgetall"), 2, "each key was read once");
}

fn bucket(key: &str) -> String {
    entry(key).replace("apikey", "key")
}
