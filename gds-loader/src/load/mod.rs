//! The front door: a model's files in, tensors in device memory out.

mod account;
mod destination;
mod engine;
mod options;
mod select;
mod session;

use std::ffi::c_void;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use cuda_staging::{Device, DeviceSelector};

use crate::error::{Error, Result};
use crate::facts;
use crate::manifest::{Check, Manifest, ManifestMode};
use crate::model::Model;
use crate::pipeline::{CallerStream, CancelToken, Measure, OnProgress, Progress};
use crate::plan::{self, LayoutRule};
use crate::policy::Backend;
use crate::report::LoadReport;
use crate::source::{Expected, Source, TensorRef};
use crate::transport::Engine;

pub use destination::Destination;
pub(crate) use session::Loaded;

use account::Clock;
use destination::Space;
use options::{EXTENT_STEP, Sizes};
use select::Selection;
use session::{Job, Session};

/// Alignment of every tensor on a GPU, in bytes: what cuMemAlloc itself promises and vectorised kernels rely on.
const GPU_ALIGNMENT: u64 = 256;

/// Loads models. Built once, used for any number of loads, from any number of threads.
///
/// ```no_run
/// use gds_loader::Loader;
///
/// # fn main() -> Result<(), gds_loader::Error> {
/// let model = Loader::new().load("/models/llama")?;
/// let weight = model.get("lm_head.weight").map(|tensor| (tensor.device_address(), tensor.shape().to_vec()));
/// println!("{weight:?}, {:.2} GB/s", model.report().gb_per_s);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Loader {
    device: Option<Device>,
    backend: Backend,
    engine: Engine,
    selection: Option<Selection>,
    expected: Vec<Expected>,
    sizes: Sizes,
    alignment: Option<u64>,
    cold: bool,
    apart: bool,
    keep_pages: bool,
    batches: bool,
    on_progress: Option<OnProgress>,
    cancel: CancelToken,
    after: Option<CallerStream>,
    manifest: Option<(Arc<Manifest>, ManifestMode)>,
}

