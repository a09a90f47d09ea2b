//! The architecture as a test: which module may use which. A new arrow is a change to this table, seen in review.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each module and those it may use; see ARCHITECTURE.md for the reasons.
const MAY_USE: [(&str, &[&str]); 17] = [
    ("bucket", &[]),
    ("policy", &["bucket"]),
    ("clock", &["bucket"]),
    ("complaint", &[]),
    ("metrics", &[]),
    ("recent", &[]),
    ("store", &["bucket", "clock", "complaint", "recent"]),
    ("audit", &["bucket", "clock", "complaint", "metrics", "policy", "store"]),
    ("jwt", &["bucket", "clock", "complaint", "metrics", "policy", "recent"]),
    ("limiter", &["bucket", "clock", "complaint", "jwt", "metrics", "policy", "recent", "store"]),
    ("trace", &["bucket", "complaint", "limiter", "metrics", "policy"]),
    ("ext_authz", &["audit", "bucket", "jwt", "policy", "limiter", "metrics", "trace"]),
    ("server", &["complaint", "ext_authz", "metrics"]),
    ("config", &["audit", "bucket", "jwt", "policy", "store", "server", "trace"]),
    (
        "app",
        &[
            "audit",
            "bucket",
            "clock",
            "policy",
            "metrics",
            "store",
            "limiter",
            "ext_authz",
            "server",
            "config",
            "jwt",
            "trace",
        ],
    ),
    ("cli", &["app", "audit", "config", "ext_authz", "policy", "store", "bucket"]),
    ("main", &["cli"]),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// `src/policy/tier.rs` belongs to `policy`.
fn module(path: &Path) -> String {
    let inside = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// The modules of this crate that a source names by `crate::x` or `tidegate::x`, one by one or in braces.
fn used(source: &str) -> BTreeSet<String> {
    let code: String =
        source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut names = BTreeSet::new();
    for start in ["crate::", "tidegate::"] {
        for (at, _) in code.match_indices(start) {
            let rest = &code[at + start.len()..];
            match rest.strip_prefix('{') {
                Some(list) => {
                    let list = list.split_once('}').map_or(list, |(list, _)| list);
                    names.extend(list.split(',').map(first_word));
                }
                None => {
                    names.insert(first_word(rest));
                }
            }
        }
    }
    names.retain(|name| name.chars().next().is_some_and(char::is_lowercase));
    names
}

fn first_word(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

#[test]
fn modules_use_only_those_that_the_table_allows() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.into_iter().collect();
    let mut faults = Vec::new();
    for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let module = module(&path);
        if module == "lib" {
            continue;
        }
        let Some(allowed) = allowed.get(module.as_str()) else {
            faults.push(format!("{module} is not in the table"));
            continue;
        };
        for other in used(&fs::read_to_string(&path).unwrap()) {
            if other != module && !allowed.contains(&other.as_str()) {
                faults.push(format!("{} uses {other}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn the_reader_of_use_lines_sees_all_their_forms() {
    let source =
        "use crate::bucket::Key;\n// crate::comment\nuse crate::{clock, store::Store};\nlet x = crate::policy::f();";
    let names: Vec<String> = used(source).into_iter().collect();
    assert_eq!(names, ["bucket", "clock", "policy", "store"]);
}
