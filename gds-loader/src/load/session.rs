//! One load from its opened source to its report.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use cuda_staging::{Device, Region, Toucher, limits};
use rayon::prelude::*;

use super::Loader;
use super::account::Clock;
use super::destination::Space;
use super::engine::Chosen;
use super::options::{Reads, Settled};
use crate::error::{Error, Result};
use crate::facts::{FileFacts, Places, Root, available_memory, last_level_cache};
use crate::format::Header;
use crate::manifest::{Check, Segment, Sums};
use crate::pipeline::{self, Measure, Touching, Work};
use crate::plan::{self, Cut, FileShape, Plan, Wanted};
use crate::policy::{Backend, CuFilePaths, Memory, Prefetch, Proof, ReadTuning, Route, Terms, windows};
use crate::report::LoadReport;
use crate::source::{Shard, ShardFile, Source, TensorRef};
use crate::threads::in_parallel;
use crate::transport::{PathKind, RegisteredBuffer};

/// A source whose files are on their paths.
pub(crate) struct Session {
    pub(super) path: PathBuf,
    headers: Vec<Header>,
    metadata: BTreeMap<String, String>,
    pub(super) chosen: Vec<TensorRef>,
    pub(super) not_indexed: usize,
    /// The files that have a chosen tensor.
    pub(super) routes: Vec<Route>,
    pub(super) facts: Vec<FileFacts>,
    /// For each shard its index in `routes`.
    file_of_shard: Vec<u32>,
    pub(super) backend: Backend,
    pub(super) cufile: CuFilePaths,
    memory: Memory,
    pub(super) clock: Clock,
}

/// What is to be done with an opened session.
pub(crate) struct Job<'a> {
    /// [`Session::wanted`].
    pub(crate) wanted: &'a [Wanted],
    /// Their places in the destination.
    pub(crate) offsets: &'a [u64],
    /// Whether bytes between tensors of the destination may be overwritten.
    pub(crate) gather: bool,
    pub(crate) device: &'a Device,
    pub(crate) loader: &'a Loader,
    /// How much of it is done.
    pub(crate) measure: Measure,
    /// What it is held against.
    pub(crate) check: Option<&'a Check>,
}

/// What a load leaves.
pub(crate) struct Loaded {
    pub(crate) headers: Vec<Header>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) chosen: Vec<TensorRef>,
    pub(crate) regions: Vec<Region>,
    pub(crate) report: LoadReport,
}

impl Session {
    /// Puts every file that has a chosen tensor on its path.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] where a file's path refuses it.
    pub(crate) fn open(
        source: Source,
        chosen: Vec<TensorRef>,
        device: &Device,
        loader: &Loader,
        mut clock: Clock,
    ) -> Result<Self> {
        let backend = loader.backend;
        let Source { path, shards, unindexed, metadata, .. } = source;
        let mut used = vec![false; shards.len()];
        chosen.iter().for_each(|tensor| used[tensor.shard as usize] = true);
        let (mut headers, mut files, mut file_of_shard) = (Vec::new(), Vec::new(), Vec::new());
        for (shard, used) in shards.into_iter().zip(used) {
            let Shard { path, file, header, modified } = shard;
            file_of_shard.push(files.len() as u32);
            if used {
                files.push((path, file, header.file_len, modified));
            }
            headers.push(header);
        }
        let cufile = CuFilePaths::open(backend, device, &path)?;
        let root = Root::system();
        let tensors = chosen
            .iter()
            .map(|tensor| headers[tensor.shard as usize].tensors[tensor.tensor as usize].len)
            .fold(0, u64::saturating_add);
        let pages = files.iter().map(|(_, _, len, _)| *len).fold(0, u64::saturating_add);
        let memory = Memory {
            needed: if device.is_cuda() { pages } else { pages.saturating_add(tensors) },
            available: available_memory(&root),
        };
        let terms =
            Terms { backend, cufile: &cufile, memory, share: !loader.apart, keep_pages: loader.keep_pages };
        let places = Places::new(root);
        let open = |(path, file, len, modified): &(PathBuf, ShardFile, u64, SystemTime)| {
            let facts = FileFacts::at(&*file.open_at(path)?, *len, &places);
            Ok((Route::open(path, file, Some(*modified), &facts, &terms)?, facts))
        };
        let opened: Result<Vec<(Route, FileFacts)>> = in_parallel(|| files.par_iter().map(open).collect());
        let (routes, facts) = opened?.into_iter().unzip();
        clock.lap(|stages| &mut stages.open_s);
        let not_indexed = unindexed.len();
        Ok(Self {
            path,
            headers,
            metadata,
            chosen,
            not_indexed,
            routes,
            facts,
            file_of_shard,
            backend,
            cufile,
            memory,
            clock,
        })
    }

    /// The chosen tensors as the planner knows them.
    pub(crate) fn wanted(&self) -> Vec<Wanted> {
        let wanted = |tensor: &TensorRef| {
            let entry = &self.headers[tensor.shard as usize].tensors[tensor.tensor as usize];
            Wanted {
                file: self.file_of_shard[tensor.shard as usize],
                offset: entry.offset,
                len: entry.len,
                alignment: entry.dtype.alignment(),
            }
        };
        self.chosen.iter().map(wanted).collect()
    }

