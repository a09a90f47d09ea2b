//! The files that a config was read from, and whether they still hold what they held then.
//!
//! Contents count, and not times: neither does a `touch` make a file another, nor does a clock hide a change. Knows
//! nothing of what the files mean.

use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// What was read, file by file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesRead {
    files: BTreeMap<PathBuf, Found>,
}

/// What a file held, as far as its reader looks: up to `limit` bytes and one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    limit: usize,
    content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Its SHA-256.
    Of([u8; 32]),
    /// There is none, or it cannot be read.
    Unreadable,
    /// A pipe or a device: what came out of it comes once.
    Passing,
}

impl FilesRead {
    /// Reads a file and notes what it held: no more than one byte above `limit`, as a device never ends.
    pub(super) fn read(&mut self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        let bytes = read_at_most(path, limit);
        let content = match &bytes {
            Ok(_) if passes(path) => Content::Passing,
            Ok(bytes) => Content::Of(Sha256::digest(bytes).into()),
            Err(_) => Content::Unreadable,
        };
        self.files.insert(path.to_owned(), Found { limit, content });
        bytes
    }

    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(PathBuf::as_path)
    }

    /// Whether each file would be read as it was. Pipes and devices are left alone.
    pub fn are_unchanged(&self) -> bool {
        self.files.iter().all(|(path, found)| found.content == Content::Passing || now(path, found.limit) == *found)
    }
}

fn now(path: &Path, limit: usize) -> Found {
    let mut read = FilesRead::default();
    // Opening a pipe waits for its writer.
    if passes(path) {
        return Found { limit, content: Content::Passing };
    }
    // Whether it could be read is noted.
    let _ = read.read(path, limit);
    read.files.remove(path).unwrap_or(Found { limit, content: Content::Unreadable })
}

/// Whether there is something at `path` that is neither a file nor a directory.
fn passes(path: &Path) -> bool {
    path.metadata().is_ok_and(|about| !about.is_file() && !about.is_dir())
}

pub(super) fn read_at_most(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn only_another_content_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "one").unwrap();
        let mut read = FilesRead::default();
        assert_eq!(read.read(&path, 100).unwrap(), b"one");
        assert!(read.are_unchanged());
        std::fs::write(&path, "one").unwrap();
        assert!(read.are_unchanged(), "written, and the same");
        std::fs::write(&path, "two").unwrap();
        assert!(!read.are_unchanged());
        std::fs::remove_file(&path).unwrap();
        assert!(!read.are_unchanged());
        assert!(read.read(&path, 100).is_err());
        assert!(read.are_unchanged(), "it is known to be missing");
        std::fs::write(&path, "one").unwrap();
        assert!(!read.are_unchanged(), "it is back");
    }

    #[test]
    fn what_passes_once_is_never_read_again() {
        let mut read = FilesRead::default();
        assert_eq!(read.read(Path::new("/dev/null"), 100).unwrap(), b"");
        assert_eq!(read.read(Path::new("/dev/zero"), 100).unwrap().len(), 101);
        assert!(read.are_unchanged());
    }
}
