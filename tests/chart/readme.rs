//! The chart's README: its table of values is made of the comments in values.yaml.

use crate::support::{chart, documents, yaml};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;

const BEGIN: &str = "<!-- The table is made of the comments in values.yaml: see tests/chart/readme.rs. -->\n";
const END: &str = "<!-- The end of the table. -->\n";

/// A heading, or a value with its description.
enum Entry {
    Heading(String),
    Row { path: Vec<String>, description: String },
}

/// A key with a comment is a value. One without has keys below it that all have comments.
fn entries(text: &str) -> Vec<Entry> {
    let (mut entries, mut comment, mut path) = (Vec::new(), Vec::new(), Vec::<String>::new());
    let mut below = usize::MAX;
    for line in text.lines() {
        let depth = line.len() - line.trim_start().len();
        let line = line.trim_start();
        if let Some(heading) = line.strip_prefix("## ") {
            entries.push(Entry::Heading(heading.to_owned()));
        } else if let Some(said) = line.strip_prefix("# ") {
            comment.push(said.to_owned());
        } else if line.is_empty() || line == "#" {
            comment.clear();
        } else if depth > below || line.starts_with('-') {
            continue;
        } else {
            below = usize::MAX;
            path.truncate(depth / 2);
            let (key, value) = line.split_once(':').unwrap();
            path.push(key.to_owned());
            if comment.is_empty() {
                assert!(value.is_empty(), "{path:?} has no comment");
            } else {
                entries.push(Entry::Row { path: path.clone(), description: comment.join(" ") });
                comment.clear();
                below = depth;
            }
        }
    }
    entries
}

fn table() -> String {
    let values = yaml("helm/tidegate/values.yaml");
    let text = fs::read_to_string(chart().join("values.yaml")).unwrap();
    let mut out = String::new();
    for entry in entries(&text) {
        match entry {
            Entry::Heading(heading) => {
                write!(out, "\n### {heading}\n\n| key | default | |\n|---|---|---|\n").unwrap();
            }
            Entry::Row { path, description } => {
                let value = path.iter().fold(&values, |value, key| &value[key]);
                let cell = |text: &str| text.replace('|', "\\|");
                writeln!(out, "| `{}` | `{}` | {} |", path.join("."), cell(&value.to_string()), cell(&description))
                    .unwrap();
            }
        }
    }
    out
}

#[test]
fn the_readme_has_every_value_with_its_comment() {
    let path = chart().join("README.md");
    let text = fs::read_to_string(&path).unwrap();
    let (head, rest) = text.split_once(BEGIN).unwrap();
    let (_, tail) = rest.split_once(END).unwrap();
    let wanted = format!("{head}{BEGIN}{}\n{END}{tail}", table());
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(&path, &wanted).unwrap();
        return;
    }
    assert!(text == wanted, "WRITE_DOCS=1 cargo test --test chart the_readme writes it");
}

#[test]
fn every_value_is_in_the_table_once() {
    fn leaves(values: &Value, path: &str, rows: &[String], missing: &mut Vec<String>) {
        if rows.iter().any(|row| row == path) {
            return;
        }
        match values.as_object().filter(|fields| !fields.is_empty()) {
            Some(fields) => {
                for (key, value) in fields {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    leaves(value, &path, rows, missing);
                }
            }
            None => missing.push(path.to_owned()),
        }
    }
    let text = fs::read_to_string(chart().join("values.yaml")).unwrap();
    let rows: Vec<String> = entries(&text)
        .into_iter()
        .filter_map(|entry| match entry {
            Entry::Row { path, .. } => Some(path.join(".")),
            Entry::Heading(_) => None,
        })
        .collect();
    let mut missing = Vec::new();
    leaves(&yaml("helm/tidegate/values.yaml"), "", &rows, &mut missing);
    assert!(missing.is_empty(), "{missing:?}");
    let unique: std::collections::BTreeSet<_> = rows.iter().collect();
    assert_eq!(unique.len(), rows.len());
}

/// The YAML in the README is values that the chart takes.
#[test]
fn the_examples_of_the_readme_render() {
    let text = fs::read_to_string(chart().join("README.md")).unwrap();
    let blocks: Vec<_> = text.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 3);
    for block in blocks {
        crate::support::rendered(&documents(block)[0]);
    }
}
