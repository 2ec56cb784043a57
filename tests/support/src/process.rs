//! Child processes that cannot hang a test.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::Segment;

/// How long a child may run where nothing else is said.
pub const LIMIT: Duration = Duration::from_secs(120);

/// A child that ended on its own.
#[derive(Clone, Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
    /// How long it ran.
    pub elapsed: Duration,
}

impl Finished {
    /// Passes `self` on if the exit status was 0.
    ///
    /// # Panics
    /// With status and output, if it was not.
    #[track_caller]
    pub fn success(self) -> Self {
        assert!(self.status.success(), "{self}");
        self
    }

    /// The exit status; `None` where a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => write!(f, "exit status {code}")?,
            (None, signal) => write!(f, "killed by signal {}", signal.unwrap_or_default())?,
        }
        write!(f, " after {:.1?}", self.elapsed)?;
        let (stdout, stderr) = (marked(&self.stdout), marked(&self.stderr));
        write!(f, "\n--- its standard output\n{stdout}--- its standard error\n{stderr}")
    }
}

/// The lines of a child's output, marked: a test harness in the child must not be taken for the one here.
pub(crate) fn marked(output: &str) -> String {
    output.lines().map(|line| format!("| {line}\n")).collect()
}

/// Runs `command` to its end, without input, and captures its output.
///
/// # Panics
/// Where it cannot start, or still runs after `limit`: then it and its own children are killed, and the message shows
/// what they wrote until then. "watchdog" is in that message and in no other. And where one that ended on its own left shared memory,
/// which stays on the machine.
#[track_caller]
pub fn run(command: &mut Command, limit: Duration) -> Finished {
    let (start, clock) = (Instant::now(), SystemTime::now());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("starting {command:?}: {error}"));
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let mut pause = Duration::from_millis(1);
    let ended = loop {
        if has_ended(child.id()) {
            break true;
        }
        if start.elapsed() >= limit {
            break false;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    // Whatever it left running would keep the pipes open.
    kill_group(child.id());
    let status = child.wait().expect("a wait for a child");
    let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().expect("the reader of a pipe"));
    let finished = Finished { status, stdout, stderr, elapsed: start.elapsed() };
    assert!(ended, "watchdog: {command:?} did not end within {limit:?}\n{finished}");
    if finished.code().is_some() {
        let left = Segment::of(child.id()).filter(|segment| segment.was_made(child.id(), clock));
        assert!(left.is_none(), "{command:?} left shared memory: {left:?}\n{finished}");
    }
    finished
}

/// Reads a pipe to its end on a thread of its own.
fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Bytes that arrived before a failed read count too.
        let _: io::Result<usize> = pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Whether a child of ours has ended. It is not reaped, so its number stays its own.
fn has_ended(child: u32) -> bool {
    // SAFETY: plain data, for which zeros are valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is writable.
    let status =
        unsafe { libc::waitid(libc::P_PID, child, &mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) };
    assert_eq!(status, 0, "waitid: {}", io::Error::last_os_error());
    // SAFETY: waitid wrote it; without a child that ended, the number is 0.
    unsafe { info.si_pid() != 0 }
}

/// Kills the process group of which `leader`, a child of ours that is not reaped, was the first.
fn kill_group(leader: u32) {
    let group = libc::pid_t::try_from(leader).expect("a process's number");
    // SAFETY: a system call without pointers, on a group that cannot be another's.
    unsafe { libc::kill(-group, libc::SIGKILL) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn status_and_output_come_back() {
        let finished = run(&mut shell("echo out; echo err >&2; exit 7"), LIMIT);
        assert_eq!(
            (finished.code(), finished.stdout.trim(), finished.stderr.trim()),
            (Some(7), "out", "err")
        );
    }

    #[test]
    fn a_signal_is_no_exit_status() {
        let finished = run(&mut shell("kill -SEGV $$"), LIMIT);
        assert_eq!(finished.code(), None);
        assert!(finished.to_string().starts_with("killed by signal 11"), "{finished}");
    }

    #[test]
    fn what_a_child_leaves_running_does_not_hold_the_test() {
        let finished = run(&mut shell("sleep 1000 & echo done"), LIMIT);
        assert_eq!(finished.stdout.trim(), "done");
        assert!(finished.elapsed < Duration::from_secs(60));
    }

    #[test]
    #[should_panic(expected = "watchdog")]
    fn a_hang_is_ended() {
        run(&mut shell("sleep 1000"), Duration::from_millis(100));
    }
}
