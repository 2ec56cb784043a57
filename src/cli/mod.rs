//! The commands: each file one command, argument handling and printing only.

mod bench;
mod check;
mod child;
mod demo;
mod describe;
mod exit;
mod inspect;
mod load;
mod output;
mod page_cache;
mod progress;
mod save;
mod sizes;
mod synth;
mod verify;

use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Parser, Subcommand};

/// Safetensors weights into GPU memory: straight from storage where the machine can, through pinned buffers where it cannot.
#[derive(Debug, Parser)]
#[command(name = "gds", version = version(), max_term_width = 110, after_help = EXIT_CODES)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done; 1 bad data or failed I/O; 2 usage; 3 what was forced is not available here.
Results go to standard output, progress and errors to standard error.";

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::Arguments),
    /// Loads on request, for the benchmark that started it
    #[command(hide = true)]
    BenchWorker(bench::WorkerArguments),
    Check(check::Arguments),
    Demo(demo::Arguments),
    Inspect(inspect::Arguments),
    Load(load::Arguments),
    Save(save::Arguments),
    Synth(synth::Arguments),
    Verify(verify::Arguments),
}

/// Parses the command line, runs the command, prints its error.
pub(crate) fn run() -> ExitCode {
    // clap prints help and usage errors itself and exits with 0 or 2.
    let result = match CommandLine::parse().command {
        Command::Bench(arguments) => bench::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::BenchWorker(arguments) => bench::serve(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Check(arguments) => check::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Inspect(arguments) => inspect::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Load(arguments) => load::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Save(arguments) => save::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Synth(arguments) => synth::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Verify(arguments) => verify::run(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => exit::report(&error),
    }
}

/// What `gds --version` says after the name.
fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let (version, revision) = (env!("CARGO_PKG_VERSION"), env!("GDS_REVISION"));
        format!("{version} (revision {revision}, cuFile bindings {})", gds_loader::CUFILE_HEADER_VERSION)
    });
    &VERSION
}
