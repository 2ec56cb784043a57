//! The processes that load: one for each path and engine, alive over all rounds.

use std::time::Instant;

use anyhow::Context as _;
use cuda_staging::{Device, DeviceSelector};
use gds_loader::bench::{self, Asked, Case, Copies, Lane};
use gds_loader::cufile::{Driver, Mode};
use gds_loader::{Backend, LoadReport, Loader, Measure, PathKind};
use serde::{Deserialize, Serialize};

use super::WorkerArguments;
use crate::cli::child::{self, Child, Words};

/// Sizes that a load may be told; the loader chooses what is not said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) threads: Option<usize>,
    pub(super) slots: Option<usize>,
    pub(super) slot_size: Option<u64>,
    pub(super) read_size: Option<u64>,
    pub(super) depth: Option<usize>,
}

impl Settings {
    fn apply(self, mut loader: Loader) -> Loader {
        if let Some(threads) = self.threads {
            loader = loader.threads(threads);
        }
        if let Some(slots) = self.slots {
            loader = loader.slots(slots);
        }
        if let Some(bytes) = self.slot_size {
            loader = loader.slot_size(bytes);
        }
        if let Some(bytes) = self.read_size {
            loader = loader.read_size(bytes);
        }
        if let Some(depth) = self.depth {
            loader = loader.depth(depth);
        }
        loader
    }
}

/// What a worker is asked.
#[derive(Debug, Serialize, Deserialize)]
enum Question {
    /// To load.
    Load { case: Case, settings: Settings },
    /// To copy so many bytes from pinned memory to the device, again and again.
    Link { bytes: u64 },
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Loaded(Box<Loaded>),
    Copied(Copies),
    /// What was asked for is not available here, for this reason.
    Unavailable(String),
    /// It failed, for this reason.
    Failed(String),
}

/// A load, and what the process has paid so far.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Loaded {
    pub(super) report: LoadReport,
    /// Seconds to open the device.
    pub(super) device_s: f64,
    /// Seconds to open cuFile's driver, where it is used.
    pub(super) cufile_s: Option<f64>,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    /// What was asked for is not available here.
    Unavailable(String),
    /// It failed, or the process died.
    Failed(String),
}

impl Refusal {
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::Unavailable(reason) | Self::Failed(reason) => reason,
        }
    }
}

/// A process that loads `path` by one path.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    /// Once it has died, why.
    dead: Option<String>,
}

impl Worker {
    pub(super) fn start(lane: Lane, path: &std::path::Path, device: &DeviceSelector) -> anyhow::Result<Self> {
        let device = device.to_string();
        let arguments = ["bench-worker".as_ref(), "--device".as_ref(), device.as_ref(), path.as_os_str()];
        let child = Child::start(format!("loads by {lane}"), arguments, Words::Kept)?;
        Ok(Self { child, dead: None })
    }

    pub(super) fn load(&mut self, case: Case, settings: Settings) -> Result<Loaded, Refusal> {
        match self.ask(&Question::Load { case, settings })? {
            Answer::Loaded(loaded) => Ok(*loaded),
            other => Err(refusal(other)),
        }
    }

    pub(super) fn link(&mut self, bytes: u64) -> Result<Copies, Refusal> {
        match self.ask(&Question::Link { bytes })? {
            Answer::Copied(copies) => Ok(copies),
            other => Err(refusal(other)),
        }
    }

    fn ask(&mut self, question: &Question) -> Result<Answer, Refusal> {
        if let Some(reason) = &self.dead {
            return Err(Refusal::Failed(reason.clone()));
        }
        self.child.ask(question).map_err(|error| {
            let reason = format!("{error:#}");
            self.dead = Some(reason.clone());
            Refusal::Failed(reason)
        })
    }
}

fn refusal(answer: Answer) -> Refusal {
    match answer {
        Answer::Unavailable(reason) => Refusal::Unavailable(reason),
        Answer::Failed(reason) => Refusal::Failed(reason),
        Answer::Loaded(_) | Answer::Copied(_) => Refusal::Failed("it answered something else".into()),
    }
}

/// What the process does.
pub(super) fn serve(arguments: &WorkerArguments) -> anyhow::Result<()> {
    let start = Instant::now();
    let device = Device::open(&arguments.device)?;
    let device_s = start.elapsed().as_secs_f64();
    child::serve(|question: Question| {
        let answer = match question {
            Question::Load { case, settings } => load(arguments, &device, case, settings).map(|report| {
                Answer::Loaded(Box::new(Loaded {
                    report,
                    device_s,
                    cufile_s: opening_of_cufile(case.lane.path),
                }))
            }),
            Question::Link { bytes } => bench::pinned_copies(&device, bytes).map(Answer::Copied),
        };
        Ok(answer.unwrap_or_else(|error| match error {
            gds_loader::Error::Unavailable { reason, .. } => Answer::Unavailable(reason),
            other => Answer::Failed(other.to_string()),
        }))
    })
    .context("a benchmark's worker")
}

fn load(
    arguments: &WorkerArguments,
    device: &Device,
    case: Case,
    settings: Settings,
) -> gds_loader::Result<LoadReport> {
    let mut loader = settings.apply(
        Loader::new()
            .device(device.clone())
            .backend(Backend::Only(case.lane.path))
            .cold(case.asked == Some(Asked::Cold)),
    );
    if let Some(engine) = case.lane.engine {
        loader = loader.engine(engine);
    }
    match case.measure {
        // The load itself, and not something like it.
        Measure::Pipelined => Ok(loader.load(&arguments.path)?.report().clone()),
        part => loader.measure(&arguments.path, part),
    }
}

/// How long opening cuFile's driver took, which a load by it has opened.
fn opening_of_cufile(path: PathKind) -> Option<f64> {
    let mode = match path {
        PathKind::Gds => Mode::Direct,
        PathKind::GdsCompat => Mode::Compat,
        PathKind::Direct | PathKind::Buffered | PathKind::Mmap => return None,
    };
    Driver::open(mode).ok().map(|driver| driver.opened_in().as_secs_f64())
}
