//! Configs: every good file loads and fits the schema, every bad one is refused for its own reason.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tidegate::config::{self, Config, Environment, Faults, Flags};

fn files(kind: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config").join(kind);
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

fn refused(yaml: impl AsRef<[u8]>) -> String {
    config::parse(yaml.as_ref()).unwrap_err().to_string()
}

fn shown(config: &Config) -> String {
    // Tiers are listed in the order in which they are kept; the rest has one order.
    format!("{:?} {:?}", config.policy, config.settings)
}

#[test]
fn every_good_file_loads() {
    for file in files("good") {
        if let Err(faults) = config::parse_file(&file) {
            panic!("{}:\n{faults}", file.display());
        }
    }
}

#[test]
fn every_bad_file_is_refused_with_the_lines_that_it_expects_and_no_others() {
    let wrong: Vec<String> = files("bad").iter().filter_map(|file| unexpected(file)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// What is told of a bad file, unless it is what the file expects.
fn unexpected(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let expected: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# expect: ")).collect();
    let told = match config::parse_file(file) {
        Ok(_) => "it was accepted".to_owned(),
        Err(faults) => faults.to_string(),
    };
    let all_told = expected.iter().all(|line| told.lines().any(|fault| fault.contains(line)));
    let no_others = told.lines().count() == expected.len();
    let no_secret = !told.contains("hunter2");
    let fine = !expected.is_empty() && all_told && no_others && no_secret;
    (!fine).then(|| format!("{}:\n{}\nis not what is told:\n{told}", file.display(), expected.join("\n")))
}

#[test]
fn the_built_in_config_states_exactly_what_is_used_where_a_file_says_nothing() {
    let built_in = config::parse(config::DEFAULT.as_bytes()).unwrap();
    assert_eq!(shown(&built_in), shown(&config::parse(b"{}").unwrap()));
    assert_eq!(built_in.warnings, []);
    let tiers: Vec<&str> = built_in.policy.tiers.iter().map(|tier| tier.name.as_str()).collect();
    assert_eq!(tiers, ["free", "enterprise", "standard"]);
    assert!(built_in.settings.redis.is_none());
}

#[test]
fn what_loads_fits_the_schema_and_misspelt_keys_do_not() {
    let schema = jsonschema::validator_for(&config::schema()).unwrap();
    let read = |text: &str| -> serde_json::Value { serde_yaml::from_str(text).unwrap() };
    let texts = files("good").into_iter().map(|file| std::fs::read_to_string(file).unwrap());
    for text in texts.chain([config::DEFAULT.to_owned()]) {
        let faults: Vec<String> = schema.iter_errors(&read(&text)).map(|error| error.to_string()).collect();
        assert!(faults.is_empty(), "{faults:?}\n{text}");
    }
    for text in [
        "listn: x",
        "redis:",
        "drain:",
        "tiers: {free: {per_user: }}",
        "tiers: {free: {per_user: {max_token: 1}}}",
        "tiers: {free: {per_user: {max_tokens: 0}}}",
    ] {
        assert!(!schema.is_valid(&read(text)), "{text}");
    }
}

#[test]
fn every_key_of_the_schema_has_a_description() {
    fn look(place: &str, node: &serde_json::Value) {
        for (name, key) in node["properties"].as_object().into_iter().flatten() {
            let described = key.get("description").is_some() || key.get("$ref").is_some() || key.get("anyOf").is_some();
            let form = ["metadata", "header", "xff", "exact", "prefix", "glob"].contains(&name.as_str());
            assert!(described || form, "{place}.{name}");
        }
    }
    let schema = config::schema();
    look("", &schema);
    for (name, part) in schema["$defs"].as_object().unwrap() {
        look(name, part);
    }
}

#[test]
fn what_is_no_text_is_refused() {
    assert!(refused(b"").contains("file: the file is empty"));
    assert!(refused(b"---\n").contains("file: the file is empty"));
    assert!(refused(b"mode: shadow\nlisten: \xff\n").contains("line 2: holds bytes that are not UTF-8"));
    assert!(refused(b"\xff\xfem\0o\0").contains("not UTF-8"));
    assert!(refused(vec![b' '; config::MAX_BYTES + 1]).contains("longer than 16 MiB"));
    assert!(config::parse("\u{feff}mode: shadow\n".as_bytes()).is_ok());
}

#[test]
fn a_tab_is_told_with_its_line_and_column() {
    assert_eq!(refused("tiers:\n\tfree: {}\n"), "line 2, column 1: a tab; indent with spaces");
    assert_eq!(refused("memory:\n  capacity: 1\n\tx: 1\n"), "line 3, column 1: a tab; indent with spaces");
}

#[test]
fn a_missing_file_and_a_directory_are_told_by_their_path() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("none.yaml");
    for path in [missing.as_path(), directory.path()] {
        let told = config::parse_file(path).unwrap_err().to_string();
        assert!(told.starts_with(&format!("{}: cannot read this file: ", path.display())), "{told}");
    }
}

#[test]
fn a_megabyte_of_malice_is_refused_at_once() {
    const MANY: usize = 500_000;
    let references: String =
        (1..9).map(|i| format!("b{i}: &b{i} [{}]\n", vec![format!("*b{}", i - 1); 9].join(","))).collect();
    let texts = [
        "[".repeat(2 * MANY),
        "{a: ".repeat(MANY / 2),
        "- ".repeat(MANY),
        "? ".repeat(MANY),
        "a: ".repeat(MANY / 2),
        "!a ".repeat(MANY / 2),
        format!("{}{}", "[".repeat(990), "\"a\": 1, ".repeat(MANY / 4)),
        format!("{}{}", "[".repeat(999), "]".repeat(999)),
        (0..1400).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect(),
        format!("rules: [{}]", "1, ".repeat(MANY / 2)),
        format!("{{{}}}", (0..MANY / 10).map(|i| format!("k{i}: 1, ")).collect::<String>()),
        format!("listen: \"{}", "x".repeat(2 * MANY)),
        format!("{}: 1", "x".repeat(2 * MANY)),
        (0..MANY / 10).fold("tiers:\n".into(), |text, i| format!("{text}  t{i}: {{}}\n")),
        (0..MANY / 10).fold("rules:\n".into(), |text, i| format!("{text}- {{name: r{i}, cost: -1}}\n")),
        format!("b0: &b0 [x]\n{references}"),
    ];
    for text in texts {
        let begun = Instant::now();
        let told = refused(&text);
        assert!(told.len() < 100_000, "{} bytes of faults", told.len());
        // A second or so in a debug build on a busy machine; the unguarded scanner takes minutes.
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?} for {:.20}", begun.elapsed(), text);
    }
}

fn load(yaml: &str, flags: Flags, env: &[(&str, &str)]) -> Result<Config, Faults> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), yaml).unwrap();
    let env: Environment = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
    config::load(&Flags { config: Some(file.path().to_owned()), ..flags }, &env)
}

