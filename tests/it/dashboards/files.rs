//! The dashboard and the rules as they are committed, and their expressions.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// An expression and where it stands, for whoever has to mend it.
#[derive(Debug)]
pub struct Expression {
    pub place: String,
    pub text: String,
    /// Labels that are spoken of around it: in a legend, or as a variable's values.
    pub labels: Vec<String>,
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text.trim())
    }
}

pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

pub fn text(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap()
}

pub fn dashboard() -> serde_json::Value {
    serde_json::from_str(&text("dashboards/tidegate.json")).unwrap()
}

/// All panels, those within rows included.
pub fn panels(tree: &serde_json::Value) -> Vec<&serde_json::Value> {
    let panels = tree["panels"].as_array().into_iter().flatten();
    panels.flat_map(|panel| std::iter::once(panel).chain(self::panels(panel))).collect()
}

/// All rules, recording ones too.
pub fn rules() -> Vec<serde_yaml::Value> {
    let file: serde_yaml::Value = serde_yaml::from_str(&text("dashboards/alerts.yaml")).unwrap();
    let groups = file["groups"].as_sequence().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_sequence().unwrap().clone()).collect()
}

/// Those of panels, annotations and variables, as they are written.
pub fn dashboard_expressions() -> Vec<Expression> {
    let dashboard = dashboard();
    let mut found = Vec::new();
    for panel in panels(&dashboard) {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let place = format!("panel {} {}, {}", panel["id"], panel["title"], target["refId"]);
            let (text, legend) = (string(&target["expr"]), string(&target["legendFormat"]));
            found.push(Expression { place, text, labels: between(&legend, "{{", "}}") });
        }
    }
    for annotation in array(&dashboard["annotations"]["list"]) {
        let (text, labels) = (string(&annotation["expr"]), between(&string(&annotation["textFormat"]), "{{", "}}"));
        found.push(Expression { place: format!("annotation {}", annotation["name"]), text, labels });
    }
    for variable in array(&dashboard["templating"]["list"]).iter().filter(|variable| variable["type"] == "query") {
        let (query, place) = (string(&variable["query"]["query"]), format!("variable {}", variable["name"]));
        assert_eq!(variable["definition"], query.as_str(), "{place}");
        let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (text, label) = inside.and_then(|inside| inside.rsplit_once(", ")).unwrap();
        found.push(Expression { place, text: text.to_owned(), labels: vec![label.to_owned()] });
    }
    found
}

/// Those of the rules, with the labels that their annotations speak of.
pub fn rule_expressions() -> Vec<Expression> {
    let of_rule = |rule: &serde_yaml::Value| {
        let place = rule["alert"].as_str().or(rule["record"].as_str()).unwrap().to_owned();
        let spoken = rule["annotations"].as_mapping().into_iter().flatten().map(|(_, text)| text.as_str().unwrap());
        let labels = spoken.flat_map(|text| between(text, "$labels.", " ")).collect();
        Expression { place, text: rule["expr"].as_str().unwrap().to_owned(), labels }
    };
    rules().iter().map(of_rule).collect()
}

pub fn array(value: &serde_json::Value) -> &Vec<serde_json::Value> {
    value.as_array().unwrap_or_else(|| panic!("not a list: {value}"))
}

pub fn string(value: &serde_json::Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}")).to_owned()
}

/// What stands between two marks, each time.
fn between(text: &str, start: &str, end: &str) -> Vec<String> {
    text.split(start).skip(1).map(|rest| rest.split(end).next().unwrap().to_owned()).collect()
}
