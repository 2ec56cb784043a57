//! `cargo xtask deny`: licences, sources and doubles of all that is depended on, and known vulnerabilities, by cargo-deny.
//!
//! The database of vulnerabilities (RustSec) is fetched by git from where it is kept; no registry has it. Where it cannot
//! be reached, that check could not run, which is said and counted; the others need no network.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::{cufile, workspace};

#[derive(clap::Args)]
pub(crate) struct Arguments {}

/// What is checked without a network.
const CHECKS: [&str; 3] = ["licenses", "bans", "sources"];

pub(crate) fn run(_arguments: Arguments) -> Result<()> {
    let program = cufile::fetch_cargo_deny()?;
    let deny = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.current_dir(workspace::root()).arg("--workspace").args(arguments);
        command
    };
    workspace::check(deny(&["check", "--hide-inclusion-graph"]).args(CHECKS))?;

    let fetched = deny(&["fetch", "db"]).output().context("could not start cargo-deny")?;
    let skipped = if fetched.status.success() {
        workspace::check(&mut deny(&["check", "--disable-fetch", "advisories"]))?;
        0
    } else {
        let words = String::from_utf8_lossy(&fetched.stderr);
        let reason =
            words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("cargo-deny gave no reason");
        println!("could not run: advisories: the database of RustSec cannot be fetched: {}", reason.trim());
        1
    };
    println!("{} passed, 0 failed, {skipped} skipped", CHECKS.len() + 1 - skipped);
    Ok(())
}