#[test]
fn a_flag_comes_before_the_environment_and_that_before_the_file() {
    let yaml = "listen: 1.1.1.1:1\nredis: {urls: [\"redis://file\"]}\nlog: {filter: warn}\n";
    let env =
        [("TIDEGATE_LISTEN", "2.2.2.2:2"), ("TIDEGATE_REDIS_URL", "redis://env"), ("TIDEGATE_LOG_FORMAT", "json")];
    let settings = |flags, env: &[_]| load(yaml, flags, env).unwrap().settings;
    let of_file = settings(Flags::default(), &[]);
    assert_eq!((of_file.listen.to_string(), of_file.log.filter.as_str()), ("1.1.1.1:1".into(), "warn"));
    let of_env = settings(Flags::default(), &env);
    assert_eq!(of_env.listen.to_string(), "2.2.2.2:2");
    assert_eq!(of_env.redis.unwrap().topology.to_string(), "redis://env");
    assert_eq!(of_env.log.format, config::LogFormat::Json);
    let flags =
        Flags { listen: Some("unix:/run/x".into()), redis_url: Some("redis://flag".into()), ..Flags::default() };
    let of_flags = settings(flags, &env);
    assert_eq!(of_flags.listen.to_string(), "unix:/run/x");
    assert_eq!(of_flags.redis.unwrap().topology.to_string(), "redis://flag");
}

