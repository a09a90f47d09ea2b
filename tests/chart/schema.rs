//! values.schema.json: strict, in step with values.yaml, and with tidegate's own configuration.

use crate::support::{chart, yaml};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fs;

/// What the chart decides, so that `config` may not.
const ROOT: [&str; 4] = ["listen", "admin", "tls", "redis"];
const REDIS: [&str; 6] = ["topology", "urls", "sentinel_master", "username", "database", "tls"];
const IDENTITY: [&str; 2] = ["key_pepper", "key_pepper_previous"];
const JWT: [&str; 2] = ["jwks_file", "secret_file"];

fn read() -> Value {
    serde_json::from_str(&fs::read_to_string(chart().join("values.schema.json")).unwrap()).unwrap()
}

fn without(schema: &mut Value, keys: &[&str]) {
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.retain(|key, _| !keys.contains(&key.as_str()));
    }
}

fn references<'a>(node: &'a Value, found: &mut BTreeSet<&'a str>) {
    match node {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next()));
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(all) => all.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

/// tidegate's own schema as definitions: `Config` is its root, `RedisSettings` what is left of `redis`.
fn of_tidegate() -> Map<String, Value> {
    let mut schema = tidegate::config::schema();
    let mut definitions = schema["$defs"].take().as_object().unwrap().clone();
    for key in ["$defs", "$schema", "title"] {
        schema.as_object_mut().unwrap().remove(key);
    }
    without(&mut schema, &ROOT);
    let mut redis = definitions.remove("Redis").unwrap();
    without(&mut redis, &REDIS);
    without(&mut definitions["Identity"], &IDENTITY);
    if let Some(jwt) = definitions.get_mut("Jwt") {
        without(jwt, &JWT);
    }
    definitions.insert("Config".to_owned(), schema);
    definitions.insert("RedisSettings".to_owned(), redis);

    let mut used = BTreeSet::from(["Config", "RedisSettings"]);
    let mut before = 0;
    while used.len() > before {
        before = used.len();
        for name in used.clone() {
            references(&definitions[name], &mut used);
        }
    }
    let used: BTreeSet<String> = used.into_iter().map(str::to_owned).collect();
    definitions.into_iter().filter(|(name, _)| used.contains(name)).collect()
}

#[test]
fn the_schema_of_config_is_tidegates_own() {
    let mut schema = read();
    let definitions = schema["$defs"].as_object_mut().unwrap();
    let of_chart = |name: &str| name.starts_with(|first: char| first.is_ascii_lowercase());
    let held: Map<String, Value> = definitions
        .iter()
        .filter(|(name, _)| !of_chart(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let wanted = of_tidegate();
    if std::env::var_os("WRITE_DOCS").is_some() {
        definitions.retain(|name, _| of_chart(name));
        definitions.extend(wanted);
        fs::write(chart().join("values.schema.json"), format!("{schema:#}\n")).unwrap();
        return;
    }
    assert!(held == wanted, "WRITE_DOCS=1 cargo test --test chart the_schema_of_config writes it");
}

/// `additionalProperties` is said of everything that has keys of its own.
#[test]
fn the_schema_lets_no_unknown_key_pass() {
    fn look(node: &Value, path: &str, faults: &mut Vec<String>) {
        if let Value::Object(fields) = node {
            // What is Kubernetes' own is proven there.
            let named_only = fields.contains_key("required") && !fields.contains_key("additionalProperties");
            if fields.contains_key("properties") && !fields.contains_key("additionalProperties") && !named_only {
                faults.push(path.to_owned());
            }
            fields.iter().for_each(|(key, value)| look(value, &format!("{path}/{key}"), faults));
        }
    }
    let mut faults = Vec::new();
    look(&read(), "", &mut faults);
    assert!(faults.is_empty(), "{faults:?}");
}

fn resolve<'a>(schema: &'a Value, node: &'a Value) -> &'a Value {
    match node["$ref"].as_str() {
        Some(path) => schema.pointer(path.trim_start_matches('#')).unwrap(),
        None => node,
    }
}

#[test]
fn every_value_has_a_schema_and_every_key_of_the_schema_a_value() {
    fn compare(schema: &Value, node: &Value, values: &Value, path: &str, faults: &mut Vec<String>) {
        let node = resolve(schema, node);
        let (Some(known), Some(values)) = (node["properties"].as_object(), values.as_object()) else {
            return;
        };
        faults.extend(
            values.keys().filter(|key| !known.contains_key(*key)).map(|key| format!("{path}.{key}: no schema")),
        );
        for (key, node) in known {
            match values.get(key) {
                Some(value) => compare(schema, node, value, &format!("{path}.{key}"), faults),
                // Helm's own, and what Kubernetes has beyond what is set by default.
                None if path.is_empty() && key == "global" || is_of_kubernetes(path) => {}
                None => faults.push(format!("{path}.{key}: no value")),
            }
        }
    }
    fn is_of_kubernetes(path: &str) -> bool {
        let theirs = ["affinity", "behavior", "dnsConfig", "ecurityContext", "esources", "probes.", "updateStrategy"];
        theirs.iter().any(|part| path.contains(part))
    }
    let (schema, values) = (read(), yaml("helm/tidegate/values.yaml"));
    let mut faults = Vec::new();
    // `config` and `redis.settings` are tidegate's.
    let mut ours = values;
    ours["config"] = json!(null);
    ours["redis"]["settings"] = json!(null);
    compare(&schema, &schema, &ours, "", &mut faults);
    assert!(faults.is_empty(), "{faults:#?}");
}
