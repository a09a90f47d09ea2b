//! What the documents show is true of the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate::config;
use tidegate::metrics::{Decision, catalogue};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn documents() -> Vec<PathBuf> {
    let in_folder = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let all = in_folder(root().to_owned()).chain(in_folder(root().join("docs")));
    all.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// The fenced blocks of a language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).map(|rest| rest.split_once("```").unwrap().0).collect()
}

#[test]
fn every_configuration_in_the_documents_loads() {
    let mut loaded = 0;
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for block in blocks(&text, "yaml").into_iter().filter(|block| block.contains("default_tier:")) {
            config::parse(block.as_bytes()).unwrap_or_else(|faults| panic!("{}: {faults}", path.display()));
            loaded += 1;
        }
    }
    assert!(loaded > 0, "the README shows a configuration");
}

#[test]
fn every_command_and_flag_in_the_documents_exists() {
    let mut tried = 0;
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for mention in text.split("tidegate ").skip(1) {
            let words: Vec<&str> =
                mention.split(['`', '\n', '<', '|', '(', ',', ';']).next().unwrap().split(' ').collect();
            let Some(command) = words.first().filter(|word| COMMANDS.contains(word)) else { continue };
            let mut help = vec![*command];
            help.extend(words.get(1).filter(|word| SUBCOMMANDS.contains(word)));
            let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(&help).arg("--help").output().unwrap();
            assert!(output.status.success(), "{}: tidegate {help:?}", path.display());
            let told = String::from_utf8(output.stdout).unwrap();
            for flag in words.iter().filter(|word| word.starts_with("--") && **word != "--help") {
                assert!(told.contains(flag), "{}: tidegate {help:?} knows no {flag}", path.display());
            }
            tried += 1;
        }
    }
    assert!(tried > 5, "the documents show commands");
}

const COMMANDS: [&str; 9] = ["explain", "serve", "validate", "config", "schema", "hash-key", "bucket", "key", "probe"];
const SUBCOMMANDS: [&str; 6] = ["default", "show", "reset", "list", "set", "delete"];

#[test]
fn the_page_of_metrics_is_made_of_the_catalogue() {
    let path = root().join("docs/metrics.md");
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(&path, catalogue::page()).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(there, catalogue::page(), "WRITE_DOCS=1 cargo test --test it the_page_of_metrics");
    for decision in Decision::ALL {
        assert!(there.contains(decision.word()), "{decision:?} is not told");
    }
}

#[test]
fn every_file_that_a_document_links_to_exists() {
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if !link.contains("://") && !link.starts_with('#') {
                let target = path.parent().unwrap().join(link.split('#').next().unwrap());
                assert!(target.exists(), "{} links to {link}", path.display());
            }
        }
    }
}

#[test]
fn the_changelog_begins_with_the_version_that_is_built() {
    let text = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let first = text.lines().find_map(|line| line.strip_prefix("## ")).unwrap();
    assert_eq!(first.split(' ').next().unwrap(), env!("CARGO_PKG_VERSION"));
}
