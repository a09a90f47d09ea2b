//! `tidegate validate`: a file -> ok, or every fault.

use super::{Failure, note, print};
use crate::config::{self, Faults};
use std::path::Path;

pub(super) fn run(file: &Path) -> Result<(), Failure> {
    let config = config::parse_file(file)?;
    for warning in &config.warnings {
        note(&format!("warning: {warning}"));
    }
    print(&format!("{}: ok\n", file.display()))
}

/// How many faults, in words.
pub(super) fn counted(faults: &Faults) -> String {
    match faults.len() {
        many if faults.is_cut() => format!("more than {many} faults in the configuration"),
        1 => "1 fault in the configuration".into(),
        many => format!("{many} faults in the configuration"),
    }
}