#[test]
fn the_admin_endpoint_is_local_unless_file_or_environment_say_otherwise() {
    let admin = |yaml, env: &[_]| load(yaml, Flags::default(), env).unwrap().settings.admin.map(|at| at.to_string());
    let (file, env) = ("admin: {listen: 0.0.0.0:9000}\n", [("TIDEGATE_ADMIN_LISTEN", "[::1]:0")]);
    assert_eq!(admin("{}", &[]).as_deref(), Some("127.0.0.1:8080"));
    assert_eq!(admin(file, &[]).as_deref(), Some("0.0.0.0:9000"));
    assert_eq!(admin(file, &env).as_deref(), Some("[::1]:0"));
    assert_eq!(admin("admin: {listen: off}\n", &[]), None);
    assert_eq!(admin(file, &[("TIDEGATE_ADMIN_LISTEN", "off")]), None);
    let told = load(file, Flags::default(), &[("TIDEGATE_ADMIN_LISTEN", "8080")]).unwrap_err().to_string();
    assert!(told.contains("TIDEGATE_ADMIN_LISTEN: \"8080\" is no address"), "{told}");
}

#[test]
fn faults_of_file_environment_and_flags_are_told_together() {
    let flags = Flags { listen: Some("nowhere".into()), ..Flags::default() };
    let env = [("TIDEGATE_REDIS_URL", "http://:hunter2@h"), ("TIDEGATE_LOG", "lout"), ("TIDEGATE_LISTEN", "x")];
    let told = load("mode: off\nlisten: here\n", flags, &env).unwrap_err().to_string();
    for part in [
        "--listen: \"nowhere\"",
        "TIDEGATE_REDIS_URL: is no Redis URL",
        "TIDEGATE_LOG: \"lout\"",
        "mode: ",
        "listen: \"here\"",
    ] {
        assert!(told.contains(part), "{part} is not in\n{told}");
    }
    assert!(!told.contains("hunter2"));
}

#[test]
fn secrets_of_the_environment_are_used_and_never_shown() {
    let env = [("TIDEGATE_REDIS_PASSWORD", "hunter2"), ("TIDEGATE_KEY_PEPPER", "pepper")];
    let yaml = "redis: {urls: [\"redis://h:6379/0\"]}\nidentity: {key_pepper: another}\n";
    let config = load(yaml, Flags::default(), &env).unwrap();
    assert_eq!(config.settings.redis.as_ref().unwrap().topology.to_string(), "redis://h:6379/0");
    let digest = config.policy.sources.digester.digest(b"sk-test").to_string();
    assert_eq!(digest, "a84029a881ee3a5626797adc981f0106");
    let shown = format!("{config:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("\"pepper\"") && !shown.contains("another"));
}

#[test]
fn a_redis_section_without_an_address_takes_it_from_the_environment() {
    let config = load("redis: {timeout: 20ms}\n", Flags::default(), &[("TIDEGATE_REDIS_URL", "redis://h")]).unwrap();
    assert_eq!(config.settings.redis.unwrap().limits.timeout, Duration::from_millis(20));
}

fn warnings(yaml: &str) -> String {
    let warnings = config::parse(yaml.as_bytes()).unwrap().warnings;
    warnings.iter().map(|warning| format!("{warning}\n")).collect()
}

