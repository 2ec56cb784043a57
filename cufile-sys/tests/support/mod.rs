//! What the tests share: NVIDIA's files where they were fetched, the C compiler, and a way to say that a test could not
//! run.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of `cargo xtask cufile` for `part` ("1.20", "1.14", "cuda"), or `None` after saying that `test` could not
/// run.
///
/// It is looked for in `GDS_CUFILE_DIR`, then in the build folder, then in the workspace's own `target`.
pub(crate) fn cufile(test: &str, part: &str) -> Option<PathBuf> {
    let given = std::env::var_os("GDS_CUFILE_DIR").map(PathBuf::from);
    let build = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().map(|target| target.join("cufile"));
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("target/cufile"));
    let found =
        given.into_iter().chain(build).chain(above).map(|root| root.join(part)).find(|path| path.is_dir());
    if found.is_none() {
        let reason = format!("cuFile {part} has not been fetched (cargo xtask cufile)");
        assert!(std::env::var_os("GDS_REQUIRE_CUFILE").is_none_or(|value| value != "1"), "{reason}");
        not_run(test, &reason);
    }
    found
}

/// Says that `test` could not run and why, and adds it to the list in the file `GDS_TESTS_NOT_RUN`, which
/// `cargo xtask test` counts.
pub(crate) fn not_run(test: &str, reason: &str) {
    let line = format!("{test}: {reason}\n");
    eprint!("could not run {line}");
    if let Some(list) = std::env::var_os("GDS_TESTS_NOT_RUN") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(list);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("the list of tests that could not run");
    }
}

/// An empty folder of this test's own.
pub(crate) fn folder(test: &str) -> PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cufile-sys-{test}-{}", std::process::id()));
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Compiles C `source` to `output` with the compiler that links Rust programs too.
pub(crate) fn compile(source: &str, output: &Path, arguments: &[String]) {
    let file = output.with_extension("c");
    std::fs::write(&file, source).unwrap();
    let run = Command::new("cc").args(arguments).arg("-o").arg(output).arg(&file).output();
    let run = run.expect("cc, which links Rust programs, starts");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
