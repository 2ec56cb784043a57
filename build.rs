//! Facts for `gds --version`: the git revision this was built from. Links nothing.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=GDS_REVISION={}", revision().as_deref().unwrap_or("unknown"));
}

/// The commit checked out in this package's own repository; nothing where the package is built outside git, where git is
/// missing, or where the repository around it is someone else's (an unpacked archive in another checkout).
fn revision() -> Option<String> {
    let package = std::env::var("CARGO_MANIFEST_DIR").ok()?;
    let root = git(&package, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&root).canonicalize().ok()? != Path::new(&package).canonicalize().ok()? {
        return None;
    }
    // A commit or a checkout appends to HEAD's log. Where logs are off, HEAD and the branch it names tell.
    let branch = git(&package, &["symbolic-ref", "--quiet", "HEAD"]).unwrap_or_default();
    for file in ["HEAD", "logs/HEAD", "packed-refs", branch.as_str()] {
        // A watched path that does not exist would run this script at every build.
        if let Some(path) = git(&package, &["rev-parse", "--path-format=absolute", "--git-path", file])
            && Path::new(&path).is_file()
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&package, &["rev-parse", "--short=12", "HEAD"])
}

/// What a git command prints, if it succeeds and prints anything.
fn git(folder: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(folder).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