    /// The remainder that direct reads need memory and file offset to share: the largest alignment in use, in bytes.
    pub(crate) fn congruence(&self) -> u64 {
        let page = limits::page_size() as u64;
        self.routes.iter().map(Route::direct_alignment).fold(page, u64::max)
    }

    /// Plans, carries the plan out and reports.
    pub(crate) fn run(mut self, job: &Job<'_>, space: Space) -> Result<Loaded> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let gds = self.routes.iter().any(Route::wants_windows);
        let compat = self.routes.iter().any(Route::reads_in_place);
        let engine = Chosen::of(job.loader.engine, &self.routes, job.measure, gds || compat)?;
        let batches = job.loader.batches && job.measure != Measure::Serial;
        let in_flight = match (gds, batches) {
            (false, _) if compat => Reads::Compat,
            (false, _) if engine == Chosen::Queue => Reads::Queue,
            (false, _) => Reads::Host,
            (true, false) => Reads::Threads,
            (true, true) => Reads::Batches,
        };
        let cache = job.device.is_cuda().then(|| last_level_cache(&Root::system())).flatten();
        let settled = job.loader.sizes.settle(
            limits::memory_limit(),
            &ReadTuning::for_files(&self.facts, cores, cache),
            in_flight,
        )?;
        let rule = self.rule(job, settled);
        let windows = self.windows(job.device, rule.read_size)?;
        let mut plan = self.plan(job, rule);
        let toucher = space.toucher();
        let (carved, mut parts) = space.carve(&plan.parts)?;
        if self.routes.iter().any(Route::is_shared) {
            parts.rotate_left(plan.begin_at(start_of_this_process()));
        }
        self.clock.lap(|stages| &mut stages.allocate_s);
        let settled = match job.measure {
            Measure::Serial => Settled { threads: 1, ..settled },
            _ => settled,
        };
        let (workers, ring) = settled.workers(&plan, windows.len());
        let window_bytes = windows.iter().map(RegisteredBuffer::len).sum();
        let sums = job.check.filter(|check| check.watches()).map(|_| Sums::new(segments(job.wanted)));
        let work = Work {
            plan: &plan,
            routes: &self.routes,
            device: job.device,
            workers,
            ring,
            on_progress: job.loader.on_progress.clone(),
            cancel: job.loader.cancel.clone(),
            batches: self.cufile.driver().filter(|_| gds && batches),
            queue: (engine == Chosen::Queue).then_some(settled.depth),
            after: job.loader.after.map(|stream| stream.pending(job.device)).transpose()?,
            measure: job.measure,
            touching: self.touching(job, toucher, plan.bytes, workers, cores),
            sums: sums.as_ref(),
        };
        // No copy of ours comes between the caller's work and reads that go straight into place.
        if compat && let Some(pending) = &work.after {
            pipeline::come_after(pending, &work.cancel, plan.bytes)?;
        }
        let proof = self.cufile.driver().filter(|_| gds).map(Proof::begin);
        let ahead = self.prefetch(&plan);
        let moved = pipeline::run(&work, parts, deal(windows, workers));
        let mut tally = moved.map_err(|error| with_copies_in_flight(job.device, error))?;
        drop(ahead);
        let gds = self.judge(proof, &mut tally, window_bytes)?;
        let by_host = [PathKind::Direct, PathKind::Buffered, PathKind::Mmap].iter();
        let engine = match by_host.map(|&kind| tally.paths.get(kind)).sum() {
            0_u64 => None,
            _ => Some(engine.report(job.loader.engine, &settled, workers, &tally.queues)?),
        };
        self.routes.iter().try_for_each(Route::check_unchanged)?;
        let regions = carved.reunite()?;
        job.device.health()?;
        in_parallel(|| self.routes.par_iter_mut().for_each(Route::leave_page_cache));
        let verify =
            |check: &Check| check.judge(&self.path, sums.as_ref(), job.device, || regions_of(job, &regions));
        let verified = job.check.map(verify).transpose()?;
        let time = self.clock.elapsed();
        let report = LoadReport { gds, engine, verified, ..self.report(job, &plan, &tally, time) };
        let Self { headers, metadata, chosen, routes, .. } = self;
        let fallbacks = routes.into_iter().flat_map(Route::into_fallbacks).collect();
        Ok(Loaded { headers, metadata, chosen, regions, report: LoadReport { fallbacks, ..report } })
    }

    fn rule(&self, job: &Job<'_>, settled: Settled) -> Cut {
        // Sectors larger than any known today make reads longer rather than wrong.
        let step = self.routes.iter().map(|route| route.transport().alignment()).fold(1, u64::max);
        let read_size = plan::align_up(settled.read_size, step);
        Cut {
            read_size,
            slot_size: settled.slot_size.max(read_size),
            straight: !job.device.is_cuda(),
            gather: job.gather && job.measure != Measure::CopyPerTensor,
            whole: job.measure == Measure::CopyPerTensor,
        }
    }

