//! From an error to an exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use gds_loader::{ErrorKind, SaveError};

use super::output::{LIST, printable_lines, while_read};

/// How a command ends: the exit codes of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Bad data or failed I/O.
    Failed = 1,
    /// The command line asks for something that makes no sense.
    Usage = 2,
    /// What was forced is not available here.
    Unavailable = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error of the command line's own making that is the caller's to correct.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Prints `error` with its causes on standard error and says how the program ends.
pub(crate) fn report(error: &anyhow::Error) -> Exit {
    // Nothing is left to be told if standard error is closed too.
    let _ = writeln!(io::stderr(), "error: {}{}", printable_lines(&message(error), LIST), advice(error));
    of(error)
}

/// Prints what clap has to say, help and version included, and says how the program ends.
pub(crate) fn of_command_line(error: &clap::Error) -> Exit {
    if !error.use_stderr() {
        // What clap wrote may wait in the buffer still, and whoever asked for help wants to read it.
        let written = error.print().and_then(|()| io::stdout().flush());
        let written = while_read(written, ()).context("writing to standard output");
        return written.map_or_else(|error| report(&error), |()| Exit::Done);
    }
    let plain = error.render().to_string();
    let shown = printable_lines(&plain, "\n");
    // Nothing is left to be told if standard error is closed.
    let _ = if shown == plain { error.print() } else { write!(io::stderr(), "{shown}") };
    Exit::Usage
}

fn of(error: &anyhow::Error) -> Exit {
    for cause in error.chain() {
        if cause.is::<Usage>() {
            return Exit::Usage;
        }
        let kind = cause.downcast_ref::<gds_loader::Error>().map(gds_loader::Error::kind);
        if let Some(kind) = kind.or_else(|| cause.downcast_ref::<SaveError>().map(SaveError::kind)) {
            return match kind {
                ErrorKind::Usage => Exit::Usage,
                ErrorKind::Unavailable => Exit::Unavailable,
                _ => Exit::Failed,
            };
        }
        if cause.downcast_ref::<cuda_staging::Error>().is_some_and(cuda_staging::Error::is_unavailable) {
            return Exit::Unavailable;
        }
    }
    Exit::Failed
}

/// The error and its causes on one line, without a cause that the words before it already contain.
fn message(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |mut message, cause| {
        if !message.contains(&cause) {
            if !message.is_empty() {
                message.push_str(": ");
            }
            message.push_str(&cause);
        }
        message
    })
}

/// What to do about a limit that the system's words do not name.
fn advice(error: &anyhow::Error) -> String {
    let is_too_large = |cause: &io::Error| cause.kind() == io::ErrorKind::FileTooLarge;
    let refused = error.chain().filter_map(|cause| cause.downcast_ref()).any(is_too_large);
    gds_loader::file_size_limit().filter(|_| refused).map_or_else(String::new, |limit| {
        format!("; this process may make no file longer than {limit} bytes: raise its limit (ulimit -f)")
    })
}
