//! The inputs that are kept: one archive a target in the repository, a folder beside it while working, where cargo-fuzz has it too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::workspace;

/// The most bytes of an archive: it is downloaded with the repository.
const MOST_BYTES: u64 = 400_000;

/// The corpus of one target.
pub(super) struct Corpus {
    archive: PathBuf,
    pub(super) folder: PathBuf,
}

impl Corpus {
    pub(super) fn of(target: &str) -> Self {
        let corpus = super::folder().join("corpus");
        Self { archive: corpus.join(format!("{target}.tar.gz")), folder: corpus.join(target) }
    }

    /// Adds what the archive has to the folder.
    pub(super) fn unpack(&self) -> Result<()> {
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("could not create {}", self.folder.display()))?;
        if !self.archive.is_file() {
            return Ok(());
        }
        let mut tar = Command::new("tar");
        workspace::check(tar.arg("-xzf").arg(&self.archive).arg("-C").arg(&self.folder))
    }

    /// Replaces archive and folder by the inputs in `kept`. The same inputs make the same archive.
    pub(super) fn pack(&self, kept: &Path) -> Result<()> {
        let plain = kept.with_extension("tar");
        let mut tar = Command::new("tar");
        tar.args([
            "--sort=name",
            "--mtime=@0",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--mode=644",
            "-cf",
        ]);
        // Names alone: the folder itself has an owner's mode and time.
        let mut names: Vec<_> = fs::read_dir(kept)
            .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<_>>())
            .with_context(|| format!("could not list {}", kept.display()))?;
        names.sort_unstable();
        workspace::check(tar.arg(&plain).arg("-C").arg(kept).args(names))?;
        workspace::check(Command::new("gzip").args(["-9nf"]).arg(&plain))?;
        let packed = kept.with_extension("tar.gz");
        let len = packed.metadata().map_or(0, |metadata| metadata.len());
        ensure!(len <= MOST_BYTES, "{} has {len} bytes, more than {MOST_BYTES}", packed.display());
        fs::copy(&packed, &self.archive)
            .with_context(|| format!("could not write {}", self.archive.display()))?;
        fs::remove_dir_all(&self.folder)
            .with_context(|| format!("could not remove {}", self.folder.display()))?;
        self.unpack()
    }
}