#[test]
fn what_is_sound_but_perhaps_not_meant_is_warned_of() {
    let told = warnings("tiers: {free: {per_user: {max_tokens: 0.5, refill_rate: 1}}}");
    assert!(told.contains("tiers.free: per_key is left out: API keys are not limited in this tier"), "{told}");
    assert!(told.contains("tiers.free: per_ip is left out: addresses are not limited in this tier"), "{told}");
    assert!(told.contains("tiers.free.per_user.max_tokens: 0.5 is below 1"), "{told}");
    let told =
        warnings("identity: {user: [{header: x-user}], key: [], tier: [{header: x-tier}], ip: {from: {header: x-ip}}}");
    for part in [
        "identity.user[0].header: x-user is a plain header",
        "identity.tier[0].header",
        "identity.ip.from.header",
        "identity.key: is empty",
    ] {
        assert!(told.contains(part), "{part} is not in\n{told}");
    }
    let keys = "api_keys: [{digest: f3abf2a6cc4f00987743db5f544ba345, tier: free}]\nidentity: {tier: []}";
    assert!(warnings(keys).contains("identity.tier: does not list api_key"));
    let rules = "rules: [{name: all}, {name: later, match: {methods: [GET]}}]";
    assert!(warnings(rules).contains("rules[1]: comes after \"all\", which matches everything"));
    assert_eq!(warnings("traces: {timeout: 1s}"), "traces: is of no effect without an endpoint\n");
    assert!(warnings("{}").is_empty());
}

#[test]
fn a_tier_that_limits_users_and_keys_may_leave_addresses_out() {
    let both = "per_user: {max_tokens: 1, refill_rate: 1}, per_key: {max_tokens: 1, refill_rate: 1}";
    assert_eq!(warnings(&format!("tiers: {{free: {{{both}}}}}")), "");
}

#[test]
fn addresses_that_differ_between_tiers_are_warned_of_once_a_tier() {
    let users = "per_user: {max_tokens: 9, refill_rate: 9}, per_key: {max_tokens: 9, refill_rate: 9}";
    let tier = |name: &str, tokens, rate| {
        format!("  {name}: {{{users}, per_ip: {{max_tokens: {tokens}, refill_rate: {rate}}}}}\n")
    };
    let [free, same, more, faster] = [("free", 5, 1), ("same", 5, 1), ("more", 6, 1), ("faster", 5, 2)]
        .map(|(name, tokens, rate)| tier(name, tokens, rate));
    let told = warnings(&format!("tiers:\n{free}{same}{more}{faster}  none: {{{users}}}\n"));
    let shared = "differs from 5 at 1 per second of tiers.free: callers of both behind one address share one bucket, \
                  refilled at the rate of whoever asks; give the same numbers or leave per_ip out of the tiers that are \
                  identified otherwise";
    let expected = [
        format!("tiers.faster.per_ip: 5 at 2 per second {shared}"),
        format!("tiers.more.per_ip: 6 at 1 per second {shared}"),
    ];
    assert_eq!(told.lines().collect::<Vec<_>>(), expected);

    let told = warnings(&format!("allow_generous_default: true\ntiers:\n  free: {{{users}}}\n{more}{faster}"));
    assert!(told.starts_with("tiers.more.per_ip: 6 at 1 per second differs from 5 at 2 per second of tiers.faster"));
    assert_eq!(told.lines().count(), 1, "a default tier without per_ip is not compared with");
}

#[test]
fn a_rule_that_gives_something_for_a_header_is_warned_of() {
    let rule = |gives: &str| {
        warnings(&format!("rules: [{{name: a, match: {{headers: [{{name: x-a, present: true}}]}}{gives}}}]"))
    };
    for (gives, named) in [
        (", exempt: true", "exempt"),
        (", tier: standard", "tier"),
        (", shadow: true", "shadow"),
        (", tier: standard, shadow: true, cost: 2", "tier, shadow"),
        (", on_store_error: allow", "on_store_error"),
    ] {
        let text = "is a plain header, which the client writes unless Envoy overwrites it: whoever sends it chooses";
        let expected = format!("rules[0].match.headers[0].name: \"x-a\" {text} this rule's {named}\n");
        assert_eq!(rule(gives), expected);
    }
    for gives in ["", ", cost: 5", ", on_store_error: deny", ", exempt: false, shadow: false", ", dimensions: [user]"] {
        assert_eq!(rule(gives), "", "{gives}");
    }
    assert_eq!(warnings("rules: [{name: a, match: {path: {exact: /healthz}}, exempt: true}]"), "");
}

