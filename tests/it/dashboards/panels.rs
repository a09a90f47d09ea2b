//! What Grafana is given: each panel says what it shows, in which unit, whom it asks, and has a place of its own.

use super::files::{self, array, string};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Units that a dashboard can do with, by Grafana's ids: a misspelt one is shown as a plain number.
const UNITS: [&str; 5] = ["reqps", "percentunit", "s", "short", "none"];

#[test]
fn every_panel_says_what_it_shows_in_which_unit_and_has_a_place_of_its_own() {
    let dashboard = files::dashboard();
    assert_eq!(dashboard["schemaVersion"], 39);
    assert_eq!(dashboard["id"], Value::Null, "an id is of one Grafana");
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeMap::new());
    for panel in files::panels(&dashboard) {
        let title = string(&panel["title"]);
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title} has another's id");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(w > 0 && h > 0 && x + w <= 24, "{title} is outside");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            if let Some(other) = taken.insert(cell, title.clone()) {
                panic!("{title} lies on {other}");
            }
        }
        assert!(!title.is_empty(), "a panel without a title: {panel}");
        if panel["type"] != "row" {
            says_what_it_shows(panel, &title);
        }
    }
}

fn says_what_it_shows(panel: &Value, title: &str) {
    assert!(string(&panel["description"]).len() > 20, "{title} is not described");
    let unit = string(&panel["fieldConfig"]["defaults"]["unit"]);
    assert!(UNITS.contains(&unit.as_str()), "{title}: {unit:?} is no unit");
    let targets = array(&panel["targets"]);
    let references: BTreeSet<String> = targets.iter().map(|target| string(&target["refId"])).collect();
    assert!(!targets.is_empty() && references.len() == targets.len(), "{title}: {references:?}");
    for part in targets.iter().chain([panel]) {
        assert!(part["datasource"].is_object(), "{title} does not say whom it asks");
    }
}

/// What an expression measures must be what the panel's axis says.
#[test]
fn the_unit_of_a_panel_is_that_of_its_expressions() {
    let dashboard = files::dashboard();
    for panel in files::panels(&dashboard).into_iter().filter(|panel| panel["type"] != "row") {
        let unit = string(&panel["fieldConfig"]["defaults"]["unit"]);
        for target in array(&panel["targets"]) {
            let expression = string(&target["expr"]);
            if let Some(right) = unit_of(&expression) {
                assert_eq!(unit, right, "{}: {expression}", panel["title"]);
            }
        }
    }
}

/// Where it can be told from the expression. A table has units of its own for each column.
fn unit_of(expression: &str) -> Option<&'static str> {
    if expression.contains("histogram_quantile") {
        Some("s")
    } else if expression.contains(") / ") || expression.contains("} / ") {
        Some("percentunit")
    } else if expression.contains("rate(tidegate_checks_total") {
        Some("reqps")
    } else {
        None
    }
}

#[test]
fn whom_the_dashboard_asks_is_chosen_in_it() {
    fn sources<'v>(value: &'v Value, found: &mut Vec<&'v Value>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("datasource"));
                fields.values().for_each(|value| sources(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| sources(value, found)),
            _ => {}
        }
    }
    let (dashboard, mut found) = (files::dashboard(), Vec::new());
    sources(&dashboard, &mut found);
    assert!(found.len() > 80, "{}", found.len());
    for source in found {
        assert_eq!(*source, json!({"type": "prometheus", "uid": "${datasource}"}));
    }
    let variables = array(&dashboard["templating"]["list"]).iter();
    let names: Vec<String> = variables.map(|variable| string(&variable["name"])).collect();
    assert_eq!(names, ["datasource", "job", "instance", "tier"]);
}
