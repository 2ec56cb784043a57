//! What the tests of every package share. It depends on none of them.
//!
//! - [`not_run`], [`cufile`], [`tool`]: a test that cannot run says why and is counted, never silently passed.
//! - [`compile`]: C into a program or a library.
//! - [`folder`]: empty folders, on disk and in memory.
//! - [`without_io_uring`], [`refuse_io_uring`], [`refuse_calls`]: a kernel that refuses it, for a test or a child.
//! - [`fixture`]: safetensors files whose every byte tells where it belongs.
//! - [`process`]: child processes that cannot hang a test.
//! - [`Segment`]: the shared memory of NVIDIA's libcufile.
//! - [`simulator`]: a test, or a program, on the simulated CUDA driver, and the simulator's report afterwards.
//! - [`cufile_sim`]: the same with the simulated libcufile.
//! - [`syscalls`]: this process's own system calls, counted, and made to fail.

#![warn(missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

pub mod control;
pub mod cufile_sim;
pub mod fixture;
pub mod folder;
pub mod process;
pub mod simulator;
pub mod syscalls;

mod compiler;
mod needs;
mod refuse;
mod report;
mod segment;

use std::path::{Path, PathBuf};

pub use compiler::compile;
pub use needs::{cufile, not_run, tool};
pub use process::{Finished, run};
pub use refuse::{IO_URING_CALLS, IoUring, refuse_calls, refuse_io_uring, without_io_uring};
pub use report::{Copies, DeviceUse, Report, Tally};
pub use segment::{Attached, Segment};
pub use simulator::{Outcome, Simulation, on_simulator};

/// The root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The build folder: the one this test's program lies in, else `target` in the workspace.
pub fn build_folder() -> PathBuf {
    let program = std::env::current_exe().expect("this program's path");
    // target/debug/deps/test-0123456789abcdef, or target/release/soak
    let above = program.ancestors().skip(1).find(|folder| folder.join("CACHEDIR.TAG").is_file());
    above.map_or_else(|| workspace().join("target"), Path::to_path_buf)
}
