//! The lessons run: without a GPU, and on the simulated one.
//!
//! `cargo test` builds them before it runs anything, unless it is told to build one test alone.
#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use test_support::{Finished, Report, folder, not_run, process, run, simulator, workspace};

/// The lessons in the folder `examples`, by name.
fn lessons() -> Vec<String> {
    let files = fs::read_dir(workspace().join("examples")).unwrap().map(|entry| entry.unwrap().path());
    let sources = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let mut names: Vec<_> =
        sources.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

/// Where cargo puts a lesson: beside the folder of this test's program.
fn program(lesson: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples").join(lesson)
}

/// Runs each lesson and lets `check` judge what it said and the simulator's reports.
fn each_lesson(test: &str, prepare: impl Fn(&mut Command), check: impl Fn(&str, &Finished, &[Report])) {
    let names = lessons();
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        let program = program(&name);
        if !program.is_file() {
            return not_run(test, &format!("example {name} has not been built (cargo test builds them all)"));
        }
        // They make their models in the folder for temporary files, and nothing else anywhere.
        let folder = folder::on_disk(test);
        let reports = folder.path().join("reports");
        fs::create_dir(&reports).unwrap();
        let mut command = Command::new(program);
        command.env("TMPDIR", folder.path()).current_dir(folder.path());
        command.env("CUDA_SIM_REPORT", reports.join("%p.json"));
        prepare(&mut command);
        let finished = run(&mut command, process::LIMIT).success();
        check(&name, &finished, &Report::read_all(&reports));
    }
}

#[test]
fn every_lesson_runs() {
    each_lesson(
        "every_lesson_runs",
        |_| {},
        |name, finished, _| assert!(!finished.stdout.is_empty(), "{name}"),
    );
}

#[test]
fn every_lesson_runs_on_the_simulated_gpu() {
    let test = "every_lesson_runs_on_the_simulated_gpu";
    let late = |command: &mut Command| {
        simulator::prepare(command);
        command.env("CUDA_SIM_JITTER_US", "300");
    };
    each_lesson(test, late, |name, finished, reports| {
        for report in reports {
            assert!(report.ours_alive().is_empty(), "{name} leaves {:?}\n{finished}", report.ours_alive());
        }
        let copied: u64 = reports.iter().map(|report| report.copies.bytes).sum();
        // The second lesson's memory is the host's, and the doctor loads nothing.
        let copies = !["02", "08"].iter().any(|lesson| name.starts_with(lesson));
        assert_eq!(copied > 0, copies, "{name} copied {copied} bytes\n{finished}");
    });
}
