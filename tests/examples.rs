//! The lessons run: without a GPU, and on the simulated one.
//!
//! `cargo test` builds them before it runs anything, unless it is told to build one test alone.
#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use test_support::{Finished, Report, cufile_sim, folder, not_run, process, run, simulator, workspace};

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
        let finished = run(&mut command, process::LIMIT);
        check(&name, &finished, &Report::read_all(&reports));
    }
}

/// Whether a lesson is one of several, by their numbers.
fn is_one_of(name: &str, numbers: &[&str]) -> bool {
    numbers.iter().any(|number| name.starts_with(number))
}

#[test]
fn every_lesson_runs() {
    each_lesson(
        "every_lesson_runs",
        |command| {
            // Whatever the machine has installed: these are lessons without a GPU.
            command.env("GDS_CUFILE_LIBRARY", "/nowhere/libcufile.so.0");
        },
        |name, finished, _| {
            if is_one_of(name, &["05", "06", "07"]) {
                // cuFile needs a GPU; without one the lesson is the error, which says so.
                assert_eq!(finished.code(), Some(1), "{name}: {finished}");
                let said = format!("{}{}", finished.stdout, finished.stderr);
                assert!(said.contains("libcufile could not be loaded"), "{name}: {finished}");
            } else {
                assert!(finished.status.success() && !finished.stdout.is_empty(), "{name}: {finished}");
            }
        },
    );
}

#[test]
fn every_lesson_runs_on_the_simulated_gpu() {
    let test = "every_lesson_runs_on_the_simulated_gpu";
    let late = |command: &mut Command| {
        simulator::prepare(command);
        command.env("CUDA_SIM_JITTER_US", "300");
        // Not NVIDIA's library, which cannot read on streams here and loses operations of batches.
        command.env("GDS_CUFILE_LIBRARY", cufile_sim::library()).env("CUFILE_SIM_MODE", "real");
    };
    each_lesson(test, late, |name, finished, reports| {
        assert!(finished.status.success(), "{name}: {finished}");
        for report in reports {
            assert!(report.ours_alive().is_empty(), "{name} leaves {:?}\n{finished}", report.ours_alive());
        }
        if is_one_of(name, &["05", "06", "07"]) {
            // cuFile writes device memory by itself, which the driver does not see.
            return;
        }
        let copied: u64 = reports.iter().map(|report| report.copies.bytes).sum();
        // The second lesson's memory is the host's, and the doctor loads nothing.
        assert_eq!(copied > 0, !is_one_of(name, &["02", "08"]), "{name} copied {copied} bytes\n{finished}");
    });
}
