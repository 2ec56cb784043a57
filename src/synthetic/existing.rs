//! What already stands in the destination, and whether it may be replaced.

use std::fs::{self, DirEntry, FileType};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use gds_loader::source::Source;

use super::GENERATOR_KEY;
use crate::leftovers;

/// The files in `folder` that a new checkpoint replaces.
///
/// Without `force` every file there must be of an older synthetic checkpoint. With it, files and links named like a checkpoint's are
/// replaced whoever wrote them, and all else is left.
pub(super) fn replaceable(folder: &Path, force: bool) -> anyhow::Result<Vec<PathBuf>> {
    let listing = || format!("listing {}", folder.display());
    let refuse = |path: &Path| {
        anyhow!(
            "{} is not empty: {} is not of an earlier `gds synth`; name another folder, or use --force to replace the \
             model*.safetensors in it",
            folder.display(),
            path.file_name().unwrap_or_default().display(),
        )
    };
    let (mut old, mut index) = (Vec::new(), None);
    for entry in fs::read_dir(folder).with_context(listing)? {
        let entry = entry.with_context(listing)?;
        let path = entry.path();
        match kind(&entry).with_context(listing)? {
            Kind::Shard if force || is_synthetic(&path) => old.push(path),
            Kind::Index => index = Some(path),
            Kind::Other if force => {}
            Kind::Temporary => {}
            Kind::Shard | Kind::Other => return Err(refuse(&path)),
        }
    }
    if let Some(index) = index {
        // An index says nothing about who wrote it; it goes with the shards beside it.
        if old.is_empty() && !force {
            return Err(refuse(&index));
        }
        old.push(index);
    }
    Ok(old)
}

enum Kind {
    Shard,
    Index,
    /// Of this program's own, while it runs: what the dead left there is no concern of this one's either.
    Temporary,
    Other,
}

fn kind(entry: &DirEntry) -> io::Result<Kind> {
    let is_replaceable = can_be_replaced(entry.file_type()?);
    Ok(match entry.file_name().to_str() {
        Some(name) if name.starts_with(leftovers::PREFIX) => Kind::Temporary,
        Some("model.safetensors.index.json") if is_replaceable => Kind::Index,
        Some(name) if is_replaceable && name.starts_with("model") && name.ends_with(".safetensors") => {
            Kind::Shard
        }
        _ => Kind::Other,
    })
}

/// A folder, a pipe or a device is nobody's checkpoint.
fn can_be_replaced(kind: FileType) -> bool {
    kind.is_file() || kind.is_symlink()
}

/// Refuses what stands in the place of a new file of one of these names, and cannot be replaced.
pub(super) fn check_places(folder: &Path, names: &[&str]) -> anyhow::Result<()> {
    for path in names.iter().map(|name| folder.join(name)) {
        if fs::symlink_metadata(&path).is_ok_and(|metadata| !can_be_replaced(metadata.file_type())) {
            bail!(
                "{} is neither a file nor a link and is not replaced; move it, or name another folder",
                path.display()
            );
        }
    }
    Ok(())
}

fn is_synthetic(path: &Path) -> bool {
    // Of files alone: a folder of this name would be looked into.
    path.is_file() && Source::open(path).is_ok_and(|source| source.metadata.contains_key(GENERATOR_KEY))
}
