//! What a test needs and a machine may lack.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::{build_folder, workspace};

/// Says that `test` could not run and why, and adds it to the list in the file `GDS_TESTS_NOT_RUN`, which
/// `cargo xtask test` counts. The test then returns.
pub fn not_run(test: &str, reason: &str) {
    let line = format!("{}::{test}: {}\n", program(), reason.replace('\n', " "));
    eprint!("could not run {line}");
    if let Some(list) = std::env::var_os("GDS_TESTS_NOT_RUN") {
        let file = OpenOptions::new().create(true).append(true).open(list);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("the list of tests that could not run");
    }
}

/// The name of this test's program, without the hash cargo gives it.
fn program() -> String {
    let program = std::env::current_exe().expect("this program's path");
    let name = program.file_stem().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-').map_or_else(|| name.to_string(), |(name, _hash)| name.to_owned())
}

/// The folder of `cargo xtask cufile` for `part` ("1.20", "1.14", "cuda"), or `None` after saying that `test` could not
/// run.
///
/// It is looked for in `GDS_CUFILE_DIR`, then in the build folder, then in the workspace's own `target`.
///
/// # Panics
/// Where it is missing and `GDS_REQUIRE_CUFILE` is 1.
pub fn cufile(test: &str, part: &str) -> Option<PathBuf> {
    let given = std::env::var_os("GDS_CUFILE_DIR").map(PathBuf::from);
    let fetched = [build_folder(), workspace().join("target")].map(|target| target.join("cufile"));
    let found = given.into_iter().chain(fetched).map(|root| root.join(part)).find(|path| path.is_dir());
    if found.is_none() {
        let reason = format!("cuFile {part} has not been fetched (cargo xtask cufile)");
        assert!(std::env::var_os("GDS_REQUIRE_CUFILE").is_none_or(|value| value != "1"), "{reason}");
        not_run(test, &reason);
    }
    found
}

/// The program `name` of the operating system, or `None` after saying that `test` could not run.
pub fn tool(test: &str, name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| is_program(path));
    if found.is_none() {
        not_run(test, &format!("{name} is not installed"));
    }
    found
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
