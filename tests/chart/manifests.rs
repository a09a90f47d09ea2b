//! What the chart renders: the same by both helms, and what Kubernetes and the others take.

use crate::support::{Helm, ci_values, documents, files, name, program, rendered, repository, resource, written, yaml};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

#[test]
fn both_helms_lint_the_chart_strictly_with_all_values_of_ci() {
    let chart = crate::support::chart();
    for helm in Helm::both() {
        for values in ci_values() {
            let arguments = ["lint", "--strict", chart.to_str().unwrap(), "--values", values.to_str().unwrap()];
            let output = helm.run(&arguments);
            assert!(output.status.success(), "helm {}, {}: {output:?}", helm.generation, name(&values));
        }
    }
}

#[test]
fn both_helms_render_the_same_of_all_values_of_ci() {
    let all = ci_values();
    assert!(all.len() >= 12, "{all:?}");
    for values in all {
        let [four, three] = Helm::both().map(|helm| {
            let text = helm.print("t", &["--values", values.to_str().unwrap()]).unwrap();
            let mut resources = documents(&text);
            resources.sort_by_key(|found| format!("{} {}", found["kind"], found["metadata"]["name"]));
            resources
        });
        assert!(four.len() >= 3, "{}", name(&values));
        assert_eq!(four, three, "{}", name(&values));
    }
}

#[test]
fn every_resource_has_a_name_of_its_own_and_the_labels_of_the_convention() {
    for values in ci_values() {
        let resources = documents(&Helm::four().print("t", &["--values", values.to_str().unwrap()]).unwrap());
        let mut seen = BTreeMap::new();
        for found in &resources {
            let (kind, metadata) = (found["kind"].as_str().unwrap(), &found["metadata"]);
            let before = seen.insert((kind, metadata["namespace"].to_string(), metadata["name"].to_string()), ());
            assert!(before.is_none(), "{}: {kind} {} is there twice", name(&values), metadata["name"]);
            // What a user adds is as the user says.
            if metadata["labels"].is_null() && name(&values) == "extras-values.yaml" {
                continue;
            }
            for label in ["name", "instance", "component", "version", "managed-by", "part-of"] {
                let label = format!("app.kubernetes.io/{label}");
                assert!(metadata["labels"][&label].is_string(), "{}: {kind} has no {label}", name(&values));
            }
        }
    }
}

