//! From an error to an exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use gds_loader::{ErrorKind, SaveError};

use super::output::printable;

/// Bad data or failed I/O.
const FAILED: u8 = 1;
/// The command line asks for something that makes no sense.
const USAGE: u8 = 2;
/// What was forced is not available here.
const UNAVAILABLE: u8 = 3;

/// An error of the command line's own making that is the caller's to correct.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The exit code of a command that has said by itself what is wrong.
pub(crate) fn failed() -> ExitCode {
    ExitCode::from(FAILED)
}

/// The exit code of a command that has said by itself that what was asked for is not available here.
pub(crate) fn unavailable() -> ExitCode {
    ExitCode::from(UNAVAILABLE)
}

/// Prints `error` with its causes on standard error and gives its exit code.
///
/// A reader that closed standard output has what it wanted (`gds inspect | head`): no message, success.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_closed_output(error) {
        return ExitCode::SUCCESS;
    }
    // Nothing is left to be told if standard error is closed too.
    let _ = writeln!(io::stderr(), "error: {}", fit_to_print(&message(error)));
    ExitCode::from(code(error))
}

fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if cause.is::<Usage>() {
            return USAGE;
        }
        let kind = cause.downcast_ref::<gds_loader::Error>().map(gds_loader::Error::kind);
        if let Some(kind) = kind.or_else(|| cause.downcast_ref::<SaveError>().map(SaveError::kind)) {
            return match kind {
                ErrorKind::Usage => USAGE,
                ErrorKind::Unavailable => UNAVAILABLE,
                _ => FAILED,
            };
        }
        if cause.downcast_ref::<cuda_staging::Error>().is_some_and(cuda_staging::Error::is_unavailable) {
            return UNAVAILABLE;
        }
    }
    FAILED
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

/// A message may quote files and their names. Its lines stay lines, and that is all it can do to a terminal.
fn fit_to_print(message: &str) -> String {
    message.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Only standard output is ever written to a pipe here.
fn is_closed_output(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
