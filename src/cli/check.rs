//! `gds check`: the doctor.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use clap::Args;
use gds_loader::check::{Checkup, Options, examine};

use super::exit::{self, Exit};
use super::output::Output;
use crate::ending;

/// Say what GPUDirect Storage needs here, what is missing, and what to do about it
///
/// Looks at kernel modules, GPUs, libcufile, cufile.json, udev, IOMMU and the way from each GPU to each drive; with a PATH also at what it
/// lies on. Needs no privileges. What does not answer within two seconds, and one more for each GPU, is said not to. Exits with 0 where
/// GPUDirect Storage would work, with 3 where not.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// A file or a folder to load from
    path: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print a cufile.json that suits this machine, and nothing else
    #[arg(long, conflicts_with = "json")]
    suggest_config: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Exit {
    let mut options = Options::default();
    options.path.clone_from(&arguments.path);
    // This process does nothing else with cuFile.
    options.open_cufile = true;
    ending::prepare();
    let checkup = examine(&options);
    let exit = match print(arguments, &checkup) {
        Ok(()) if checkup.verdict.gds || arguments.suggest_config => Exit::Done,
        Ok(()) => Exit::Unavailable,
        Err(error) => exit::report(&error),
    };
    if checkup.hangs {
        ending::without_destructors(exit);
    }
    exit
}

fn print(arguments: &Arguments, checkup: &Checkup) -> anyhow::Result<()> {
    let mut out = Output::new();
    if arguments.json {
        out.json(checkup)?;
    } else if arguments.suggest_config {
        checkup.suggested_config.lines().try_for_each(|line| out.line(line))?;
    } else {
        for line in checkup.to_string().lines() {
            let (mark, rest) = parted(line, in_colour());
            out.marked(&mark, rest)?;
        }
    }
    out.finish()
}

/// Whether standard output shows colours, and they are wanted.
fn in_colour() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The mark of a finding in its colour, and the rest of the line; of other lines all is rest.
fn parted(line: &str, in_colour: bool) -> (String, &str) {
    const MARKS: [(&str, &str); 3] = [("  FAIL ", "31;1"), ("  warn ", "33"), ("  ok ", "32")];
    let mark = MARKS
        .iter()
        .filter(|_| in_colour)
        .find_map(|(mark, colour)| Some((mark, colour, line.strip_prefix(mark)?)));
    match mark {
        Some((mark, colour, rest)) => (format!("\u{1b}[{colour}m{mark}\u{1b}[0m"), rest),
        None => (String::new(), line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marks_are_coloured_and_only_for_who_sees_colours() {
        let bad = ("\u{1b}[31;1m  FAIL \u{1b}[0m".to_owned(), "  no GPU");
        assert_eq!(parted("  FAIL   no GPU", true), bad);
        assert_eq!(parted("  FAIL   no GPU", false), (String::new(), "  FAIL   no GPU"));
        assert_eq!(parted("Machine", true), (String::new(), "Machine"));
    }
}
