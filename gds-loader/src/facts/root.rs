//! Where the kernel's and the system's files are read: below a root that tests replace by a recorded tree.
//!
//! Nothing here fails: a file that is not there, cannot be read or is no regular file is `None`, and every caller says
//! what that means for it. Only regular files are opened (a FIFO would block), and no more than [`LIMIT`] bytes read.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Bytes read of any one file.
const LIMIT: u64 = 32 << 20;

/// The root of the tree that holds `proc`, `sys`, `etc`, `run`, `dev` and `boot`.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// This machine's.
    pub fn system() -> Self {
        Self(PathBuf::from("/"))
    }

    /// A recorded tree; its symbolic links must be relative.
    pub fn at(folder: &Path) -> Self {
        // Links are resolved below, and what they resolve to must begin with the root as it really is.
        Self(fs::canonicalize(folder).unwrap_or_else(|_| folder.to_path_buf()))
    }

    /// The root itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `inside` as a path of this process, whether or not it begins with a slash.
    pub(crate) fn join(&self, inside: &str) -> PathBuf {
        self.0.join(inside.trim_start_matches('/'))
    }

    pub(crate) fn exists(&self, inside: &str) -> bool {
        self.join(inside).exists()
    }

    /// The bytes of a regular file.
    pub(crate) fn bytes(&self, inside: &str) -> Option<Vec<u8>> {
        let path = self.join(inside);
        if !fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(LIMIT).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// The text of a regular file, without the white space around it.
    pub(crate) fn read(&self, inside: &str) -> Option<String> {
        self.bytes(inside).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A number, decimal or hexadecimal after `0x`.
    pub(crate) fn number(&self, inside: &str) -> Option<u64> {
        let text = self.read(inside)?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// The names in a folder, sorted; none where it cannot be read.
    pub(crate) fn list(&self, inside: &str) -> Vec<String> {
        let entries = fs::read_dir(self.join(inside)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// What `inside` is after following links, as a path inside the root that begins with a slash.
    pub(crate) fn resolve(&self, inside: &str) -> Option<String> {
        let real = fs::canonicalize(self.join(inside)).ok()?;
        let inside = real.strip_prefix(&self.0).ok()?;
        Some(format!("/{}", inside.to_str()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_links_and_what_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        fs::create_dir_all(root.join("/sys/devices/a")).unwrap();
        fs::write(root.join("sys/devices/a/class"), "0x010802\n").unwrap();
        fs::write(root.join("sys/devices/a/node"), "-1\n").unwrap();
        std::os::unix::fs::symlink("devices/a", root.join("sys/link")).unwrap();
        assert_eq!(root.number("/sys/link/class"), Some(0x010802));
        assert_eq!(root.number("sys/link/node"), None);
        assert_eq!(root.resolve("/sys/link").as_deref(), Some("/sys/devices/a"));
        assert_eq!(root.list("sys"), ["devices", "link"]);
        assert_eq!((root.read("sys"), root.read("nothing"), root.resolve("nothing")), (None, None, None));
        assert!(root.list("nothing").is_empty());
    }

    #[test]
    fn a_link_out_of_the_tree_is_not_followed_as_a_part_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        std::os::unix::fs::symlink("/", root.join("out")).unwrap();
        assert_eq!(root.resolve("out"), None);
    }
}
