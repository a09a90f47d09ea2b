//! The trail in a file, which others rotate: they move it away and send SIGHUP.

use super::lines::Lines;
use super::sink::{Outcome, Sink};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

/// What a new file may be read and written by: it names callers, so it is not everybody's.
const MODE: u32 = 0o640;

/// A file that is appended to, opened when something is to be written, and anew after a failure.
#[derive(Debug)]
pub(super) struct AppendedFile {
    path: PathBuf,
    open: Option<File>,
    lines: Lines,
}

impl AppendedFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, open: None, lines: Lines::default() }
    }

    fn open(&mut self) -> Result<&mut File, String> {
        let file = match self.open.take() {
            Some(file) => file,
            None => {
                let told = |error: io::Error| format!("{}: {error}", self.path.display());
                let mut file = append_to(&self.path).map_err(told)?;
                self.lines.torn = ends_within_a_line(&mut file).unwrap_or(self.lines.torn);
                file
            }
        };
        Ok(self.open.insert(file))
    }
}

/// Readable too, to see how it ends.
fn append_to(path: &std::path::Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(MODE).open(path)
}

/// Whether something stands at the end that is no whole line: of a disk that was full, or a process that was killed.
fn ends_within_a_line(file: &mut File) -> io::Result<bool> {
    let about = file.metadata()?;
    if !about.is_file() || about.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last[0] != b'\n')
}

impl Sink for AppendedFile {
    async fn write(&mut self, lines: &[String]) -> Outcome {
        if let Err(why) = self.open() {
            return Outcome { written: 0, failure: Some(why) };
        }
        let Some(file) = &mut self.open else { return Outcome { written: 0, failure: None } };
        let outcome = self.lines.write(file, lines);
        if outcome.failure.is_some() {
            self.open = None;
        }
        outcome
    }

    fn reopen(&mut self) -> Result<(), String> {
        self.open = None;
        self.open().map(drop)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[tokio::test]
    async fn a_file_that_ends_within_a_line_is_gone_on_with_on_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let mut sink = AppendedFile::new(path.clone());
        assert_eq!(sink.write(&["a\n".to_owned()]).await.written, 1);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o137, 0, "not everybody's to read");
        std::fs::write(&path, "half of a li").unwrap();
        sink.reopen().unwrap();
        assert_eq!(sink.write(&["b\n".to_owned()]).await.written, 1);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "half of a li\nb\n");
    }

    #[tokio::test]
    async fn what_cannot_be_opened_is_told_with_its_path_and_opened_when_it_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("later/audit.jsonl");
        let mut sink = AppendedFile::new(path.clone());
        let outcome = sink.write(&["a\n".to_owned()]).await;
        assert!(outcome.failure.unwrap().contains("later/audit.jsonl: No such file"));
        std::fs::create_dir(folder.path().join("later")).unwrap();
        assert_eq!(sink.write(&["a\n".to_owned()]).await.written, 1);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\n");
    }
}
