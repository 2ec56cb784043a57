//! The project's own chores, one module each. `cargo xtask --help` lists them.

mod bindgen;
mod ci;
mod cufile;
mod deny;
mod fuzz;
mod gpu_check;
mod loom;
mod mutants;
mod peers;
#[cfg(test)]
mod reliability;
mod results;
mod sanitize;
mod sim;
mod soak;
mod sweep;
mod test;
mod unsafes;
mod valgrind;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use sanitize::{asan, tsan};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own chores")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run tests under AddressSanitizer, simulators included (needs a nightly toolchain)
    Asan(asan::Arguments),
    /// Regenerate cufile-sys/src/bindings.rs from NVIDIA's header
    Bindgen(bindgen::Arguments),
    /// Everything CI checks: formatting, lints, documentation, bindings, tests, mutants
    Ci(ci::Arguments),
    /// Fetch NVIDIA's libcufile (1.14 and 1.20) from PyPI into target/cufile
    Cufile(cufile::Arguments),
    /// Check licences, sources and known vulnerabilities of all that is depended on
    Deny(deny::Arguments),
    /// Run the fuzz targets for some time each (needs a nightly toolchain)
    Fuzz(fuzz::Arguments),
    /// Rehearse on the simulated GPU, or pack, what only a machine with a GPU can tell
    GpuCheck(gpu_check::Arguments),
    /// Run the models of what runs at the same time, in every order of events
    Loom(loom::Arguments),
    /// Plant each known fault in a copy of the project and check that its test goes red
    Mutants(mutants::Arguments),
    /// Time the loaders that a user would pick instead beside ours
    Peers(peers::Arguments),
    /// Run a command on the simulated CUDA driver
    Sim(sim::Arguments),
    /// Load models again and again under every kind of pressure, and judge what is left behind
    Soak(soak::Arguments),
    /// Let every system call, driver call and cuFile call fail at each of its uses, with each code
    Sweep(sweep::Arguments),
    /// Build what the tests need, run them all, count what could not run
    Test(test::Arguments),
    /// Run the tests of what runs at the same time under ThreadSanitizer, simulators included (needs the source of std)
    Tsan(tsan::Arguments),
    /// Count what is unsafe, crate by crate, and check that each block says why it is sound
    Unsafes(unsafes::Arguments),
    /// Run small loads and saves by every path under valgrind's memcheck
    Valgrind(valgrind::Arguments),
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without the backtrace that anyhow would add where RUST_BACKTRACE is set for the tests' sake: it hides what was said before.
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::Asan(arguments) => asan::run(arguments),
        Task::Bindgen(arguments) => bindgen::run(arguments),
        Task::Ci(arguments) => ci::run(arguments),
        Task::Cufile(arguments) => cufile::run(arguments),
        Task::Deny(arguments) => deny::run(arguments),
        Task::Fuzz(arguments) => fuzz::run(arguments),
        Task::GpuCheck(arguments) => gpu_check::run(arguments),
        Task::Loom(arguments) => loom::run(arguments),
        Task::Mutants(arguments) => mutants::run(arguments),
        Task::Peers(arguments) => peers::run(arguments),
        Task::Sim(arguments) => sim::run(arguments),
        Task::Soak(arguments) => soak::run(arguments),
        Task::Sweep(arguments) => sweep::run(arguments),
        Task::Test(arguments) => test::run(arguments),
        Task::Tsan(arguments) => tsan::run(arguments),
        Task::Unsafes(arguments) => unsafes::run(arguments),
        Task::Valgrind(arguments) => valgrind::run(arguments),
    }
}
