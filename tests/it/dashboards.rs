//! The dashboard and the alerts name what there is.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate::metrics::catalogue::{CATALOGUE, Family, Kind};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards").join(name)
}

fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(path("tidegate.json")).unwrap()).unwrap()
}

/// Every series' name with its family.
fn series() -> BTreeMap<String, &'static Family> {
    let families = CATALOGUE.iter().flat_map(|(_, families)| *families);
    let named = families.flat_map(|family| {
        let endings: &[&str] = if family.kind == Kind::Histogram { &["_bucket", "_sum", "_count"] } else { &[""] };
        endings.iter().map(move |ending| (format!("{}{ending}", family.series()), family))
    });
    named.collect()
}

/// All panels, those of rows included.
fn panels(tree: &Value) -> Vec<&Value> {
    let panels = tree["panels"].as_array().into_iter().flatten();
    panels.flat_map(|panel| std::iter::once(panel).chain(panels_of(panel))).collect()
}

fn panels_of(panel: &Value) -> Vec<&Value> {
    panels(panel)
}

fn expressions(dashboard: &Value) -> Vec<String> {
    let targets = panels(dashboard).into_iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets.filter_map(|target| target["expr"].as_str()).map(str::to_owned).collect()
}

/// The rules' expressions, and the names that they record.
fn rules() -> (Vec<String>, BTreeSet<String>) {
    let tree: serde_yaml::Value = serde_yaml::from_str(&fs::read_to_string(path("alerts.yaml")).unwrap()).unwrap();
    let groups = tree["groups"].as_sequence().unwrap().iter();
    let rules: Vec<_> = groups.flat_map(|group| group["rules"].as_sequence().unwrap()).collect();
    let text = |rule: &&serde_yaml::Value, key: &str| rule[key].as_str().map(str::to_owned);
    let records = rules.iter().filter_map(|rule| text(rule, "record")).collect();
    (rules.iter().filter_map(|rule| text(rule, "expr")).collect(), records)
}

/// The names of metrics in an expression, each with what stands in braces behind it.
fn mentions(expression: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (at, _) in expression.match_indices("tidegate_") {
        let rest = &expression[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':').unwrap_or(rest.len());
        let matchers =
            rest[end..].strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inside, _)| inside);
        found.push((rest[..end].to_owned(), matchers.to_owned()));
    }
    found
}

#[test]
fn every_metric_label_and_value_that_is_named_exists() {
    let (series, (alerts, records)) = (series(), rules());
    let ours = ["job", "instance", "namespace", "le"];
    let mut faults = Vec::new();
    let all: Vec<String> = expressions(&dashboard()).into_iter().chain(alerts).collect();
    assert!(all.len() > 30, "{all:?}");
    for (name, matchers) in all.iter().flat_map(|expression| mentions(expression)) {
        if records.iter().any(|record| record.ends_with(&name)) {
            continue;
        }
        let Some(family) = series.get(&name) else {
            faults.push(format!("there is no {name}"));
            continue;
        };
        for matcher in matchers.split(',').filter(|matcher| !matcher.trim().is_empty()) {
            let end = matcher.find(['=', '!']).unwrap_or(matcher.len());
            let (label, value) = (matcher[..end].trim(), matcher[end..].trim_matches(['=', '!', '~', '"', ' ']));
            if ours.contains(&label) {
                continue;
            }
            match family.labels.iter().find(|(known, _)| *known == label) {
                None => faults.push(format!("{name} has no label {label}")),
                Some((_, values)) if !value.contains('$') && values.contains(", ") => {
                    let known: Vec<&str> = values.split(", ").collect();
                    let unknown = value.split('|').filter(|word| !word.is_empty() && !known.contains(word));
                    faults.extend(unknown.map(|word| format!("{label} of {name} is never {word}")));
                }
                Some(_) => {}
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn every_metric_is_shown_or_alerted_on() {
    // What is there for the seldom look, or says the same as another.
    let not_shown = ["tidegate_abandoned_checks_total"];
    let text = fs::read_to_string(path("tidegate.json")).unwrap() + &fs::read_to_string(path("alerts.yaml")).unwrap();
    let families = CATALOGUE.iter().flat_map(|(_, families)| *families).map(Family::series);
    let missing: Vec<String> =
        families.filter(|name| !text.contains(name.as_str()) && !not_shown.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn panels_have_ids_of_their_own_and_do_not_lie_upon_each_other() {
    let dashboard = dashboard();
    let panels = panels(&dashboard);
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in &panels {
        let at = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(x < 24 && taken.insert((x, y)), "{} lies upon another", panel["title"]);
            }
        }
        if panel["type"] != "row" {
            assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{panel:#}");
            assert!(panel["datasource"]["uid"].as_str().is_some_and(|uid| uid.starts_with("${")), "{}", panel["title"]);
        }
    }
}

#[test]
fn every_alert_has_its_section_in_the_runbook() {
    let alerts = fs::read_to_string(path("alerts.yaml")).unwrap();
    let runbook = fs::read_to_string(path("../docs/operations.md")).unwrap();
    let names: BTreeSet<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() > 6, "{names:?}");
    for name in names {
        assert!(runbook.contains(&format!("## {name}\n")), "{name}");
        assert!(alerts.contains(&format!("runbook: docs/operations.md#{}", name.to_lowercase())), "{name}");
    }
}

#[test]
fn promtool_takes_the_rules_and_their_tests_pass() {
    let promtool = std::env::var_os("PROMTOOL").unwrap_or_else(|| "promtool".into());
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]] {
        let mut command = Command::new(&promtool);
        let output = command.args(arguments).current_dir(path("")).output().unwrap_or_else(|error| {
            panic!("{promtool:?}: {error}; `make test` fetches it, or set PROMTOOL=/path/to/promtool")
        });
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