const REFUSED: &str = "under on_store_error: local such requests are answered 503";

#[test]
fn a_bucket_whose_share_never_covers_a_request_is_warned_of_where_local_may_come_to_count() {
    let quota = |tokens: f64| format!("{{max_tokens: {tokens}, refill_rate: 1}}");
    let tiers = |local: &str| {
        let (small, large) = (quota(3.0), quota(4.0));
        let free = format!("free: {{per_user: {small}, per_key: {large}{local}}}");
        format!("replicas_hint: 4\ntiers: {{{free}, gold: {{per_user: {small}, per_key: {large}}}}}\n")
    };
    let small = |tier| {
        format!(
            "tiers.{tier}.per_user.max_tokens: 3 is less than 1, the usual cost, for each of 4 replicas: {REFUSED}\n"
        )
    };
    let (free, gold) = (small("free"), small("gold"));
    assert_eq!(warnings(&format!("on_store_error: local\n{}", tiers(""))), format!("{free}{gold}"));
    assert_eq!(warnings(&format!("on_store_error: local\n{}", tiers(", on_store_error: deny"))), gold);
    assert_eq!(warnings(&tiers(", on_store_error: local")), free);
    let rule = |text| format!("{}rules: [{{name: a, match: {{methods: [GET]}}, {text}}}]", tiers(""));
    assert_eq!(warnings(&rule("tier: gold, on_store_error: local")), gold);
    assert_eq!(warnings(&rule("on_store_error: local")), format!("{free}{gold}"));
    let key = format!("api_keys: [{{digest: f3abf2a6cc4f00987743db5f544ba345, per_key: {}}}]", quota(2.0));
    let told = warnings(&format!("{}{key}", tiers(", on_store_error: local")));
    assert!(told.contains("api_keys[0].per_key.max_tokens: 2 is less than 1, the usual cost"), "{told}");
}

#[test]
fn a_rule_whose_cost_is_above_a_share_is_warned_of() {
    let rule =
        |text: &str| format!("replicas_hint: 4\nrules: [{{name: images, cost: 5, on_store_error: local{text}}}]\n");
    let above = "rules[0].cost: 5 is above what one of 4 replicas holds of tiers.free.per_user, tiers.free.per_key";
    let told = warnings(&rule(""));
    assert!(told.contains(&format!("{above}: {REFUSED}\n")), "{told}");
    assert_eq!(warnings(&rule(", tier: enterprise")), "");
    assert_eq!(warnings(&rule(", dimensions: [ip]")), "", "30 tokens of an address are enough for all");
}

#[test]
fn a_default_tier_that_an_outage_treats_better_than_another_is_warned_of() {
    let tiers = |free: &str, gold: &str| {
        let both = "per_user: {max_tokens: 9, refill_rate: 1}, per_key: {max_tokens: 9, refill_rate: 1}";
        let said = |policy: &str| if policy.is_empty() { String::new() } else { format!(", on_store_error: {policy}") };
        let (free, gold) = (said(free), said(gold));
        warnings(&format!(
            "on_store_error: deny\nreplicas_hint: 3\ntiers: {{free: {{{both}{free}}}, gold: {{{both}{gold}}}}}"
        ))
    };
    let gains = "of the default tier lets more pass than";
    let hides = "who hides who they are gain by it while Redis is away";
    assert_eq!(tiers("local", ""), format!("tiers.free.on_store_error: local {gains} deny of tiers.gold: {hides}\n"));
    assert_eq!(
        tiers("allow", "local"),
        format!("tiers.free.on_store_error: allow {gains} local of tiers.gold: {hides}\n")
    );
    for (free, gold) in [("", "local"), ("deny", "local"), ("local", "local"), ("local", "allow")] {
        assert_eq!(tiers(free, gold), "", "{free} {gold}");
    }
}

