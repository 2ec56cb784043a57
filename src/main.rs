//! The `gds` command line: parse, dispatch, exit code. The work is done by `gds-loader` and `cuda-staging`.

mod cli;
mod interrupt;
mod synthetic;

use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Where cuFile writes its log. Unset, it creates `cufile.log` in whatever folder the user happens to stand in.
const CUFILE_LOG: &str = "CUFILE_LOGFILE_PATH";

fn main() -> ExitCode {
    if std::env::var_os(CUFILE_LOG).is_none() {
        // SAFETY: the first statement of main; no other thread exists that could read or write the environment.
        unsafe { std::env::set_var(CUFILE_LOG, "/dev/null") };
    }
    raise_descriptor_limit();
    cli::run()
}

/// Lets the process open as many files as it may: a model of many files is loaded with all of them open.
fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Without it files take turns.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}
