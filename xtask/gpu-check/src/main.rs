//! `gpu-check`: on a machine with a GPU, everything that only such a machine can tell, in one run of a few minutes.
//!
//! `cargo xtask gpu-check --pack` puts this program beside `gds` and libcufile, and the folder is all that is carried there. Every
//! step is a process of its own with a limit, since what is tried here may hang, crash or take the GPU's context down: then
//! that step is recorded and the next one begins. Nothing starts that could not end before the deadline.
//!
//! Correctness decides the exit status: every path must give the bytes that plain reads into host memory give. What a machine
//! refuses (GPUDirect Storage, io_uring) is recorded with its reason, and is no failure.

mod facts;
mod loads;
mod options;
mod probe;
mod record;
mod run;
mod steps;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "gpu-check",
    about = "What only a machine with a GPU can tell",
    args_conflicts_with_subcommands = true
)]
struct Arguments {
    #[command(flatten)]
    options: options::Options,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// One of the things that are tried, in this process
    #[command(hide = true)]
    Probe(probe::Arguments),
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    match arguments.command {
        Some(Command::Probe(arguments)) => probe::run(&arguments).map(|()| ExitCode::SUCCESS),
        None => steps::run_all(&arguments.options),
    }
}
