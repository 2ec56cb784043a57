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
mod output_file;
mod page_cache;
mod progress;
mod save;
mod sizes;
mod synth;
mod verify;

use std::ffi::OsString;
use std::sync::LazyLock;

use clap::{Parser, Subcommand};

pub use exit::Exit;

/// Safetensors weights into GPU memory: straight from storage where the machine can, through pinned buffers where it cannot.
#[derive(Debug, Parser)]
#[command(name = "gds", version = version(), max_term_width = 110, after_help = EXIT_CODES)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done; 1 bad data or failed I/O; 2 usage; 3 what was forced is not available here;
128 + N ended by signal N (130 by Ctrl-C, 143 by SIGTERM, 129 by a terminal that has gone).
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

/// Parses the command line, whose first word is the program's name, runs the command, prints its error.
pub fn run(words: impl IntoIterator<Item = OsString>) -> Exit {
    let command = match CommandLine::try_parse_from(words) {
        Ok(line) => line.command,
        Err(error) => return exit::of_command_line(&error),
    };
    let result = match command {
        Command::Bench(arguments) => bench::run(&arguments).map(|()| Exit::Done),
        Command::BenchWorker(arguments) => bench::serve(&arguments).map(|()| Exit::Done),
        Command::Check(arguments) => Ok(check::run(&arguments)),
        Command::Demo(arguments) => demo::run(&arguments).map(|()| Exit::Done),
        Command::Inspect(arguments) => inspect::run(&arguments).map(|()| Exit::Done),
        Command::Load(arguments) => load::run(&arguments).map(|()| Exit::Done),
        Command::Save(arguments) => save::run(&arguments).map(|()| Exit::Done),
        Command::Synth(arguments) => synth::run(&arguments).map(|()| Exit::Done),
        Command::Verify(arguments) => verify::run(&arguments),
    };
    result.unwrap_or_else(|error| exit::report(&error))
}

/// What `gds --version` says after the name.
fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let (version, revision) = (env!("CARGO_PKG_VERSION"), env!("GDS_REVISION"));
        format!("{version} (revision {revision}, cuFile bindings {})", gds_loader::CUFILE_HEADER_VERSION)
    });
    &VERSION
}
