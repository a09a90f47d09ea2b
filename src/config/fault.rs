//! Faults: what is wrong in a config, where, and what would be right. All of them at once, one line each.
//!
//! Knows how paths and values are written, and that neither may show a secret or break a line.

use super::files::FilesRead;
use std::fmt::{self, Write as _};
use thiserror::Error;

/// How many faults are told; of the rest, only that there are some.
pub const MAX_FAULTS: usize = 100;

/// One fault, or one warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// A place such as `tiers.free.per_user.max_tokens`, `TIDEGATE_LISTEN`, `--listen` or `line 3, column 1`.
    pub path: String,
    /// What is wrong with which value, then what would be right.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.text)
    }
}

/// Everything that is wrong with a config.
#[derive(Clone, Debug, Default, PartialEq, Eq, Error)]
pub struct Faults {
    told: Vec<Fault>,
    more: bool,
}

impl Faults {
    /// Adds a fault, unless one was told of the same path: the second would be the consequence of the first.
    pub fn add(&mut self, path: impl Into<String>, text: impl Into<String>) {
        let path = path.into();
        if self.has(&path) {
            return;
        }
        if self.told.len() >= MAX_FAULTS {
            self.more = true;
            return;
        }
        self.told.push(Fault { path, text: text.into() });
    }

    pub fn has(&self, path: &str) -> bool {
        self.told.iter().any(|fault| fault.path == path)
    }

    /// Whether something at `path` or below it is wrong.
    pub fn has_under(&self, path: &str) -> bool {
        let below = |fault: &Fault| {
            let rest = fault.path.strip_prefix(path)?;
            Some(rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.more || self.told.iter().any(|fault| below(fault) == Some(true))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.told.iter()
    }

    /// How many are told.
    pub fn len(&self) -> usize {
        self.told.len()
    }

    /// Whether there are more than are told.
    pub fn is_cut(&self) -> bool {
        self.more
    }

    /// Puts the faults of one section of the file side by side.
    pub(super) fn by_section(mut self) -> Self {
        self.told.sort_by(|a, b| section(&a.path).cmp(section(&b.path)));
        self
    }

    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.told.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))?;
        if self.more { f.write_str("\nand more") } else { Ok(()) }
    }
}

fn section(path: &str) -> &str {
    path.split(['.', '[']).next().unwrap_or(path)
}

/// What checking a config brings to light.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) faults: Faults,
    pub(super) warnings: Vec<Fault>,
    /// Every file that was read, or could not be.
    pub(super) files: FilesRead,
}

impl Report {
    pub(super) fn fault(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.faults.add(path, text);
    }

    pub(super) fn warn(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.warnings.push(Fault { path: path.into(), text: text.into() });
    }
}

/// The path of a key inside `base`.
pub(super) fn field(base: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.len() <= 64 && key.bytes().all(|b| b.is_ascii_graphic() && b != b'.');
    match (base, plain) {
        ("", true) => key.to_owned(),
        (_, true) => format!("{base}.{key}"),
        (_, false) => format!("{base}[{}]", quoted(key)),
    }
}

/// The path of a list's entry.
pub(super) fn item(base: &str, index: usize) -> String {
    format!("{base}[{index}]")
}

/// A text as it may be shown: quoted, on one line, cut short, without the user and password of a URL.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN: usize = 64;
    let text = without_userinfo(text);
    let short: String = text.chars().take(SHOWN).collect();
    let dots = if short.len() < text.len() { "…" } else { "" };
    format!("{short:?}{dots}")
}

fn without_userinfo(text: &str) -> String {
    match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => format!("{}://…{}", &text[..scheme], &text[at..]),
        _ => text.to_owned(),
    }
}

/// Words as a list: `a, b, c`.
pub(super) fn listed<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for (place, word) in words.into_iter().enumerate() {
        let comma = if place == 0 { "" } else { ", " };
        let _ = write!(text, "{comma}{word}");
    }
    text
}

/// Words as a list, of which only the first few are named.
pub(super) fn first_few(words: &[String]) -> String {
    const FEW: usize = 6;
    let named = listed(words.iter().take(FEW).map(String::as_str));
    match words.len().saturating_sub(FEW) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// The word that was probably meant.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const CLOSE: f64 = 0.6;
    let word: String = word.to_lowercase().chars().take(64).collect();
    let closeness = |known: &'a str| (strsim::normalized_damerau_levenshtein(&word, known), known);
    let best = known.into_iter().map(closeness).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= CLOSE).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_value_has_one_line_an_end_and_no_password() {
        assert_eq!(quoted("redis://u:p@ss@h:6379/0"), r#""redis://…@h:6379/0""#);
        assert_eq!(quoted("a\nb"), r#""a\nb""#);
        assert!(quoted(&"x".repeat(10_000)).len() < 80);
    }

    #[test]
    fn the_second_fault_of_one_path_is_a_consequence_and_is_not_told() {
        let mut faults = Faults::default();
        faults.add("a.b", "first");
        faults.add("a.b", "second");
        assert_eq!(faults.to_string(), "a.b: first");
        assert!(faults.has_under("a") && !faults.has_under("a.c") && !faults.has_under("a.bc"));
    }

    #[test]
    fn a_flood_of_faults_is_cut() {
        let mut faults = Faults::default();
        for place in 0..150 {
            faults.add(format!("a[{place}]"), "bad");
        }
        assert_eq!((faults.len(), faults.is_cut()), (MAX_FAULTS, true));
        assert!(faults.to_string().ends_with("and more"));
    }

    #[test]
    fn misspelt_words_find_what_was_meant() {
        let known = ["max_tokens", "refill_rate"];
        assert_eq!(nearest("max_token", known), Some("max_tokens"));
        assert_eq!(nearest("refil_rate", known), Some("refill_rate"));
        assert_eq!(nearest("burst", known), None);
    }
}
