//! Secrets stay in Secrets.

use crate::support::{Helm, documents, rendered, resource, written};
use serde_json::{Value, json};

const PASSWORD: &str = "pa55-of-redis-0xyz";
const PEPPER: &str = "pepper-of-keys-0xyz";
const TOKEN: &str = "token-of-operators-0xyz";

fn values() -> Value {
    json!({
        "replicaCount": 2,
        "redis": {"urls": ["redis://redis:6379"], "auth": {"password": PASSWORD}},
        "keyPepper": {"value": PEPPER},
        "adminToken": {"value": TOKEN},
    })
}

#[test]
fn what_is_secret_stands_in_the_secret_and_nowhere_else() {
    let mut all = values();
    for embedded in [false, true] {
        if embedded {
            all["redis"] = json!({"embedded": true, "auth": {"password": PASSWORD}});
        }
        let resources = rendered(&all);
        let secret = resource(&resources, "Secret", "t-tidegate");
        use base64::Engine as _;
        for (key, value) in [("redis-password", PASSWORD), ("key-pepper", PEPPER), ("admin-token", TOKEN)] {
            let held = secret["data"][key].as_str().unwrap();
            assert_eq!(base64::engine::general_purpose::STANDARD.decode(held).unwrap(), value.as_bytes());
        }
        let others = resources.iter().filter(|found| found["kind"] != "Secret");
        for text in others.map(Value::to_string) {
            let encoded = secret["data"].as_object().unwrap().values().map(|held| held.as_str().unwrap());
            for secret in [PASSWORD, PEPPER, TOKEN].into_iter().chain(encoded) {
                assert!(!text.contains(secret), "{secret} stands in {text}");
            }
        }
    }
}

/// `helm install --dry-run=client` prints them, and needs no cluster.
#[test]
fn the_notes_tell_no_secret_and_the_next_step() {
    let file = written(&values().to_string());
    let chart = crate::support::chart();
    let arguments = ["install", "t", chart.to_str().unwrap(), "--values", file.path().to_str().unwrap()];
    let output = Helm::four().run(&[&arguments[..], &["--dry-run=client", "--namespace", "limits"]].concat());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let notes = text.split("NOTES:").nth(1).unwrap();
    for secret in [PASSWORD, PEPPER, TOKEN] {
        assert!(!notes.contains(secret), "{notes}");
    }
    assert!(notes.contains("helm -n limits test t") && notes.contains("t-tidegate.limits.svc:50051"), "{notes}");
    assert!(notes.contains("redis.auth.existingSecret"), "{notes}");
}

fn notes(values: &Value) -> String {
    let file = written(&values.to_string());
    let chart = crate::support::chart();
    let arguments = ["install", "t", chart.to_str().unwrap(), "--values", file.path().to_str().unwrap()];
    let output = Helm::four().run(&[&arguments[..], &["--dry-run=client", "--namespace", "limits"]].concat());
    String::from_utf8(output.stdout).unwrap().split("NOTES:").nth(1).unwrap().to_owned()
}

#[test]
fn the_notes_say_what_no_redis_means_and_what_istio_needs() {
    assert!(notes(&json!({})).contains("WITHOUT REDIS"));
    assert!(notes(&json!({"redis": {"embedded": true}})).contains("FOR A TRIAL"));
    let policy = json!({"enabled": true, "selector": {"istio": "ingressgateway"}});
    let istio = notes(&json!({"istio": {"authorizationPolicy": policy, "provider": {"failOpen": false}}}));
    let block = istio.split("     extensionProviders:").nth(1).unwrap().split("\n\n").next().unwrap();
    let provider = &documents(&format!("extensionProviders:{}", block.replace("\n     ", "\n")))[0];
    let expected = json!({"extensionProviders": [{"name": "t-tidegate-limits", "envoyExtAuthzGrpc": {
        "service": "t-tidegate.limits.svc.cluster.local",
        "port": 50051,
        "timeout": "0.1s",
        "failOpen": false,
        "statusOnError": "503",
    }}]});
    assert_eq!(*provider, expected);
}

/// Files, so that a change is followed, and never the environment.
#[test]
fn secrets_are_mounted_as_files_that_the_process_is_pointed_to() {
    let resources = rendered(&json!({
        "redis": {
            "topology": "sentinel",
            "sentinelMaster": "m",
            "urls": ["redis://a:26379"],
            "auth": {"existingSecret": "redis", "passwordKey": "pw", "sentinelPasswordKey": "spw"},
        },
        "keyPepper": {"existingSecret": "pepper", "previousKey": "old"},
        "adminToken": {"existingSecret": "admin", "key": "tok"},
    }));
    assert!(resources.iter().all(|found| found["kind"] != "Secret"), "a Secret that nobody needs");
    let spec = &resource(&resources, "Deployment", "t-tidegate")["spec"]["template"]["spec"];
    let volumes = spec["volumes"].as_array().unwrap();
    let sources = &volumes.iter().find(|volume| volume["name"] == "secrets").unwrap()["projected"]["sources"];
    let held: Vec<_> = sources.as_array().unwrap().iter().map(|source| &source["secret"]).collect();
    let item = |name: &str, key: &str, path: &str| json!({"name": name, "items": [{"key": key, "path": path}]});
    let expected = [
        item("redis", "pw", "redis-password"),
        item("redis", "spw", "sentinel-password"),
        item("pepper", "key-pepper", "key-pepper"),
        item("pepper", "old", "key-pepper-previous"),
        item("admin", "tok", "admin-token"),
    ];
    assert_eq!(held, expected.iter().collect::<Vec<_>>());

    let container = &spec["containers"][0];
    let environment = container["env"].as_array().unwrap();
    for variable in environment.iter().filter(|variable| variable["name"] != "TIDEGATE_REPLICA") {
        let (name, path) = (variable["name"].as_str().unwrap(), variable["value"].as_str().unwrap());
        assert!(name.ends_with("_FILE") && tidegate::config::VARIABLES.contains(&name), "{name}");
        let file = path.strip_prefix("/etc/tidegate/secrets/").unwrap();
        assert!(expected.iter().any(|source| source["items"][0]["path"] == file), "{path}");
    }
    assert_eq!(environment.len(), 6);
    for mount in container["volumeMounts"].as_array().unwrap() {
        assert!(mount["subPath"].is_null() && mount["readOnly"] == true, "{mount}");
    }
}
