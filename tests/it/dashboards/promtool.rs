//! What Prometheus's own tool says of the rules, and of the expressions that only Grafana sends.

use super::files::{self, Expression};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// Runs promtool and tells what it said where it is not content.
fn promtool(arguments: &[&str], file: &Path) -> Result<(), String> {
    let name = std::env::var("PROMTOOL").unwrap_or_else(|_| "promtool".to_owned());
    let output = Command::new(&name).args(arguments).arg(file).output().unwrap_or_else(|error| {
        panic!("cannot run {name} ({error}); `make test` fetches it, or set PROMTOOL=/path/to/promtool")
    });
    let told = [output.stdout, output.stderr].map(|told| String::from_utf8_lossy(&told).into_owned()).concat();
    if output.status.success() { Ok(()) } else { Err(told) }
}

#[test]
fn the_rules_are_valid_and_fire_when_they_should() {
    let lint = ["check", "rules", "--lint=all", "--lint-fatal"];
    promtool(&lint, &files::path("dashboards/alerts.yaml")).unwrap_or_else(|told| panic!("{told}"));
    let tests = files::path("dashboards/alerts_test.yaml");
    promtool(&["test", "rules"], &tests).unwrap_or_else(|told| panic!("{told}"));
}

/// With what Grafana would put in the place of its variables.
fn filled_in(expression: &str) -> String {
    let variables =
        [("$__rate_interval", "5m"), ("$__range", "3h"), ("$job", ".*"), ("$instance", ".*"), ("$tier", ".*")];
    let filled = variables.iter().fold(expression.to_owned(), |text, (name, value)| text.replace(name, value));
    assert!(!filled.contains('$'), "a variable that is not known: {filled}");
    filled
}

/// As recording rules, which promtool reads.
fn parse(expressions: &[Expression]) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let rule = |(at, expression): (usize, &Expression)| json!({"record": format!("expression:{at}"), "expr": filled_in(&expression.text)});
    let rules: Vec<Value> = expressions.iter().enumerate().map(rule).collect();
    let file = folder.path().join("expressions.json");
    std::fs::write(&file, json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string()).unwrap();
    promtool(&["check", "rules"], &file)
}

#[test]
fn prometheus_can_read_every_expression_of_the_dashboard() {
    let expressions = files::dashboard_expressions();
    parse(&expressions).unwrap_or_else(|told| panic!("{told}\n{expressions:#?}"));
    let broken = Expression { place: String::new(), text: "sum(tidegate_x[5m])".to_owned(), labels: Vec::new() };
    assert!(parse(&[broken]).is_err(), "promtool takes what is none");
}
