//! Empty folders of a test's own, removed when dropped.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::{build_folder, not_run};

/// On disk: below `GDS_TESTS_DISK` where set, else in the build folder.
pub fn on_disk(test: &str) -> TempDir {
    let given = std::env::var_os("GDS_TESTS_DISK").map(PathBuf::from);
    let above = given.unwrap_or_else(|| build_folder().join("tmp"));
    std::fs::create_dir_all(&above).unwrap_or_else(|error| panic!("{}: {error}", above.display()));
    create(test, &above)
}

/// In memory: on tmpfs, which does no direct I/O on older kernels and whose files are resident; or `None` after saying
/// that `test` could not run.
pub fn in_memory(test: &str) -> Option<TempDir> {
    let above = Path::new("/dev/shm");
    if !above.is_dir() {
        not_run(test, "there is no tmpfs at /dev/shm");
        return None;
    }
    Some(create(test, above))
}

fn create(test: &str, above: &Path) -> TempDir {
    let created = tempfile::Builder::new().prefix(&format!("gds-{test}-")).tempdir_in(above);
    created.unwrap_or_else(|error| panic!("a folder in {}: {error}", above.display()))
}
