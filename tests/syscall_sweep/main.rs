//! Every system call of a load, a save and a verification fails once, with each code.
//!
//! An operation is run without a fault first, which shows each system call it makes and how often. Then it is run again for each use of
//! each call and each code, in one process. Every run must end, watched, with the right bytes or with an error that has the code's text;
//! and leave no descriptor, thread, mapping or locked page, and no file that was not there; and the next run must be as good as
//! the first. At the end the faults that fired are listed by call: one that never fired fails the test.
//!
//! `GDS_TESTS_LONG=1` tries each code at each use; else each code hits each call's first use, and the further uses take turns.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

mod cufile;
mod gpu;
mod loads;
mod operation;
mod resources;
mod saves;
mod sweep;
mod table;
mod verifies;

use std::time::Duration;

use operation::Operation;
use sweep::Sweep;
use test_support::{Simulation, cufile_sim, not_run, syscalls};

/// How long the runs of one test may take together; each run has a limit of its own.
const LIMIT: Duration = Duration::from_secs(3600);

pub(crate) fn long() -> bool {
    std::env::var_os("GDS_TESTS_LONG").is_some_and(|value| value == "1")
}

/// Sweeps the operations of `prepare` in a process of their own.
fn in_a_process(
    test: &str,
    simulation: Simulation,
    prepare: impl FnOnce() -> Vec<Operation> + Send,
    how: Sweep,
) {
    let (name, value) = syscalls::ENVIRONMENT;
    let outcome = simulation.setting(name, value).limit(LIMIT).run(|| {
        let swept = syscalls::intercepted(|calls| how.run(calls, &prepare()));
        if let Err(error) = swept {
            not_run(test, &format!("the kernel hands no system calls over (seccomp): {error}"));
        }
    });
    if let Some(outcome) = outcome {
        outcome.assert_well();
    }
}

#[test]
fn every_call_of_loads() {
    let test = "every_call_of_loads";
    in_a_process(test, Simulation::new(test), loads::by_one_worker, Sweep::every_call());
}

#[test]
fn every_call_of_verifying() {
    let test = "every_call_of_verifying";
    in_a_process(test, Simulation::new(test), verifies::all, Sweep::every_call());
}

#[test]
fn every_call_of_saves() {
    let test = "every_call_of_saves";
    in_a_process(test, Simulation::new(test), saves::by_one_worker, Sweep::every_call());
}

#[test]
fn sampled_calls_of_many_workers() {
    let test = "sampled_calls_of_many_workers";
    let operations = || [loads::by_many_workers(), saves::by_many_workers()].into_iter().flatten().collect();
    in_a_process(test, Simulation::new(test), operations, Sweep::sampled());
}

/// Here only calls about the model's files count, and io_uring's: the simulated driver makes calls of its own.
#[test]
fn calls_about_the_files_of_a_simulated_gpu() {
    let test = "calls_about_the_files_of_a_simulated_gpu";
    let simulation = cufile_sim::simulation(test).setting("CUFILE_SIM_MODE", "real");
    in_a_process(test, simulation, gpu::all, Sweep::every_call());
}

/// The calls of cuFile that one load by the command line does not make are swept here.
#[test]
fn every_call_of_cufile() {
    let test = "every_call_of_cufile";
    cufile::sweep(|| cufile_sim::simulation(test).setting("CUFILE_SIM_MODE", "real"), LIMIT);
}