impl Loader {
    /// A loader with every choice left to it: the first CUDA device, else the CPU; the best path for each file; all tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Loads to `device`.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.device = Some(device);
        self
    }

    /// Takes this path, or the best one for each file.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Loads only the tensors whose name matches one of `patterns`: globs in which `*` also matches dots.
    ///
    /// # Errors
    /// [`Error::Option`] for a pattern that is no glob. One that matches no tensor is an error of the load.
    pub fn tensors<P: AsRef<str>>(mut self, patterns: impl IntoIterator<Item = P>) -> Result<Self> {
        self.selection = Selection::new(patterns)?;
        Ok(self)
    }

    /// Checks before any data moves that these tensors are there, of this type and shape.
    #[must_use]
    pub fn expect(mut self, expected: Vec<Expected>) -> Self {
        self.expected = expected;
        self
    }

    /// Reads with so many threads.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.sizes.threads = Some(threads);
        self
    }

    /// Who keeps direct reads in flight.
    #[must_use]
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Keeps so many direct reads in flight for each reading thread, instead of as many as turn out to be fast. Where threads
    /// read, each waits for one, and there are so many times more of them.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Self {
        self.sizes.depth = Some(depth);
        self
    }

    /// Uses so many slots in all.
    #[must_use]
    pub fn slots(mut self, slots: usize) -> Self {
        self.sizes.slots = Some(slots);
        self
    }

    /// Uses slots of `bytes` bytes.
    #[must_use]
    pub fn slot_size(mut self, bytes: u64) -> Self {
        self.sizes.slot_size = Some(bytes);
        self
    }

    /// Reads at most `bytes` bytes in one go: a multiple of 4096.
    #[must_use]
    pub fn read_size(mut self, bytes: u64) -> Self {
        self.sizes.read_size = Some(bytes);
        self
    }

    /// Aligns every tensor to at least `bytes` bytes, a power of two. On a GPU 256 is the least.
    #[must_use]
    pub fn alignment(mut self, bytes: u64) -> Self {
        self.alignment = Some(bytes);
        self
    }

    /// Drops the files' pages from the page cache before the clock starts. The report says whether that worked.
    #[must_use]
    pub fn cold(mut self, cold: bool) -> Self {
        self.cold = cold;
        self
    }

    /// Whether files that other processes of this machine load at the same time are read through the page cache, so that the
    /// storage reads them once for all: so by default, where they fit into memory. Only the path of `auto` heeds it, and
    /// other loads learn of this one only where it shares.
    #[must_use]
    pub fn share(mut self, share: bool) -> Self {
        self.apart = !share;
        self
    }

    /// Leaves in the page cache what this load brought there. Otherwise what a path of `auto`'s choice brought there is dropped in
    /// the end, while what was there before stays; a path that was asked for leaves all of it.
    #[must_use]
    pub fn keep_pages(mut self, keep: bool) -> Self {
        self.keep_pages = keep;
        self
    }

    /// Keeps reads by GPUDirect Storage in flight by cuFile's batches, one thread for all, instead of one thread for each.
    #[must_use]
    pub fn cufile_batches(mut self, batches: bool) -> Self {
        self.batches = batches;
        self
    }

    /// Calls `callback` after each piece, from the worker threads: it must be quick.
    #[must_use]
    pub fn on_progress(mut self, callback: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.on_progress = Some(Arc::new(callback));
        self
    }

    /// Holds what is loaded against `manifest`, and fails with [`Error::Manifest`] where anything differs: then nothing of the load is
    /// visible, except what [`Loader::load_into`] wrote to the caller's memory. The report says what was proven.
    #[must_use]
    pub fn manifest(mut self, manifest: impl Into<Arc<Manifest>>, mode: ManifestMode) -> Self {
        self.manifest = Some((manifest.into(), mode));
        self
    }

    /// Stops when `token` is cancelled, with [`Error::Cancelled`] and nothing of the load visible.
    #[must_use]
    pub fn cancel(mut self, token: CancelToken) -> Self {
        self.cancel = token;
        self
    }

    /// Writes no destination before the work pending on this CUDA stream (`CUstream`; null is the default stream) has
    /// ended. For [`Loader::load_into`] with memory that kernels may still use. However long that takes: only
    /// [`Loader::cancel`] ends the wait sooner, and leaves the device as it was.
    ///
    /// # Safety
    /// - `stream` is null or a live stream of the load's device until the loads of this loader have returned.
    #[must_use]
    pub unsafe fn after_stream(mut self, stream: *mut c_void) -> Self {
        self.after = Some(CallerStream(stream));
        self
    }

    /// Loads the model at `path`: a file, a folder, an index, a Hugging Face snapshot.
    ///
    /// Returns when every byte is there. The memory is the model's and lives until it and every tensor of it are gone.
    ///
    /// # Errors
    /// See [`Error`]. After an error nothing of the load is left.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Model> {
        let (device, loaded, offsets) = self.carry_out(path.as_ref(), Measure::Pipelined)?;
        Model::new(device, loaded, offsets)
    }

    /// Does as much of a load as `measure` says, and gives back nothing but the report: bytes are those that were read, or
    /// copied where nothing was read; paths count what was read.
    ///
    /// # Errors
    /// Those of [`Loader::load`].
    pub fn measure(&self, path: impl AsRef<Path>, measure: Measure) -> Result<LoadReport> {
        self.carry_out(path.as_ref(), measure).map(|(_, loaded, _)| loaded.report)
    }

    /// Does as much of a load to memory of our own as `measure` says; where each tensor lies, too.
    fn carry_out(&self, path: &Path, measure: Measure) -> Result<(Device, Loaded, Vec<u64>)> {
        self.drop_pages_if_cold(path)?;
        let mut clock = Clock::start();
        let source = Source::open(path)?;
        let chosen = select::choose(&source, &self.expected, self.selection.as_ref())?;
        let whole = measure.reads() && measure.copies();
        let check = if whole { self.check(&source, &chosen)? } else { None };
        clock.lap(|stages| &mut stages.parse_s);
        let device = self.chosen_device()?;
        self.check_stream(&device)?;
        let session = Session::open(source, chosen, &device, self, clock)?;
        let alignment = self.alignment_on(&device)?;
        let congruence = session.congruence();
        let (rule, base) = if device.is_cuda() {
            (LayoutRule { alignment, congruence: 1 }, alignment)
        } else {
            (LayoutRule { alignment, congruence }, congruence)
        };
        let wanted = session.wanted();
        let layout = plan::lay_out(&wanted, rule);
        let space = Space::of_one(device.allocate(layout.len, base)?);
        let offsets = &layout.offsets;
        let check = check.as_ref();
        let job =
            Job { wanted: &wanted, offsets, gather: true, device: &device, loader: self, measure, check };
        let loaded = session.run(&job, space)?;
        Ok((device, loaded, layout.offsets))
    }

    /// Loads tensors of the model at `path` into memory of the caller's: exactly those that have a destination.
    ///
    /// Returns when every byte is there; after an error their contents are unspecified.
    ///
    /// # Errors
    /// [`Error::Destination`] for a name that is not in the model, that comes twice, or whose memory is of another device or
    /// of another length; [`Error::Option`] where the loader was given another device; else see [`Error`].
    pub fn load_into(
        &self,
        path: impl AsRef<Path>,
        destinations: Vec<Destination<'_>>,
    ) -> Result<LoadReport> {
        let path = path.as_ref();
        self.drop_pages_if_cold(path)?;
        let mut clock = Clock::start();
        let source = Source::open(path)?;
        let (chosen, regions) = select::match_destinations(&source, &self.expected, destinations)?;
        let check = self.check(&source, &chosen)?;
        clock.lap(|stages| &mut stages.parse_s);
        let device = match (regions.first(), &self.device) {
            (Some(region), Some(chosen)) if region.device().info() != chosen.info() => {
                let reason = format!(
                    "the destinations are memory of {:?}, the loader was given {chosen:?}",
                    region.device()
                );
                return Err(Error::Option { option: "device", reason });
            }
            (Some(region), _) => region.device().clone(),
            (None, _) => self.chosen_device()?,
        };
        self.check_stream(&device)?;
        let session = Session::open(source, chosen, &device, self, clock)?;
        let wanted = session.wanted();
        let space = Space::of_many(regions, session.congruence());
        let offsets = space.offsets();
        let (gather, measure, check) = (false, Measure::Pipelined, check.as_ref());
        let job =
            Job { wanted: &wanted, offsets: &offsets, gather, device: &device, loader: self, measure, check };
        Ok(session.run(&job, space)?.report)
    }

    fn check(&self, source: &Source, chosen: &[TensorRef]) -> Result<Option<Check>> {
        let prepare = |(manifest, mode): &(Arc<Manifest>, ManifestMode)| {
            Check::prepare(manifest, *mode, source, chosen)
        };
        self.manifest.as_ref().map(prepare).transpose()
    }

    fn chosen_device(&self) -> Result<Device> {
        match &self.device {
            Some(device) => Ok(device.clone()),
            None => Ok(Device::open(&DeviceSelector::Auto)?),
        }
    }

    fn check_stream(&self, device: &Device) -> Result<()> {
        if self.after.is_none() || device.is_cuda() {
            return Ok(());
        }
        let reason = "the load goes to the CPU, which has no streams to wait for".into();
        Err(Error::Option { option: "after-stream", reason })
    }

    fn alignment_on(&self, device: &Device) -> Result<u64> {
        let alignment = self.alignment.unwrap_or(1);
        if !alignment.is_power_of_two() || alignment > EXTENT_STEP {
            let reason = format!("{alignment} is not a power of two up to {EXTENT_STEP}");
            return Err(Error::Option { option: "alignment", reason });
        }
        Ok(if device.is_cuda() { alignment.max(GPU_ALIGNMENT) } else { alignment })
    }

    fn drop_pages_if_cold(&self, path: &Path) -> Result<()> {
        if !self.cold {
            return Ok(());
        }
        for shard in &Source::open(path)?.shards {
            if let Err(error) = shard.file.open().and_then(|file| facts::evict(&file)) {
                tracing::warn!(path = %shard.path.display(), %error, "its pages could not be dropped");
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("device", &self.device)
            .field("backend", &self.backend)
            .field("tensors", &self.selection)
            .field("sizes", &self.sizes)
            .field("cold", &self.cold)
            .finish_non_exhaustive()
    }
}
