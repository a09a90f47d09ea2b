//! Which directories a change of some files shows in, and whether each still is the one that it was.

use crate::config::FilesRead;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Directories by their path.
pub(super) type Directories = BTreeMap<PathBuf, Option<Identity>>;

/// What tells a directory from another that took its place. A number alone is soon given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    born: Option<SystemTime>,
}

/// Those in which the files are named, and those in which they lie if the names are symlinks.
pub(super) fn directories_of(files: &FilesRead) -> Directories {
    let named = files.paths().map(parent);
    let real = files.paths().filter_map(|path| Some(parent(&path.canonicalize().ok()?)));
    named.chain(real).map(|directory| (directory.clone(), identity(&directory))).collect()
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => path.to_owned(),
    }
}

fn identity(directory: &Path) -> Option<Identity> {
    let about = directory.metadata().ok()?;
    Some(Identity { device: about.dev(), inode: about.ino(), born: about.created().ok() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::config::{Environment, Flags, Source};

    #[test]
    fn a_symlink_is_looked_for_where_it_is_and_where_it_leads() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (mount, data) = (root.join("mount"), root.join("mount/..2024"));
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join("config.yaml"), "{}").unwrap();
        std::os::unix::fs::symlink("..2024", mount.join("..data")).unwrap();
        std::os::unix::fs::symlink("..data/config.yaml", mount.join("config.yaml")).unwrap();
        let flags = Flags { config: Some(mount.join("config.yaml")), ..Flags::default() };
        let (config, files) = Source { flags, environment: Environment::default() }.read();
        assert!(config.is_ok());
        let directories = directories_of(&files);
        let paths: Vec<&PathBuf> = directories.keys().collect();
        assert_eq!(paths, [&mount, &data]);
        assert!(directories.values().all(Option::is_some));

        std::fs::remove_dir_all(&mount).unwrap();
        assert_eq!(directories_of(&files), Directories::from([(mount, None)]));
    }

    #[test]
    fn a_bare_name_lies_in_the_present_directory() {
        assert_eq!(parent(Path::new("tidegate.yaml")), Path::new("."));
        assert_eq!(parent(Path::new("/tidegate.yaml")), Path::new("/"));
    }
}
