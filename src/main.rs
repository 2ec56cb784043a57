//! The `gds` program: its environment, then the command line.

use std::process::ExitCode;

/// Where cuFile writes its log. Unset, it creates `cufile.log` in whatever folder the user happens to stand in.
const CUFILE_LOG: &str = "CUFILE_LOGFILE_PATH";

fn main() -> ExitCode {
    if std::env::var_os(CUFILE_LOG).is_none() {
        // SAFETY: the first statement of main; no other thread exists that could read or write the environment.
        unsafe { std::env::set_var(CUFILE_LOG, "/dev/null") };
    }
    gds_loader::raise_descriptor_limit();
    gds_loader::refuse_writes_beyond_the_limit();
    gds::run(std::env::args_os()).into()
}
