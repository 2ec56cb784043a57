//! Progress on standard error: a bar on a terminal, a line a second elsewhere when asked for.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::sizes;

/// `--progress`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressMode {
    /// A bar if standard error is a terminal
    #[default]
    Auto,
    /// A bar on a terminal, one line a second elsewhere
    Always,
    /// Nothing
    Never,
}

impl ProgressMode {
    /// Its name on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

/// The progress of one job over a known number of bytes. Shared by reference between the threads that do it; erased when dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    lines: Option<Mutex<Instant>>,
}

const LINE_EVERY: Duration = Duration::from_secs(1);

impl Progress {
    /// Starts at zero of `total` bytes. `what` stands before the bar: `writing`, `loading`.
    pub(crate) fn start(mode: ProgressMode, what: impl Into<String>, total: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let (target, lines) = match (mode, terminal) {
            (ProgressMode::Never, _) | (ProgressMode::Auto, false) => (ProgressDrawTarget::hidden(), false),
            (_, true) => (ProgressDrawTarget::stderr_with_hz(15), false),
            (ProgressMode::Always, false) => (ProgressDrawTarget::hidden(), true),
        };
        let bar =
            ProgressBar::with_draw_target(Some(total), target).with_style(style()).with_prefix(what.into());
        Self { bar, lines: lines.then(|| Mutex::new(Instant::now())) }
    }

    /// What is being done now, to stand before the bar.
    pub(crate) fn say(&self, what: impl Into<String>) {
        self.bar.set_prefix(what.into());
    }

    /// Some more bytes are done.
    pub(crate) fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
        self.print_line();
    }

    /// So many bytes are done in all; for callbacks that count themselves.
    pub(crate) fn set(&self, done: u64, total: u64) {
        if self.bar.length() != Some(total) {
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
        self.print_line();
    }

    fn print_line(&self) {
        let Some(last) = &self.lines else { return };
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() >= LINE_EVERY {
            *last = Instant::now();
            self.write_line();
        }
    }

    fn write_line(&self) {
        let (done, total) = (self.bar.position(), self.bar.length().unwrap_or(0));
        // A reader that has gone away is no reason to stop the work.
        let _ = writeln!(
            std::io::stderr(),
            "{}: {} of {}, {} GB/s",
            self.bar.prefix(),
            sizes::bytes(done),
            sizes::bytes(total),
            sizes::gb_per_s(done, self.bar.elapsed().as_secs_f64()),
        );
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // Lines stay, so the last one says how it ended; a bar has served its purpose.
        if self.lines.is_some() {
            self.write_line();
        }
        self.bar.finish_and_clear();
    }
}

/// The bar. indicatif counts in powers of two or in its own roundings; the figures here are those of the results table.
fn style() -> ProgressStyle {
    let figures = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        let (done, total) = (state.pos(), state.len().unwrap_or(0));
        let _ = write!(
            out,
            "{} of {}  {} GB/s",
            sizes::bytes(done),
            sizes::bytes(total),
            sizes::gb_per_s(done, state.elapsed().as_secs_f64()),
        );
    };
    match ProgressStyle::with_template("{prefix} {bar:32.cyan/dim} {percent:>3}%  {figures}  {eta} left") {
        Ok(style) => style.progress_chars("━╸─").with_key("figures", figures),
        Err(_) => ProgressStyle::default_bar(),
    }
}
