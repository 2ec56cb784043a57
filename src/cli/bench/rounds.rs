//! Carrying out one case after the other: the cache as asked, a load in its process, the limits in this one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cuda_staging::{Device, DeviceSelector};
use gds_loader::bench::{
    self, Asked, Case, Lane, Limit, LimitKind, LimitRound, Machine, MemoryCopy, RawOptions, Round, Subject,
};
use gds_loader::source::Source;
use gds_loader::{CacheReport, DeviceReport};

use super::worker::{Loaded, Refusal, Settings, Worker};
use crate::cli::page_cache;

/// The files, the device and the processes.
#[derive(Debug)]
pub(super) struct Stand {
    pub(super) subject: Subject,
    pub(super) machine: Machine,
    pub(super) to_gpu: bool,
    /// Why nothing goes to a GPU, where it does not.
    pub(super) no_gpu: Option<String>,
    files: Vec<PathBuf>,
    device: DeviceSelector,
    workers: HashMap<Lane, Worker>,
    memory: Option<MemoryCopy>,
}

impl Stand {
    /// Opens the source and looks at the device, which this process lets go of again.
    pub(super) fn open(path: &Path, device: &DeviceSelector) -> anyhow::Result<Self> {
        let source = Source::open(path).map_err(gds_loader::Error::from)?;
        let files: Vec<PathBuf> = source.shards.iter().map(|shard| shard.path.clone()).collect();
        let opened = Device::open(device)?;
        let machine = Machine::of(files.first().map_or(path, PathBuf::as_path), &opened);
        let device = match opened.info().index {
            Some(index) => DeviceSelector::Cuda(index),
            None => DeviceSelector::Cpu,
        };
        let subject = Subject::new(
            path.to_path_buf(),
            files.len(),
            source.tensors.len(),
            source.bytes(),
            DeviceReport::of(&opened),
        );
        let to_gpu = opened.is_cuda();
        let no_gpu = (!to_gpu).then(|| match Device::cuda(0) {
            Ok(_) => "cuFile reads into the memory of a GPU, and the CPU was asked for".to_owned(),
            Err(cuda_staging::Error::Unavailable { reason }) => reason,
            Err(other) => other.to_string(),
        });
        Ok(Self { subject, machine, to_gpu, no_gpu, files, device, workers: HashMap::new(), memory: None })
    }

    /// Loads, in the process of the case's lane, which is started where there is none yet.
    pub(super) fn load(&mut self, case: Case, settings: Settings) -> Result<Loaded, Refusal> {
        let failed = |error: anyhow::Error| Refusal::Failed(format!("{error:#}"));
        // For the tensors, and for the page cache where the load fills it. Before the files are brought there, which this might push out.
        bench::take_and_give_back(self.subject.bytes.saturating_mul(2));
        if case.asked == Some(Asked::Warm) {
            page_cache::fill(self.files.iter().map(PathBuf::as_path)).map_err(failed)?;
        }
        self.worker(case.lane).map_err(failed)?.load(case, settings)
    }

    fn worker(&mut self, lane: Lane) -> anyhow::Result<&mut Worker> {
        match self.workers.entry(lane) {
            std::collections::hash_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::hash_map::Entry::Vacant(entry) => {
                Ok(entry.insert(Worker::start(lane, &self.subject.path, &self.device)?))
            }
        }
    }

    /// Measures a limit once; `by` is the lane whose process measures the link.
    pub(super) fn limit(&mut self, limit: LimitKind, by: Lane, round: usize) -> Result<LimitRound, String> {
        match limit {
            LimitKind::Memory => {
                let memory = match &mut self.memory {
                    Some(memory) => memory,
                    none => none.insert(MemoryCopy::prepare().map_err(|error| error.to_string())?),
                };
                Ok(LimitRound::of_copies(round, memory.measure()))
            }
            LimitKind::Link => {
                let bytes = self.subject.bytes.clamp(LEAST_LINK, MOST_LINK);
                let worker = self.worker(by).map_err(|error| format!("{error:#}"))?;
                let copies = worker.link(bytes).map_err(|refusal| refusal.reason().to_owned())?;
                Ok(LimitRound::of_copies(round, copies))
            }
            _ => {
                let report = bench::read(&self.files, &storage_reads(&self.machine))
                    .map_err(|error| error.to_string())?;
                LimitRound::of_reads(round, &report).ok_or_else(|| {
                    let held = report.cache.resident_before;
                    format!(
                        "the page cache could not be emptied of the files{}",
                        held.map_or_else(String::new, |share| format!(
                            ": it held {:.0}% of them",
                            share * 100.0
                        ))
                    )
                })
            }
        }
    }

    /// How a limit is measured, in words.
    pub(super) fn how(&self, limit: LimitKind) -> String {
        match limit {
            LimitKind::Memory => format!("memory copied to memory by {} cores", self.machine.cores),
            LimitKind::Link => "copies of 16 MiB from pinned memory to the GPU".to_owned(),
            _ => {
                let options = storage_reads(&self.machine);
                format!(
                    "direct reads of the same files, {} threads with up to {} of 4 MiB in flight each, into the same memory again",
                    options.threads, options.depth
                )
            }
        }
    }
}

/// Bytes of the link's measurement.
const LEAST_LINK: u64 = 64 << 20;
const MOST_LINK: u64 = 1 << 30;

/// The storage's limit: enough in flight for any drive, into memory that is reused, so that nothing but the reads takes time.
fn storage_reads(machine: &Machine) -> RawOptions {
    let mut options = RawOptions::new(Device::cpu());
    options.threads = machine.cores.clamp(2, 4);
    options.depth = 8;
    options
}

/// What the rounds of one limit gave.
#[derive(Debug, Default)]
pub(super) struct LimitRounds {
    pub(super) rounds: Vec<LimitRound>,
    pub(super) failure: Option<String>,
}

impl LimitRounds {
    pub(super) fn add(&mut self, measured: Result<LimitRound, String>) {
        match measured {
            Ok(round) => self.rounds.push(round),
            Err(reason) => self.failure = Some(reason),
        }
    }

    pub(super) fn into_limit(self, limit: LimitKind, how: String) -> Limit {
        Limit::of(limit, how, self.rounds, self.failure)
    }
}

/// What the rounds of one case gave.
#[derive(Debug, Default)]
pub(super) struct CaseRounds {
    pub(super) rounds: Vec<Round>,
    pub(super) failure: Option<String>,
}

impl CaseRounds {
    pub(super) fn add(&mut self, round: usize, case: &Case, loaded: Result<Loaded, Refusal>) {
        match loaded {
            Ok(loaded) => self.rounds.push(Round::of(round, case, &loaded.report)),
            Err(refusal) => {
                self.failure.get_or_insert_with(|| refusal.reason().to_owned());
            }
        }
    }
}

/// The shares before and after, in words: `0% -> 100%`.
pub(super) fn shares(cache: &CacheReport) -> String {
    let share = |share: Option<f64>| share.map_or_else(|| "?".to_owned(), crate::cli::sizes::percent);
    format!("{} → {}", share(cache.resident_before), share(cache.resident_after))
}
