//! The C compiler, which links Rust programs too and is therefore always there.

use std::path::Path;
use std::process::Command;

/// Compiles C `source` to `output`, a program unless `arguments` say otherwise.
///
/// # Panics
/// With what the compiler says, where it does not compile.
#[track_caller]
pub fn compile(source: &str, output: &Path, arguments: &[String]) {
    let file = output.with_extension("c");
    std::fs::write(&file, source).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let run = Command::new("cc").args(arguments).arg("-o").arg(output).arg(&file).output();
    let run = run.expect("cc, which links Rust programs, starts");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
