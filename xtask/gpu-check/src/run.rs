//! A process with a limit: what it said, how it ended, how long it took.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself, with this status.
    Status(i32),
    /// By a signal, or not at all.
    Broken(String),
    /// It was ended after its limit.
    TimedOut,
}

/// A process that is over.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) end: End,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) seconds: f64,
}

impl Finished {
    /// The last line that it said on stderr, or how it ended.
    pub(crate) fn reason(&self) -> String {
        let said = self.stderr.lines().rev().map(str::trim).find(|line| !line.is_empty());
        match &self.end {
            End::Status(_) => said.unwrap_or("without a word").to_owned(),
            End::Broken(how) => said.map_or_else(|| how.clone(), |said| format!("{how}: {said}")),
            End::TimedOut => format!("not done after {:.0} s", self.seconds),
        }
    }
}

/// Looks so often whether a process is over.
const TICK: Duration = Duration::from_millis(2);

/// Runs `command`, for at most `limit`.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Finished {
    let start = Instant::now();
    match try_to_run(command, limit) {
        Ok((end, stdout, stderr)) => Finished { end, stdout, stderr, seconds: start.elapsed().as_secs_f64() },
        Err(error) => Finished {
            end: End::Broken(format!("{error:#}")),
            stdout: String::new(),
            stderr: String::new(),
            seconds: start.elapsed().as_secs_f64(),
        },
    }
}

fn try_to_run(command: &mut Command, limit: Duration) -> Result<(End, String, String)> {
    // Files, not pipes: nobody has to read along, and what a killed process said is there.
    let (stdout, stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    let child = command.spawn().with_context(|| format!("could not start {command:?}"))?;
    let end = wait(child, Instant::now() + limit)?;
    Ok((end, text(stdout)?, text(stderr)?))
}

fn wait(mut child: Child, deadline: Instant) -> Result<End> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(match status.code() {
                Some(code) => End::Status(code),
                None => End::Broken(status.to_string()),
            });
        }
        if Instant::now() >= deadline {
            child.kill()?;
            // A process that hangs in the kernel's hands does not even die: it is left to itself.
            for _ in 0..500 {
                if child.try_wait()?.is_some() {
                    break;
                }
                std::thread::sleep(TICK);
            }
            return Ok(End::TimedOut);
        }
        std::thread::sleep(TICK);
    }
}

fn text(mut file: File) -> Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Finished {
        run(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn a_process_ends_in_four_ways() {
        let long = Duration::from_secs(60);
        let refused = shell("echo out; echo because >&2; exit 3", long);
        assert_eq!((refused.end.clone(), refused.reason()), (End::Status(3), "because".to_owned()));
        assert_eq!(refused.stdout, "out\n");
        assert!(matches!(shell("kill -9 $$", long).end, End::Broken(_)));
        let slow = shell("echo so far; exec sleep 60", Duration::from_millis(300));
        assert_eq!((slow.end.clone(), slow.stdout.as_str()), (End::TimedOut, "so far\n"));
        assert!(slow.seconds < 30.0);
        assert!(matches!(run(&mut Command::new("/nonexistent"), long).end, End::Broken(_)));
    }
}
