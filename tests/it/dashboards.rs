//! The dashboard and the alert rules: they name nothing that the service does not expose, leave out nothing that it
//! does, and Prometheus and Grafana can read them.

mod files;
mod live;
mod panels;
mod promql;
mod promtool;

use files::Expression;
use live::{Labels, exposed};
use std::collections::{BTreeMap, BTreeSet};
use tidegate::metrics::catalogue::{CATALOGUE, Family, Kind};

/// Labels that Prometheus gives to what it scrapes.
const SCRAPED: [&str; 3] = ["job", "instance", "namespace"];

fn families() -> impl Iterator<Item = &'static Family> {
    CATALOGUE.iter().flat_map(|(_, families)| *families)
}

/// The family to which a series of this name belongs.
fn family(name: &str) -> &str {
    let histograms = families().filter(|family| family.kind == Kind::Histogram).map(Family::series);
    let ending = |of: &String| name.strip_prefix(of.as_str()).filter(|end| ["_bucket", "_sum", "_count"].contains(end));
    let ending = histograms.filter_map(|of| ending(&of).map(str::len)).next();
    &name[..name.len() - ending.unwrap_or(0)]
}

fn all_expressions() -> Vec<Expression> {
    files::dashboard_expressions().into_iter().chain(files::rule_expressions()).collect()
}

/// What an expression names and `exposed` does not have.
fn unknown(expression: &Expression, exposed: &BTreeMap<String, Labels>) -> Vec<String> {
    let named = promql::read(&expression.text);
    let (mut faults, mut known) = (Vec::new(), BTreeSet::from(SCRAPED));
    for selector in &named.selectors {
        let Some(labels) = exposed.get(&selector.metric) else {
            faults.push(format!("no {}", selector.metric));
            continue;
        };
        known.extend(labels.keys().map(String::as_str));
        for (label, value) in selector.labels.iter().filter(|(label, _)| !SCRAPED.contains(&label.as_str())) {
            let values = labels.get(label);
            let literal = value.split('|').filter(|value| !value.contains('$'));
            if values.is_none() {
                faults.push(format!("{} has no label {label}", selector.metric));
            }
            for value in literal.filter(|value| values.is_some_and(|values| !values.contains(*value))) {
                faults.push(format!("{} has no {label}=\"{value}\"", selector.metric));
            }
        }
    }
    // What a rule records may have any labels that are grouped by there, which that rule's own expression is held to.
    if named.recorded.is_empty() {
        let spoken = named.grouped.iter().chain(&expression.labels).filter(|label| !known.contains(label.as_str()));
        faults.extend(spoken.map(|label| format!("nothing here has a label {label}")));
    }
    faults
}

#[test]
fn all_of_the_catalogue_is_exposed_when_all_is_switched_on_with_its_labels() {
    let there: BTreeMap<&str, &Labels> = exposed().iter().map(|(name, labels)| (family(name), labels)).collect();
    for told in families() {
        let series = told.series();
        let labels = there.get(series.as_str()).unwrap_or_else(|| panic!("{series} is not exposed"));
        let names: BTreeSet<&str> = told.labels.iter().map(|(name, _)| *name).collect();
        let exposed: BTreeSet<&str> = labels.keys().map(String::as_str).filter(|name| *name != "le").collect();
        assert_eq!(exposed, names, "{series}");
        for (name, words) in told.labels.iter().filter(|(_, words)| words.contains(", ") && !words.contains("SHA")) {
            let words: BTreeSet<String> = words.split(", ").map(str::to_owned).collect();
            assert!(labels[*name].is_subset(&words), "{series}: {name} is {:?}, told are {words:?}", labels[*name]);
        }
    }
    assert_eq!(there.len(), families().count(), "{:?}", there.keys());
}

#[test]
fn every_metric_label_and_value_that_is_named_is_exposed() {
    let (mut faults, expressions) = (Vec::new(), all_expressions());
    for expression in &expressions {
        faults.extend(unknown(expression, exposed()).iter().map(|fault| format!("{fault}, in {expression}")));
    }
    assert!(expressions.len() > 60, "there are {} expressions", expressions.len());
    assert!(faults.is_empty(), "{faults:#?}\nof {:#?}", exposed());
}

#[test]
fn names_that_are_not_exposed_are_found() {
    let faults = |text: &str, label: &str| {
        let labels = vec![label.to_owned()];
        unknown(&Expression { place: String::new(), text: text.to_owned(), labels }, exposed())
    };
    let right = r#"sum by (tier) (tidegate_checks_total{job="x",tier=~"$tier",decision=~"denied|allowed"})"#;
    assert_eq!(faults(right, "tier"), [""; 0]);
    for (text, label, fault) in [
        ("tidegate_cheques_total", "job", "no tidegate_cheques_total"),
        (r#"tidegate_checks_total{user="x"}"#, "job", "tidegate_checks_total has no label user"),
        (r#"tidegate_checks_total{decision=~"denied|no"}"#, "job", r#"tidegate_checks_total has no decision="no""#),
        ("sum by (user) (tidegate_checks_total)", "job", "nothing here has a label user"),
        ("tidegate_breaker_state", "tier", "nothing here has a label tier"),
    ] {
        assert_eq!(faults(text, label), [fault], "{text}");
    }
}

#[test]
fn every_rule_that_an_expression_names_is_recorded_and_each_that_is_recorded_is_used() {
    let recorded: BTreeSet<String> =
        files::rules().iter().filter_map(|rule| rule["record"].as_str().map(str::to_owned)).collect();
    let named: BTreeSet<String> =
        all_expressions().iter().flat_map(|expression| promql::read(&expression.text).recorded).collect();
    assert_eq!(named, recorded);
}

#[test]
fn every_metric_is_shown_or_alerted_on() {
    let named: BTreeSet<String> = all_expressions()
        .iter()
        .flat_map(|expression| promql::read(&expression.text).selectors)
        .map(|selector| family(&selector.metric).to_owned())
        .collect();
    let missing: Vec<String> = families().map(Family::series).filter(|name| !named.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_alert_says_what_to_do_and_is_tested() {
    let (operations, readme, cases) = (
        files::text("docs/operations.md"),
        files::text("dashboards/README.md"),
        files::text("dashboards/alerts_test.yaml"),
    );
    let titles = operations.lines().filter_map(|line| line.strip_prefix("## "));
    let sections: BTreeSet<&str> = titles.filter(|title| title.starts_with("Tidegate")).collect();
    let (rules, mut alerts) = (files::rules(), BTreeSet::new());
    for rule in &rules {
        let Some(alert) = rule["alert"].as_str() else { continue };
        alerts.insert(alert);
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning"].contains(&severity), "{alert}: {severity}");
        assert!(rule["for"].as_str().is_some(), "{alert} does not say how long it waits");
        let annotation =
            |name: &str| rule["annotations"][name].as_str().unwrap_or_else(|| panic!("{alert}: no {name}"));
        assert!(annotation("summary").len() < 80, "{alert}: the summary is long");
        assert!(annotation("description").contains("First: "), "{alert} does not say what to look at first");
        assert_eq!(annotation("runbook"), format!("docs/operations.md#{}", alert.to_lowercase()));
        let fires = format!("alertname=\"{alert}\",alertstate=\"firing\",severity=\"{severity}\"");
        assert!(cases.contains(&fires), "no case in which {alert} ({severity}) fires");
        assert!(readme.contains(&format!("| {alert} |")), "{alert} is not in dashboards/README.md");
    }
    assert!(alerts.len() > 6, "{alerts:?}");
    assert_eq!(alerts, sections, "alerts and sections of docs/operations.md");
}
