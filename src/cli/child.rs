//! This same program as a process of its own, which answers questions: cuFile has one mode for a whole process, and what opening a
//! driver or a context costs is paid by each process once.
//!
//! A question is a line of JSON on its standard input, the answer a line on its standard output. It ends when its input does.

use std::env;
use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::output::WhileRead;

/// How long a process may take to end once its input has.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running process of this program.
#[derive(Debug)]
pub(crate) struct Child {
    /// What it does, for messages: `loads by gds`.
    does: String,
    process: std::process::Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// Where a process's words for people go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Words {
    /// To our own standard error.
    Shown,
    /// Into the message of its failure.
    Kept,
}

impl Child {
    /// Starts this program with `arguments`, for a process that `does` something.
    pub(crate) fn start(
        does: String,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        words: Words,
    ) -> anyhow::Result<Self> {
        let program = env::current_exe().context("finding this program")?;
        let stderr = if words == Words::Shown { Stdio::inherit() } else { Stdio::piped() };
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .with_context(|| format!("starting a process that {does}"))?;
        let questions = process.stdin.take();
        let answers = process.stdout.take().context("a process without output")?;
        Ok(Self { does, process, questions, answers: BufReader::new(answers) })
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// Where the process has ended, with its last words; after which it is of no use.
    pub(crate) fn ask<A: DeserializeOwned>(&mut self, question: &impl Serialize) -> anyhow::Result<A> {
        let mut line = serde_json::to_string(question).context("making JSON of a question")?;
        line.push('\n');
        let asked = match &mut self.questions {
            Some(questions) => questions.write_all(line.as_bytes()).and_then(|()| questions.flush()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        let mut answer = String::new();
        // One that did not even take the question says nothing either.
        let read = asked.and_then(|()| self.answers.read_line(&mut answer));
        if read.is_err() || answer.is_empty() {
            let (status, words) = self.end();
            let how = status.map_or_else(|| "did not answer".to_owned(), |status| format!("ended: {status}"));
            let words = if words.is_empty() { words } else { format!(": {words}") };
            bail!("the process that {} {how}{words}", self.does);
        }
        serde_json::from_str(&answer).with_context(|| format!("what the process that {} printed", self.does))
    }

    /// Ends the process: closes its input, waits, and kills it where that is not enough. Its last words.
    fn end(&mut self) -> (Option<ExitStatus>, String) {
        drop(self.questions.take());
        let start = Instant::now();
        let status = loop {
            match self.process.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(2)),
                _ => {
                    // Nothing more can be done about one that cannot be killed.
                    let _ = self.process.kill();
                    break self.process.wait().ok();
                }
            }
        };
        let mut words = String::new();
        if let Some(mut stderr) = self.process.stderr.take() {
            let _ = stderr.read_to_string(&mut words);
        }
        (status, words.trim().replace('\n', "; "))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

/// What such a process does: answers every question until there are no more.
pub(crate) fn serve<Q: DeserializeOwned, A: Serialize>(
    mut answer: impl FnMut(Q) -> anyhow::Result<A>,
) -> anyhow::Result<()> {
    for line in io::stdin().lock().lines() {
        let question = serde_json::from_str(&line.context("reading a question")?).context("a question")?;
        let mut line = serde_json::to_string(&answer(question)?).context("making JSON of an answer")?;
        line.push('\n');
        // Where whoever asked has gone, its questions end too.
        let mut out = WhileRead(io::stdout().lock());
        out.write_all(line.as_bytes()).and_then(|()| out.flush()).context("writing an answer")?;
    }
    Ok(())
}
