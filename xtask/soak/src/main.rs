//! The load soak: models loaded again and again, alone and together, under every kind of pressure a machine puts on a process,
//! every byte compared with what its position demands, and memory, descriptors and threads held against what they were.
//!
//! Each row of the table is one child of this program, which uses the library as anybody would ([`child`]); so limits, cgroups and
//! system call filters are set on the child ([`pressure`]). What happens to its files meanwhile ([`meddle`]) is done from here.
//! `cargo xtask soak` builds it, and what it needs, and runs it.

mod cgroup;
mod child;
mod meddle;
mod model;
mod oracle;
mod pressure;
mod provoke;
mod row;
mod sample;
mod scenario;
mod spec;
mod table;
mod verdict;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use clap::Parser;

use row::{Plan, Row};
use spec::Spec;
use verdict::Verdict;

#[derive(Parser)]
#[command(
    name = "soak",
    about = "Loads models again and again under pressure, and judges what is left behind"
)]
struct Arguments {
    /// Only these scenarios
    names: Vec<String>,
    /// Loads of each row, where its seconds allow: 200, or 20 in the short form
    #[arg(long)]
    loads: Option<u64>,
    /// Seconds of loading that each row may take at most: 6, or 0.5 in the short form; four times as many where the scenario is
    /// about the number of loads
    #[arg(long)]
    seconds: Option<f64>,
    /// Only one way of loading for each destination, and fewer loads
    #[arg(long)]
    short: bool,
    /// Where the models are made: a folder on a disk; the build folder unless said
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Write the rows to this file, too
    #[arg(long)]
    json: Option<PathBuf>,
    /// Says which scenarios there are
    #[arg(long)]
    list: bool,
    /// Be a child: what to load, as JSON
    #[arg(long, hide = true)]
    child: Option<String>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(spec) = &arguments.child {
        let spec: Spec = serde_json::from_str(spec).context("what to load")?;
        println!("{}", serde_json::to_string(&child::run(&spec)?)?);
        return Ok(());
    }
    if arguments.list {
        scenario::ALL.iter().for_each(|scenario| println!("{:<18} {}", scenario.name, scenario.about));
        return Ok(());
    }
    for name in &arguments.names {
        let known = scenario::ALL.iter().any(|scenario| scenario.name == name);
        ensure!(known, "there is no scenario {name:?}; --list has them");
    }
    let start = Instant::now();
    let folder = arguments.folder.clone().unwrap_or_else(|| test_support::build_folder().join("tmp"));
    std::fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
    let (loads, seconds) = if arguments.short { (20, 0.5) } else { (200, 6.0) };
    let plan = Plan {
        folder,
        loads: arguments.loads.unwrap_or(loads),
        seconds: arguments.seconds.unwrap_or(seconds),
        short: arguments.short,
    };
    let mut rows: Vec<Row> = Vec::new();
    for scenario in scenario::ALL {
        if !arguments.names.is_empty() && !arguments.names.iter().any(|name| name == scenario.name) {
            continue;
        }
        for way in scenario.ways(plan.short) {
            let row = row::run(scenario, way, &plan);
            eprintln!("{}", row.line());
            rows.push(row);
        }
    }
    println!("{}", table::of(&rows));
    rows.iter()
        .for_each(|row| row.verdict.problems().for_each(|problem| println!("{}: {problem}", row.name())));
    let count = |of: fn(&Verdict) -> bool| rows.iter().filter(|row| of(&row.verdict)).count();
    let bad = count(Verdict::is_bad);
    println!(
        "{} rows, {} loads, {} good, {bad} bad, {} could not run, in {:.0} s",
        rows.len(),
        rows.iter().map(|row| row.figures.loads).sum::<u64>(),
        count(Verdict::is_good),
        count(|verdict| !verdict.is_good() && !verdict.is_bad()),
        start.elapsed().as_secs_f64()
    );
    if let Some(file) = &arguments.json {
        let text = serde_json::to_string_pretty(&rows)?;
        std::fs::write(file, text).with_context(|| format!("could not write {}", file.display()))?;
    }
    if bad > 0 {
        std::process::exit(1);
    }
    Ok(())
}
