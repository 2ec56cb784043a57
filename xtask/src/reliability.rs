//! `docs/reliability.md` names tests and mutants; here it is held to them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace;

/// What a page of promises names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Named {
    /// Each as `package`, `target` and name.
    tests: BTreeSet<[String; 3]>,
    mutants: BTreeSet<String>,
    /// The numbers of the kinds that have a row, in order.
    kinds: Vec<u32>,
}

/// Reads what stands between backticks: tests anywhere, mutants in the last column of a kind's row.
///
/// # Panics
/// Where a kind's row names no test or no mutant.
fn read(page: &str) -> Named {
    let mut named = Named::default();
    for line in page.lines() {
        let tests: Vec<_> = quoted(line).filter_map(test).collect();
        if let Some(row) = line.strip_prefix("| K") {
            let number = row.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            named.kinds.push(number.parse().unwrap_or_else(|_| panic!("no number of a kind in: {line}")));
            let last = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
            let mutants: Vec<_> = quoted(last).map(str::to_owned).collect();
            assert!(!tests.is_empty() && !mutants.is_empty(), "no test or no mutant in: {line}");
            named.mutants.extend(mutants);
        }
        named.tests.extend(tests);
    }
    named
}

/// What stands between backticks of a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// How the page says that tests are named.
const PATTERN: &str = "package::target test";

/// A test, where `text` names one.
fn test(text: &str) -> Option<[String; 3]> {
    let (program, name) = text.split_once(' ')?;
    let (package, target) = program.split_once("::")?;
    (text != PATTERN).then(|| [package, target, name].map(str::to_owned))
}

/// The folder of a package of the workspace.
fn folder(package: &str) -> PathBuf {
    let root = workspace::root();
    let places = ["", package, "sim/cuda", "sim/cufile", "tests/support"].map(|place| root.join(place));
    let is_it = |place: &&PathBuf| {
        let manifest = fs::read_to_string(place.join("Cargo.toml")).unwrap_or_default();
        manifest.lines().any(|line| line == format!("name = \"{package}\""))
    };
    places.iter().find(is_it).unwrap_or_else(|| panic!("no package {package}")).clone()
}

/// The text of every source file of a program.
fn sources(package: &str, target: &str) -> String {
    let folder = folder(package);
    let (file, modules) = match target {
        "lib" | "bin" => (PathBuf::new(), folder.join("src")),
        _ => (folder.join("tests").join(target).with_extension("rs"), folder.join("tests").join(target)),
    };
    let mut text = fs::read_to_string(file).unwrap_or_default();
    add_sources(&modules, &mut text);
    text
}

fn add_sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_test_and_mutant_that_the_page_names_exists() {
    let page = fs::read_to_string(workspace::root().join("docs/reliability.md")).unwrap();
    let Named { tests, mutants, kinds } = read(&page);
    assert!(kinds.iter().copied().eq(1..=kinds.len() as u32), "a row is missing or out of order: {kinds:?}");
    let is_missing = |[package, target, name]: &&[String; 3]| {
        let function = name.rsplit("::").next().unwrap_or_default();
        !sources(package, target).contains(&format!("fn {function}("))
    };
    let missing: Vec<_> = tests.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
    let patch = |name: &String| workspace::root().join("tests/mutants").join(name).with_extension("patch");
    let missing: Vec<_> = mutants.iter().filter(|name| !patch(name).is_file()).collect();
    assert!(missing.is_empty(), "no such mutants: {missing:#?}");
}

#[test]
fn a_page_is_read_as_people_read_it() {
    let page = "\
        Tests are named `package::target test`, and `gds-compat` is a path.\n\
        | kind | tests | mutants |\n\
        | K1 `nothing` | `gds::doors a_test`, `gds-loader::lib a::b::c` | `one-fault`, `another` |\n\
        - K1-01: `gds::fallback b_test` and `plain words`\n";
    let triple = |texts: [&str; 3]| texts.map(str::to_owned);
    let tests = [
        triple(["gds", "doors", "a_test"]),
        triple(["gds-loader", "lib", "a::b::c"]),
        triple(["gds", "fallback", "b_test"]),
    ];
    let mutants = ["one-fault", "another"].map(str::to_owned);
    assert_eq!(read(page), Named { tests: tests.into(), mutants: mutants.into(), kinds: vec![1] });
}

#[test]
#[should_panic(expected = "no test or no mutant")]
fn a_row_without_a_mutant_is_none() {
    read("| K1 framing | `gds::doors a_test` | none |\n");
}
