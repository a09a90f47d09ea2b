//! Values that are refused. Each file of `bad/` says in its first line what helm is to say; `# helm 3:` stands before
//! that helm's own words where they differ, and `# flags:` before more arguments.

use crate::support::{Helm, files, name, refusal};
use serde_json::json;
use std::fs;

#[test]
fn bad_values_are_refused_with_the_reason() {
    let all = files("tests/chart/bad", ".yaml");
    assert!(all.len() >= 10);
    let mut faults = Vec::new();
    for path in all {
        let text = fs::read_to_string(&path).unwrap();
        let said = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
        let expected = said("# ").unwrap();
        let flags: Vec<_> = said("# flags: ").unwrap_or_default().split_whitespace().collect();
        for helm in Helm::both() {
            let of_three = said("# helm 3: ").filter(|_| helm.generation == 3);
            let expected = of_three.unwrap_or(expected);
            let arguments = [&["--values", path.to_str().unwrap()], flags.as_slice()].concat();
            match helm.print("t", &arguments) {
                Ok(_) => faults.push(format!("{}: helm {} takes it", name(&path), helm.generation)),
                Err(told) if !told.contains(expected) => {
                    faults.push(format!("{}: helm {} says {told}", name(&path), helm.generation));
                }
                Err(_) => {}
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn all_faults_are_told_at_once() {
    let told = refusal(&json!({
        "replicaCount": 3,
        "terminationGracePeriodSeconds": 1,
        "istio": {"authorizationPolicy": {"enabled": true}},
    }));
    for fault in ["replicaCount: 3 replicas", "terminationGracePeriodSeconds: 1 is", "istio.authorizationPolicy: "] {
        assert!(told.contains(&format!("\n- {fault}")), "{fault}: {told}");
    }
}