#[test]
fn the_chart_is_packaged_and_the_package_renders() {
    for helm in Helm::both() {
        let directory = tempfile::tempdir().unwrap();
        let (chart, into) = (crate::support::chart(), directory.path().to_str().unwrap());
        let output = helm.run(&["package", chart.to_str().unwrap(), "--destination", into]);
        assert!(output.status.success(), "{output:?}");
        let package = directory.path().join(format!("tidegate-{}.tgz", env!("CARGO_PKG_VERSION")));
        let output = helm.run(&["template", "t", package.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn the_chart_is_of_this_version_of_tidegate() {
    let chart = yaml("helm/tidegate/Chart.yaml");
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let images = chart["annotations"]["artifacthub.io/images"].as_str().unwrap();
    let values = yaml("helm/tidegate/values.yaml");
    for (image, tag) in [
        (&values["image"], env!("CARGO_PKG_VERSION")),
        (&values["embeddedRedis"]["image"], values["embeddedRedis"]["image"]["tag"].as_str().unwrap()),
    ] {
        let whole = format!("{}/{}:{tag}", image["registry"].as_str().unwrap(), image["repository"].as_str().unwrap());
        assert!(images.contains(&format!("image: {whole}\n")), "{whole} is not in {images}");
    }
}

/// The chart cannot read outside of its directory.
#[test]
fn the_charts_dashboard_and_alerts_are_those_of_dashboards() {
    for file in ["alerts.yaml", "tidegate.json"] {
        let [ours, theirs] = ["helm/tidegate/files", "dashboards"].map(|directory| {
            let path = repository().join(directory).join(file);
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        });
        assert!(ours == theirs, "cp dashboards/{file} helm/tidegate/files/{file}");
    }
}

/// The oldest that the chart takes, and newer ones. What needs a newer one is left out for the oldest.
#[test]
fn kubernetes_takes_what_is_rendered_in_all_its_versions() {
    let check = program("KUBERNETES_VALIDATE", "venv/bin/kubernetes-validate", "kubernetes-validate");
    let old: &[&str] = &["--set", "preStopSleepSeconds=0,service.trafficDistribution="];
    for (version, more) in [("1.27.0", old), ("1.31.0", &[]), ("1.34.0", &[]), ("1.37.0", &[])] {
        // Each once, as most of them are in many files.
        let mut manifests = BTreeSet::new();
        for values in ci_values() {
            let first = ["--values", values.to_str().unwrap(), "--kube-version", version];
            let text = Helm::four().print("t", &[&first, more].concat()).unwrap();
            manifests.extend(documents(&text).iter().map(Value::to_string));
        }
        let file = written(&manifests.into_iter().collect::<Vec<_>>().join("\n---\n"));
        let mut command = Command::new(&check);
        let output = command.args(["-k", version, "--strict"]).arg(file.path()).output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        let faults: Vec<_> = said.lines().filter(|line| line.contains("ERROR")).collect();
        assert!(output.status.success() && faults.is_empty(), "Kubernetes {version}: {faults:#?}");
        assert!(said.contains("passed for resource deployment/t-tidegate"), "{said}");
    }
}

/// A CRD's schema, with what it does not declare forbidden. CEL rules are not evaluated.
fn strict(schema: &Value) -> Value {
    match schema {
        Value::Array(all) => all.iter().map(strict).collect(),
        Value::Object(fields) if fields.get("x-kubernetes-int-or-string").is_some() => {
            json!({"type": ["integer", "string"]})
        }
        Value::Object(fields) => {
            let keep = |key: &str| key == "default" || key == "enum";
            let mut out: Map<String, Value> = Map::new();
            for (key, value) in fields.iter().filter(|(key, _)| *key != "description") {
                out.insert(key.clone(), if keep(key) { value.clone() } else { strict(value) });
            }
            let open = fields.contains_key("x-kubernetes-preserve-unknown-fields");
            if out.contains_key("properties") && !out.contains_key("additionalProperties") && !open {
                out.insert("additionalProperties".to_owned(), json!(false));
            }
            Value::Object(out)
        }
        other => other.clone(),
    }
}

/// The schemas of all CRDs in a directory, by apiVersion and kind.
fn crds(directory: &str) -> BTreeMap<(String, String), Value> {
    let mut schemas = BTreeMap::new();
    for path in files(directory, ".yaml") {
        for crd in documents(&fs::read_to_string(path).unwrap()) {
            if crd["kind"] != "CustomResourceDefinition" {
                continue;
            }
            let (group, kind) =
                (crd["spec"]["group"].as_str().unwrap(), crd["spec"]["names"]["kind"].as_str().unwrap());
            for version in crd["spec"]["versions"].as_array().unwrap() {
                let mut schema = strict(&version["schema"]["openAPIV3Schema"]);
                for key in ["apiVersion", "kind", "metadata"] {
                    schema["properties"][key] = json!({});
                }
                let api = format!("{group}/{}", version["name"].as_str().unwrap());
                schemas.insert((api, kind.to_owned()), schema);
            }
        }
    }
    schemas
}

/// All that the chart renders and the plain files hold of resources that are not Kubernetes' own.
fn custom_resources() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for values in ci_values() {
        let text = Helm::four().print("t", &["--values", values.to_str().unwrap()]).unwrap();
        found.extend(documents(&text).into_iter().map(|document| (name(&values), document)));
    }
    for path in [files("envoy/istio", ".yaml"), files("envoy/gateway", ".yaml")].concat() {
        let text = fs::read_to_string(&path).unwrap();
        found.extend(documents(&text).into_iter().map(|document| (name(&path), document)));
    }
    let is_custom = |document: &Value| {
        let group = document["apiVersion"].as_str().unwrap_or_default().split('/').next().unwrap();
        group.contains('.') && !group.ends_with(".k8s.io") || group == "gateway.networking.k8s.io"
    };
    found.retain(|(_, document)| is_custom(document));
    found
}

#[test]
fn istio_envoy_gateway_and_the_prometheus_operator_take_what_is_for_them() {
    let Some(directory) = std::env::var_os("TIDEGATE_CRDS").filter(|directory| !directory.is_empty()) else {
        eprintln!("left out: the schemas of custom resources, as TIDEGATE_CRDS names no directory of CRDs");
        return;
    };
    let schemas = crds(directory.to_str().unwrap());
    let mut validators = BTreeMap::new();
    let (mut faults, mut kinds) = (Vec::new(), BTreeSet::new());
    for (from, document) in custom_resources() {
        let text = |key: &str| document[key].as_str().unwrap().to_owned();
        let kind = (text("apiVersion"), text("kind"));
        let schema = schemas.get(&kind).unwrap_or_else(|| panic!("{from}: no CRD for {kind:?}"));
        let validator = validators.entry(kind.clone()).or_insert_with(|| jsonschema::draft202012::new(schema).unwrap());
        faults.extend(
            validator.iter_errors(&document).map(|error| format!("{from}: {}: {error}", error.instance_path())),
        );
        kinds.insert(kind.1);
    }
    assert!(faults.is_empty(), "{faults:#?}");
    for kind in [
        "AuthorizationPolicy",
        "DestinationRule",
        "EnvoyFilter",
        "EnvoyProxy",
        "PodMonitor",
        "PrometheusRule",
        "ReferenceGrant",
        "SecurityPolicy",
        "ServiceMonitor",
    ] {
        assert!(kinds.contains(kind), "no {kind} was checked");
    }
}

#[test]
fn promtool_takes_the_alerts_as_they_are_rendered() {
    let promtool = std::env::var_os("PROMTOOL").unwrap_or_else(|| "promtool".into());
    let resources = rendered(&json!({"monitoring": {"prometheusRule": {"enabled": true}}}));
    let rule = &resource(&resources, "PrometheusRule", "t-tidegate")["spec"];
    assert_eq!(*rule, yaml("dashboards/alerts.yaml"));
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("alerts.yaml"), serde_yaml::to_string(rule).unwrap()).unwrap();
    fs::copy(repository().join("dashboards/alerts_test.yaml"), directory.path().join("alerts_test.yaml")).unwrap();
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]] {
        let output = Command::new(&promtool).args(arguments).current_dir(directory.path()).output();
        let output = output.unwrap_or_else(|error| panic!("{promtool:?}: {error}; `make test-chart` fetches it"));
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn alerts_can_be_left_out_and_added() {
    let extra = json!({"name": "mine", "rules": [{"alert": "Mine", "expr": "1"}]});
    let rule = json!({"enabled": true, "disabled": ["TidegateDenialSpike"], "extraGroups": [extra]});
    let resources = rendered(&json!({"monitoring": {"prometheusRule": rule}}));
    let groups = &resource(&resources, "PrometheusRule", "t-tidegate")["spec"]["groups"];
    assert_eq!(groups[1], extra);
    let ours = groups[0]["rules"].as_array().unwrap();
    let all = yaml("dashboards/alerts.yaml")["groups"][0]["rules"].as_array().unwrap().len();
    assert_eq!(ours.len(), all - 1);
    assert!(ours.iter().all(|rule| rule["alert"] != "TidegateDenialSpike"));
}

/// What Pod Security calls restricted.
#[test]
fn every_pod_is_restricted_and_has_no_token() {
    for values in ci_values() {
        if name(&values) == "nothing-extra-values.yaml" {
            continue;
        }
        let resources = documents(&Helm::four().print("t", &["--values", values.to_str().unwrap()]).unwrap());
        for found in &resources {
            let spec = match found["kind"].as_str().unwrap() {
                "Deployment" | "StatefulSet" => &found["spec"]["template"]["spec"],
                "Pod" => &found["spec"],
                _ => continue,
            };
            let whose = format!("{}: {}", name(&values), found["metadata"]["name"]);
            assert_eq!(spec["automountServiceAccountToken"], false, "{whose}");
            assert_eq!(spec["enableServiceLinks"], false, "{whose}");
            assert_eq!(spec["securityContext"]["runAsNonRoot"], true, "{whose}");
            assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{whose}");
            let ours = &spec["containers"][0]["securityContext"];
            assert_eq!(ours["allowPrivilegeEscalation"], false, "{whose}");
            assert_eq!(ours["readOnlyRootFilesystem"], true, "{whose}");
            assert_eq!(ours["capabilities"], json!({"drop": ["ALL"]}), "{whose}");
        }
    }
}