    fn plan(&self, job: &Job<'_>, rule: Cut) -> Plan {
        // What is not read needs no alignment, which would cut tensors.
        let (apart, read) = (job.measure == Measure::CopyPerTensor, job.measure.reads());
        let alignment = |route: &Route| if read { route.transport().alignment() } else { 1 };
        let shape = |route: &Route| FileShape { len: route.len(), alignment: alignment(route) };
        let shapes: Vec<FileShape> = self.routes.iter().map(shape).collect();
        let runs = if apart { plan::runs_apart } else { plan::runs };
        plan::cut(&runs(job.wanted, job.offsets), &shapes, rule)
    }

    /// Who touches the destination ahead of the reads: cores that are not busy copying out of the page cache.
    fn touching(
        &self,
        job: &Job<'_>,
        toucher: Option<Toucher>,
        bytes: u64,
        workers: usize,
        cores: usize,
    ) -> Option<Touching> {
        let overlaps = matches!(job.measure, Measure::Pipelined | Measure::ReadAlone);
        let all_direct = self.routes.iter().all(|route| route.transport().kind() == PathKind::Direct);
        let reading = if all_direct { 0 } else { workers };
        Touching::new(toucher.filter(|_| overlaps), bytes, cores, reading, limits::memory_limit())
    }

    /// Brings what the plan reads into the page cache, where it asks for that and not all of it is there.
    fn prefetch(&self, plan: &Plan) -> Option<Prefetch> {
        if self.backend != Backend::Prefetch || self.no_prefetch().is_some() {
            return None;
        }
        let stretch = |piece: &plan::Piece| {
            let route = &self.routes[piece.file as usize];
            Some((Arc::clone(route.file().as_kept()?), piece.extent.start..piece.extent.end.min(route.len())))
        };
        let step = self.routes.iter().filter_map(Route::read_ahead).min()?;
        Some(Prefetch::start(plan.pieces.iter().filter_map(stretch).collect(), step))
    }

    /// Why nothing is brought into the page cache ahead of the reads.
    pub(super) fn no_prefetch(&self) -> Option<String> {
        if !self.memory.fits() {
            return Some(self.memory.shortage());
        }
        let stay_open = self.routes.iter().all(|route| route.file().as_kept().is_some());
        (!stay_open).then(|| "there are too few descriptors for all files to stay open".into())
    }

    /// Window slots for the files whose path wants them. Where none can be registered, these files leave that path.
    fn windows(&self, device: &Device, slot_len: u64) -> Result<Vec<RegisteredBuffer>> {
        let mut wanting = self.routes.iter().filter(|route| route.wants_windows()).peekable();
        let (Some(driver), true) = (self.cufile.driver(), wanting.peek().is_some()) else {
            return Ok(Vec::new());
        };
        match windows(driver, device, slot_len) {
            Ok(windows) => Ok(windows),
            Err(error) => {
                let reason = format!("registering a window: {error}");
                wanting.try_for_each(|route| route.leave(&reason)).map(|()| Vec::new())
            }
        }
    }
}

/// Where in its plan this process begins, as a share of it, when others load the same files: each elsewhere, so that
/// together they read all of it once, and not the same parts at the same time. Numbers of processes that are close together
/// give places that are far apart: multiples of the golden ratio are.
fn start_of_this_process() -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    (f64::from(std::process::id()) * GOLDEN).fract()
}

/// The bytes of each tensor that is loaded.
fn segments(wanted: &[Wanted]) -> Vec<Segment> {
    let segment = |&Wanted { file, offset, len, .. }: &Wanted| Segment { file, offset, len };
    wanted.iter().map(segment).collect()
}

/// Where each tensor is: in the one region of a load to memory of our own, in its own of the caller's else.
fn regions_of(job: &Job<'_>, regions: &[Region]) -> Result<Vec<Region>> {
    match regions {
        [whole] if job.gather => {
            let places = job.wanted.iter().zip(job.offsets);
            let regions = places.map(|(tensor, &at)| whole.slice(at..at + tensor.len));
            Ok(regions.collect::<Result<_, _>>()?)
        }
        each => Ok(each.to_vec()),
    }
}

/// Deals window slots to workers, as evenly as they go.
/// The failure of a load, as one of the device where copies may be in flight after it: that is what tells the owner of the memory to keep
/// it, whatever failed first.
fn with_copies_in_flight(device: &Device, error: Error) -> Error {
    match (device.health(), error) {
        (_, error @ Error::Device(_)) | (Ok(()), error) => error,
        (Err(cuda_staging::Error::Poisoned { device, first }), error) => {
            let first = format!("{first}; before that the load had failed: {error}");
            Error::Device(cuda_staging::Error::Poisoned { device, first })
        }
        (Err(device), _) => Error::Device(device),
    }
}

fn deal(windows: Vec<RegisteredBuffer>, workers: usize) -> Vec<Vec<RegisteredBuffer>> {
    let mut hands: Vec<Vec<RegisteredBuffer>> = (0..workers).map(|_| Vec::new()).collect();
    for (index, window) in windows.into_iter().enumerate() {
        hands[index % workers].push(window);
    }
    hands
}
