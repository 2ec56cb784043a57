//! Trees of `/proc`, `/sys`, `/etc` and `/run` as one text file each, laid out below a temporary folder.
//!
//! ```text
//! # a comment
//! include OTHER.tree              what is laid out first; later lines replace its files
//! remove PATH                     a file or a folder
//! PATH/                           an empty folder
//! PATH -> TARGET                  a symbolic link, relative
//! PATH = TEXT                     a file of one line
//! PATH <<                         a file of the indented lines that follow
//! pci CHAIN KEY=VALUE ...         a PCI device below /sys/devices, its link on the bus, and a file for each key;
//!                                 bar1=SIZE_IN_MIB is written as the kernel writes regions
//! block PATH MAJOR:MINOR          a block device's folder below /sys/devices, and its link by number
//! ```
#![allow(dead_code, reason = "each test binary uses its part of this")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: a failure here is the test's failure")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Where the trees and the pages expected of them lie.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/check_trees")
}

/// A tree laid out; removed when dropped.
pub(crate) struct Tree(TempDir);

impl Tree {
    /// Lays out `NAME.tree`.
    pub(crate) fn lay_out(name: &str) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.apply(&format!("{name}.tree"));
        tree
    }

    /// Lays out a tree of this text.
    pub(crate) fn of(text: &str) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.apply_text("the text", text);
        tree
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file of the tree, in place of the one that is there.
    pub(crate) fn write(&self, path: &str, text: &str) {
        fs::write(self.place(path), text).unwrap();
    }

    /// Removes a file or a folder of the tree.
    pub(crate) fn remove(&self, path: &str) {
        let path = self.path().join(path);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    fn apply(&self, file: &str) {
        self.apply_text(file, &fs::read_to_string(folder().join(file)).unwrap());
    }

    fn apply_text(&self, file: &str, text: &str) {
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let Some(path) = line.strip_suffix(" <<") {
                let mut content = String::new();
                while let Some(line) = lines.next_if(|line| line.starts_with("    ")) {
                    content.push_str(&line[4..]);
                    content.push('\n');
                }
                self.write(path, &content);
                continue;
            }
            match words.as_slice() {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                ["include", other] => self.apply(other),
                ["remove", path] => self.remove(path),
                ["pci", chain, fields @ ..] => self.pci(chain, fields),
                ["block", path, number] => self.block(path, number),
                [path, "->", target] => self.link(path, target),
                [path, "=", ..] => {
                    let (_, text) = line.split_once(" = ").unwrap_or((line, ""));
                    self.write(path, &format!("{text}\n"));
                }
                [path] if path.ends_with('/') => fs::create_dir_all(self.path().join(path)).unwrap(),
                _ => panic!("{file}: {line:?}"),
            }
        }
    }

    /// The path of a file of the tree, whose folder exists.
    fn place(&self, path: &str) -> PathBuf {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    /// Makes a symbolic link.
    pub(crate) fn link(&self, path: &str, target: &str) {
        symlink(target, self.place(path)).unwrap();
    }

    fn pci(&self, chain: &str, fields: &[&str]) {
        let address = chain.rsplit('/').next().unwrap();
        let folder = format!("sys/devices/{chain}");
        fs::create_dir_all(self.path().join(&folder)).unwrap();
        self.link(&format!("sys/bus/pci/devices/{address}"), &format!("../../../devices/{chain}"));
        for field in fields {
            let (key, value) = field.split_once('=').unwrap();
            if key == "bar1" {
                // Registers, BAR1, a third region; 64 bits wide each, so that every second line is zero.
                let size: u64 = value.parse::<u64>().unwrap() << 20;
                let zero = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
                let line = |start: u64, size: u64| {
                    format!("{start:#018x} {:#018x} 0x000000000014220c\n", start + size - 1)
                };
                let regions = [
                    line(0x2000_0000_0000, 16 << 20),
                    line(0x2100_0000_0000, size),
                    line(0x2200_0000_0000, 32 << 20),
                ];
                self.write(&format!("{folder}/resource"), &regions.map(|region| region + zero).concat());
            } else {
                self.write(&format!("{folder}/{key}"), &format!("{value}\n"));
            }
        }
    }

    fn block(&self, path: &str, number: &str) {
        self.write(&format!("sys/devices/{path}/dev"), &format!("{number}\n"));
        self.link(&format!("sys/dev/block/{number}"), &format!("../../devices/{path}"));
    }
}
