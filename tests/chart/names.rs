//! Names: long ones, one's own, and those of two releases side by side.

use crate::support::{Helm, config_of, rendered, resource};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Everything that a release may have.
fn everything() -> Value {
    json!({
        "replicaCount": 2,
        "redis": {"embedded": true, "auth": {"password": "a-password"}},
        "service": {"headless": {"enabled": true}},
        "networkPolicy": {"enabled": true},
        "monitoring": {
            "serviceMonitor": {"enabled": true},
            "prometheusRule": {"enabled": true},
            "dashboard": {"enabled": true},
        },
        "istio": {
            "authorizationPolicy": {"enabled": true, "selector": {"app": "a"}},
            "envoyFilter": {"enabled": true, "selector": {"app": "b"}},
            "destinationRule": {"enabled": true},
        },
        "envoyGateway": {
            "securityPolicy": {
                "enabled": true,
                "namespace": "edge",
                "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"}],
            },
            "envoyProxy": {"enabled": true},
        },
    })
}

fn with(key: &str, value: &str) -> Value {
    let mut values = everything();
    values[key] = json!(value);
    values
}

fn names(resources: &[Value]) -> BTreeSet<String> {
    let name =
        |found: &Value| format!("{} {} {}", found["kind"], found["metadata"]["namespace"], found["metadata"]["name"]);
    resources.iter().map(name).collect()
}

/// Every text in a tree, with the key that it stands under.
fn texts<'a>(tree: &'a Value, under: &'a str, found: &mut Vec<(&'a str, &'a str)>) {
    match tree {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| texts(value, key, found)),
        Value::Array(all) => all.iter().for_each(|value| texts(value, under, found)),
        Value::String(text) => found.push((under, text)),
        _ => {}
    }
}

#[test]
fn names_and_labels_of_long_releases_are_as_long_as_kubernetes_takes() {
    let long = "a-release-whose-name-is-as-long-as-helm-lets-it-be-xx";
    assert_eq!(long.len(), 53);
    let sixty = "the-limiter-of-a-team-that-likes-names-which-tell-everything";
    assert_eq!(sixty.len(), 60);
    let releases = [(long, everything()), ("t", with("fullnameOverride", sixty)), ("t", with("nameOverride", sixty))];
    for (release, values) in releases {
        let resources = Helm::four().render(release, &values, &[]);
        assert!(resources.len() > 15);
        for found in &resources {
            let (kind, metadata) = (found["kind"].as_str().unwrap(), &found["metadata"]);
            let name = metadata["name"].as_str().unwrap();
            // The pods of a StatefulSet have it in a label, with eleven more characters.
            let most = if kind == "StatefulSet" { 52 } else { 63 };
            assert!(name.len() <= most && !name.ends_with('-'), "{kind} {name}: {}", name.len());
            for (label, value) in metadata["labels"].as_object().unwrap() {
                assert!(value.as_str().unwrap().len() <= 63, "{kind} {name}: {label}: {value}");
            }
        }
        assert_eq!(names(&resources).len(), resources.len());
        let prefix = serde_yaml::from_str::<Value>(&config_of(&resources)).unwrap()["key_prefix"].clone();
        assert!(prefix.as_str().unwrap().len() <= 64, "{prefix}");
        tidegate::config::parse(config_of(&resources).as_bytes()).unwrap();
    }
}

#[test]
fn a_name_of_sixty_characters_is_kept_and_its_parts_are_told_apart() {
    let (one, other) = (format!("{}-one", "x".repeat(56)), format!("{}-two", "x".repeat(56)));
    let [first, second] = [&one, &other].map(|name| rendered(&with("fullnameOverride", name)));
    resource(&first, "Deployment", &one);
    let both: Vec<_> = names(&first).intersection(&names(&second)).cloned().collect();
    assert!(both.is_empty(), "{both:?}");
}

#[test]
fn two_releases_in_a_namespace_share_no_name_no_selector_and_no_bucket() {
    let helm = Helm::four();
    let [first, second] = ["one", "two"].map(|release| helm.render(release, &everything(), &[]));
    let shared: Vec<_> = names(&first).intersection(&names(&second)).cloned().collect();
    assert!(shared.is_empty(), "{shared:?}");

    // Each selector of the one needs a label that no pod of the other has.
    let pods = |resources: &[Value]| -> Vec<Value> {
        let labels = |found: &Value| match found["kind"].as_str().unwrap() {
            "Deployment" | "StatefulSet" => Some(found["spec"]["template"]["metadata"]["labels"].clone()),
            "Pod" => Some(found["metadata"]["labels"].clone()),
            _ => None,
        };
        resources.iter().filter_map(labels).collect()
    };
    let selectors = |resources: &[Value]| -> Vec<Value> {
        let selector = |found: &Value| match found["kind"].as_str().unwrap() {
            "Service" => Some(found["spec"]["selector"].clone()),
            "Deployment" | "StatefulSet" | "PodDisruptionBudget" | "PodMonitor" => {
                Some(found["spec"]["selector"]["matchLabels"].clone())
            }
            "NetworkPolicy" => Some(found["spec"]["podSelector"]["matchLabels"].clone()),
            _ => None,
        };
        resources.iter().filter_map(selector).collect()
    };
    let chooses =
        |selector: &Value, pod: &Value| selector.as_object().unwrap().iter().all(|(key, value)| pod[key] == *value);
    assert!(selectors(&first).len() >= 6 && pods(&first).len() == 3);
    for selector in selectors(&first) {
        assert!(!selector.as_object().unwrap().is_empty());
        assert!(pods(&first).iter().filter(|pod| chooses(&selector, pod)).count() == 1, "{selector}");
        assert!(!pods(&second).iter().any(|pod| chooses(&selector, pod)), "{selector}");
    }

    let prefix =
        |resources: &[Value]| tidegate::config::parse(config_of(resources).as_bytes()).unwrap().policy.key_prefix;
    assert_ne!(prefix(&first), prefix(&second));
    let elsewhere = helm.render("one", &everything(), &["--namespace", "elsewhere"]);
    assert_ne!(prefix(&first), prefix(&elsewhere));
}

#[test]
fn names_of_ones_own_are_used_everywhere() {
    let resources = rendered(&with("fullnameOverride", "gatekeeper"));
    resource(&resources, "Deployment", "gatekeeper");
    let mut found = Vec::new();
    resources.iter().for_each(|resource| texts(resource, "", &mut found));
    // The release is called `t`; only labels say so.
    let strays: Vec<_> = found.iter().filter(|(_, text)| text.contains("t-tidegate")).collect();
    assert!(strays.is_empty(), "{strays:?}");

    let resources = rendered(&with("nameOverride", "guard"));
    let deployment = resource(&resources, "Deployment", "t-guard");
    assert_eq!(deployment["metadata"]["labels"]["app.kubernetes.io/name"], "guard");
}

#[test]
fn a_namespace_of_ones_own_is_that_of_all_resources_and_addresses() {
    let resources = rendered(&with("namespaceOverride", "elsewhere"));
    for found in &resources {
        let (kind, namespace) = (&found["kind"], &found["metadata"]["namespace"]);
        let expected = if kind == "SecurityPolicy" { "edge" } else { "elsewhere" };
        assert_eq!(namespace, expected, "{kind}");
    }
    let mut found = Vec::new();
    resources.iter().for_each(|resource| texts(resource, "", &mut found));
    let strays: Vec<_> =
        found.iter().filter(|(_, text)| text.contains(".limits.") || text.contains(":limits:")).collect();
    assert!(strays.is_empty(), "{strays:?}");
}
