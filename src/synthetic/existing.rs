//! What already stands in the destination, and whether it may be replaced.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use gds_loader::source::Source;

use super::GENERATOR_KEY;

/// The files in `folder` that a new checkpoint replaces.
///
/// Without `force` every file there must be of an older synthetic checkpoint. With it, files named like a checkpoint's are replaced
/// whoever wrote them, and all others are left.
pub(crate) fn replaceable(folder: &Path, force: bool) -> anyhow::Result<Vec<PathBuf>> {
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
        let path = entry.with_context(listing)?.path();
        match kind(&path) {
            Kind::Shard if force || is_synthetic(&path) => old.push(path),
            Kind::Index => index = Some(path),
            Kind::Other if force => {}
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
    Other,
}

fn kind(path: &Path) -> Kind {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("model.safetensors.index.json") => Kind::Index,
        Some(name) if name.starts_with("model") && name.ends_with(".safetensors") => Kind::Shard,
        _ => Kind::Other,
    }
}

fn is_synthetic(path: &Path) -> bool {
    // Of files alone: a folder of this name would be looked into.
    path.is_file() && Source::open(path).is_ok_and(|source| source.metadata.contains_key(GENERATOR_KEY))
}
