//! Filling the page cache, for what is to be warm.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use anyhow::Context;
use gds_loader::facts;

/// Reads the files that are not wholly in the page cache, so that a warm load finds them there whatever came before.
pub(crate) fn fill<'a>(files: impl IntoIterator<Item = &'a Path>) -> anyhow::Result<()> {
    let fill = |path: &Path| -> io::Result<()> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        if facts::residency(&file, len).share().is_none_or(|share| share < 1.0) {
            io::copy(&mut BufReader::with_capacity(1 << 20, file), &mut io::sink())?;
        }
        Ok(())
    };
    files.into_iter().try_for_each(|path| fill(path).with_context(|| format!("reading {}", path.display())))
}
