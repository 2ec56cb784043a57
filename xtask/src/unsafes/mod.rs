//! `cargo xtask unsafes`: how much is unsafe, crate by crate, held against the table in `docs/unsafe.md`.
//!
//! Compilers check what they compile. This reads every file, so that code for other machines and features counts too, and
//! what stands in macros. Each block and each implementation must have a `// SAFETY:` of its own, each unsafe function
//! that does not keep the contract of a trait a `# Safety` section. A number that is not the table's is an error: whoever
//! adds a block changes the table, and whoever reads the change sees it.

mod scan;
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::workspace;
use scan::{Counts, scan};

#[derive(clap::Args)]
pub(crate) struct Arguments {}

/// The file that holds the table.
const TABLE: &str = "docs/unsafe.md";

/// What a file begins with that a program wrote.
const GENERATED: &str = "// @generated";

/// Folders that hold no source of ours.
const NOT_OURS: [&str; 3] = ["target", "mutants", ".git"];

/// What is counted apart: crate, and whether it is what runs or what tests it.
type Key = (String, &'static str);

pub(crate) fn run(_arguments: Arguments) -> Result<()> {
    let root = workspace::root();
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();

    let (mut counts, mut faults) = (BTreeMap::<Key, Counts>::new(), Vec::new());
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))?;
        let found = scan(&text);
        let name = file.strip_prefix(root).unwrap_or(file);
        // Of generated code the generator knows why; what it makes is tested against the C header.
        let written = found.faults.iter().filter(|_| !text.starts_with(GENERATED));
        faults.extend(written.map(|(line, fault)| format!("{}:{line}: {fault}", name.display())));
        *counts.entry(key(root, name)).or_default() += found.counts;
    }
    counts.retain(|_, counts| *counts != Counts::default());

    let table = table(&counts);
    let path = root.join(TABLE);
    let recorded = fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
    if !recorded.contains(&table) {
        faults.push(format!(
            "{TABLE}: the table is not that of the code; look at what changed, and if it must be so, put there:\n\n{table}"
        ));
    }
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    print!("{table}");
    Ok(())
}

/// Every Rust file below `folder`.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let failed = || format!("could not list {}", folder.display());
    for entry in fs::read_dir(folder).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let (name, path) = (entry.file_name(), entry.path());
        if entry.file_type().with_context(failed)?.is_dir() {
            // A build folder may have any name; Cargo marks it.
            let ours = !NOT_OURS.iter().any(|other| name == *other) && !path.join("CACHEDIR.TAG").exists();
            if ours {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Where a file is counted: the nearest folder above it that has a manifest, and what kind of code it is.
fn key(root: &Path, file: &Path) -> Key {
    let package = file.ancestors().skip(1).find(|folder| root.join(folder).join("Cargo.toml").is_file());
    let package = package.unwrap_or(Path::new(""));
    let below = file.strip_prefix(package).unwrap_or(file);
    let is_test =
        ["tests", "benches", "examples", "fuzz_targets"].iter().any(|folder| below.starts_with(folder))
            || below.components().any(|component| component.as_os_str() == "tests")
            || file.starts_with("tests")
            || below.ends_with("tests.rs");
    let name = if package.as_os_str().is_empty() { "gds".to_owned() } else { package.display().to_string() };
    (name, if is_test { "tests" } else { "code" })
}

/// The table, as it stands in the document.
fn table(counts: &BTreeMap<Key, Counts>) -> String {
    let mut text =
        String::from("| where | what | blocks | functions | implementations |\n|---|---|---:|---:|---:|\n");
    let mut total = Counts::default();
    for ((package, kind), of) in counts {
        total += *of;
        let Counts { blocks, functions, implementations } = of;
        text += &format!("| `{package}` | {kind} | {blocks} | {functions} | {implementations} |\n");
    }
    let Counts { blocks, functions, implementations } = total;
    text + &format!("| together | | {blocks} | {functions} | {implementations} |\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_for_the_package_above_it() {
        let root = workspace::root();
        let of = |file: &str| key(root, Path::new(file));
        assert_eq!(of("gds-loader/src/cufile/batch.rs"), ("gds-loader".into(), "code"));
        assert_eq!(of("gds-loader/src/save/durable/tests/kill.rs"), ("gds-loader".into(), "tests"));
        assert_eq!(of("sim/cuda/tests/copies.rs"), ("sim/cuda".into(), "tests"));
        assert_eq!(of("src/main.rs"), ("gds".into(), "code"));
        assert_eq!(of("tests/support/src/process.rs"), ("tests/support".into(), "tests"));
    }
}