#[test]
fn a_number_of_replicas_that_nothing_needs_is_warned_of() {
    assert_eq!(warnings("replicas_hint: 3"), "replicas_hint: is of no effect: no on_store_error is local\n");
}

#[test]
fn no_tier_of_a_broken_config_is_called_unknown() {
    let told = refused("tiers: {free: {}, gold: 5}\nrules: [{name: a, tier: gold}]\n");
    assert_eq!(told, "tiers.gold: 5 is a number; write a mapping of keys to values");
}

#[test]
fn a_flood_of_faults_is_cut() {
    let users: String = (0..300).map(|i| format!("  - {{id: u{i}, tier: gold}}\n")).collect();
    let faults = config::parse(format!("users:\n{users}").as_bytes()).unwrap_err();
    assert_eq!((faults.len(), faults.is_cut()), (config::MAX_FAULTS, true));
}

#[test]
fn globs_of_any_kind_are_compiled_or_refused() {
    let globs =
        ["*".repeat(1024), "**/".repeat(341), "{".repeat(500), "{a,b}".repeat(200), "[!a]".repeat(256), "[]".into()];
    for glob in globs.iter().chain(&["/".repeat(2000), "/\\".into(), "/[z-a]".into(), "/{a,{b,c}}".into()]) {
        let path = serde_json::json!({"rules": [{"name": "a", "match": {"path": {"glob": glob}}}]});
        let host = serde_json::json!({"rules": [{"name": "a", "match": {"hosts": [glob]}}]});
        let _ = (config::parse(path.to_string().as_bytes()), config::parse(host.to_string().as_bytes()));
    }
}

#[test]
fn what_is_odd_about_the_verification_of_tokens_is_warned_of() {
    let jwt =
        |keys: &str, rest: &str| warnings(&format!("identity: {{jwt: {{{keys}, issuer: me, audiences: [a]}}{rest}}}"));
    let user = ", user: [{jwt: sub}]";
    assert_eq!(jwt("jwks_file: /k", user), "");
    assert_eq!(jwt("jwks_url: 'http://127.0.0.1:80/keys'", user), "");
    assert_eq!(jwt("jwks_url: 'https://issuer.example/keys'", ", user: [], tier: [{jwt: tier}]").lines().count(), 1);
    assert_eq!(
        jwt("jwks_url: 'http://issuer.example/keys'", user),
        "identity.jwt.jwks_url: is fetched without TLS: whoever stands between chooses whose tokens are believed\n"
    );
    assert_eq!(
        jwt("jwks_file: /k", ""),
        "identity.jwt: is of no effect: neither identity.user nor identity.tier reads {jwt: …}\n"
    );
    assert_eq!(
        jwt("jwks_file: /k", &format!("{user}, key: [bearer]")),
        "identity.jwt.header: authorization is also where identity.key is read: each token is charged as an API key too\n"
    );
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(200))]

    #[test]
    fn a_mutilated_config_never_panics(
        place in 0..config::DEFAULT.len(),
        cut in 0..40_usize,
        graft in "[\\[\\]{}:,!&*?|>'\"\t\n #%@`0-9a-z\u{e9}-]{0,12}",
    ) {
        // Without its comments, so that most mutilations hurt.
        let lines: Vec<&str> = config::DEFAULT.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
        let text: Vec<char> = lines.join("\n").chars().collect();
        let place = place % text.len();
        let after = text.len().min(place + cut);
        let text: String = text[..place].iter().copied().chain(graft.chars()).chain(text[after..].iter().copied()).collect();
        if let Err(faults) = config::parse(text.as_bytes()) {
            for fault in faults.iter() {
                proptest::prop_assert!(!fault.path.is_empty() && !fault.to_string().contains('\n'), "{}", fault);
            }
        }
    }
}
