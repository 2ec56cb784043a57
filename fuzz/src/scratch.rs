//! Where inputs that must be files are written.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A folder of this process in memory: below `GDS_FUZZ_MEMORY` where set, else in `/dev/shm`, else with temporary files.
///
/// A program that libFuzzer ends cannot clean up: `cargo xtask fuzz` names the folders above, and removes them.
pub(crate) fn in_memory() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let shm = PathBuf::from("/dev/shm");
        made("GDS_FUZZ_MEMORY", if shm.is_dir() { shm } else { std::env::temp_dir() })
    });
    &FOLDER
}

/// The same on a disk: below `GDS_FUZZ_DISK` where set, else with temporary files.
pub(crate) fn on_disk() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| made("GDS_FUZZ_DISK", std::env::temp_dir()));
    &FOLDER
}

fn made(variable: &str, otherwise: PathBuf) -> PathBuf {
    let above = std::env::var_os(variable).map_or(otherwise, PathBuf::from);
    tempfile::Builder::new().prefix("gds-fuzz-").tempdir_in(above).unwrap().keep()
}
