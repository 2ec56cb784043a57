//! The way back: tensors from memory to files.
//!
//! [`Saver`] is the front door. It is the pipeline of a load reversed: the same slots, the same paths, the same rule that nothing is
//! visible before it is whole. Beneath it:
//!
//! - `session`: one save from its tensors to its report. `layout`, pure: which tensor goes where. `tensors`: what is saved.
//! - `write`: moves bytes through slots and windows into temporary files; which path, which fallback.
//! - `durable`: makes these the checkpoint, at once and whole; every system call of it goes through one seam.
//! - `asynchronous`, `snapshot`: saving while the caller goes on.
//!
//! How durable durable is, and what it costs, is in `docs/saving.md`.

mod asynchronous;
mod durable;
mod error;
mod layout;
mod options;
mod report;
mod session;
mod snapshot;
mod tensors;
#[cfg(test)]
mod tests;
mod write;

use std::convert::Infallible;
use std::ffi::c_void;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

pub use asynchronous::{SAVING_DROP_LIMIT, Saving};
pub use durable::{Durability, PublishError, Synced};
pub use error::SaveError;
pub use report::{SaveReport, SaveStages};
pub use tensors::{SaveTensor, TensorBytes};

use crate::format::HeaderLimits;
use crate::model::Model;
use crate::pipeline::{CallerStream, CancelToken, Progress};
use crate::policy::Backend;
use options::Options;
use session::{Session, Taken};
use write::Held;

/// Saves tensors. Built once, used for any number of saves, from any number of threads.
///
/// A path that ends in a file is one safetensors file. With [`Saver::shard_size`], or where the path is a folder, it is a set: shards
/// and their `model.safetensors.index.json` in that folder. Either way what was there is replaced, at once, when all is written and
/// synced, and not before.
///
/// ```no_run
/// use gds_loader::{Loader, Saver};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = Loader::new().load("/models/llama")?;
/// let report = Saver::new().save_model(&model, "/checkpoints/llama.safetensors")?;
/// println!("{:.2} GB/s, {:?}", report.gb_per_s, report.synced);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Saver {
    options: Options,
    snapshot: bool,
}

impl Saver {
    /// A saver with every choice left to it: one file, the best path for it, synced to the disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes this path (gds, direct or buffered), or the best one for each file.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.options.backend = backend;
        self
    }

    /// What a save waits for before it returns.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.options.durability = durability;
        self
    }

    /// Saves a set of shards of at most `bytes` bytes of tensors each. A tensor larger than that gets a shard of its own.
    #[must_use]
    pub fn shard_size(mut self, bytes: u64) -> Self {
        self.options.shard_size = Some(bytes);
        self
    }

    /// Writes these entries as every file's `__metadata__`; those given before are kept where their keys differ.
    #[must_use]
    pub fn metadata<K: Into<String>, V: Into<String>>(
        mut self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.options.metadata.extend(entries.into_iter().map(|(key, value)| (key.into(), value.into())));
        self
    }

    /// Holds another limit than readers' usual one (100,000,000 bytes) for headers.
    #[must_use]
    pub fn header_limits(mut self, limits: HeaderLimits) -> Self {
        self.options.limits = limits;
        self
    }

    /// Writes with so many threads.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.options.threads = Some(threads);
        self
    }

    /// Uses so many slots in all.
    #[must_use]
    pub fn slots(mut self, slots: usize) -> Self {
        self.options.slots = Some(slots);
        self
    }

    /// Uses slots of `bytes` bytes, a multiple of 4096: what is written in one go.
    #[must_use]
    pub fn slot_size(mut self, bytes: u64) -> Self {
        self.options.slot_size = Some(bytes);
        self
    }

    /// Has [`Saver::start`] copy all tensors within their device first, memory permitting, so that they come back at once.
    #[must_use]
    pub fn snapshot(mut self, snapshot: bool) -> Self {
        self.snapshot = snapshot;
        self
    }

    /// Calls `callback` after each write, from the worker threads: it must be quick.
    #[must_use]
    pub fn on_progress(mut self, callback: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.options.on_progress = Some(Arc::new(callback));
        self
    }

    /// Stops when `token` is cancelled, with [`SaveError::Cancelled`] and nothing of the save left.
    #[must_use]
    pub fn cancel(mut self, token: CancelToken) -> Self {
        self.options.cancel = token;
        self
    }

    /// Reads no tensor before the work pending on this CUDA stream (`CUstream`; null is the default stream) has ended: the
    /// kernels and copies that still write them, on their device or in host memory. However long that takes: only [`Saver::cancel`]
    /// ends the wait sooner, and leaves the device as it was. Where no tensor is on a device, a save is refused.
    ///
    /// # Safety
    /// - `stream` is null or a live stream of the tensors' device until the saves of this saver have ended, those in the background
    ///   too.
    #[must_use]
    pub unsafe fn after_stream(mut self, stream: *mut c_void) -> Self {
        self.options.after = Some(CallerStream(stream));
        self
    }

    /// Refuses what could be saved at `path` by nobody: options that cannot be meant, a path that a loader would not read back. A save
    /// does the same first; this is for those who have something long to do before it.
    ///
    /// # Errors
    /// [`SaveError::Option`].
    pub fn check(&self, path: impl AsRef<Path>) -> Result<(), SaveError> {
        self.options.check(path.as_ref())
    }

    /// Saves `tensors` at `path`, and returns when they are there and as durable as was asked for. Memory that was moved in is freed.
    ///
    /// # Errors
    /// See [`SaveError`]. What was at `path` before is there still, but after [`PublishError::Unsynced`].
    pub fn save<'a>(
        &self,
        tensors: impl IntoIterator<Item = SaveTensor<'a>>,
        path: impl AsRef<Path>,
    ) -> Result<SaveReport, SaveError> {
        let (tensors, _lent) = session::take(tensors.into_iter().collect())?;
        Session::lay_out(&self.options, Held::new(tensors).0, path.as_ref())?.carry_out()
    }

    /// Saves all tensors of a model, with its metadata; entries of the saver's own come before the model's.
    ///
    /// # Errors
    /// As for [`Saver::save`].
    pub fn save_model(&self, model: &Model, path: impl AsRef<Path>) -> Result<SaveReport, SaveError> {
        let own = self.options.metadata.clone();
        self.clone()
            .metadata(model.metadata().clone())
            .metadata(own)
            .save(model.tensors().map(SaveTensor::from), path)
    }

    /// Starts to save `tensors` at `path` and returns. Every error is told by [`Saving::finish`].
    ///
    /// Memory that is moved in comes back from [`Saving::wait_staged`], whether or not the save succeeds: when all bytes are on
    /// their way to the file, or, with [`Saver::snapshot`], at once.
    pub fn start(
        &self,
        tensors: impl IntoIterator<Item = SaveTensor<'static>>,
        path: impl AsRef<Path>,
    ) -> Saving {
        let (still, running) = mpsc::channel();
        // Not to be had for memory that cannot be carved, which there is not.
        let (tensors, lent) = match session::take(tensors.into_iter().collect()) {
            Ok((tensors, lent)) => (Ok(tensors), lent),
            Err(error) => (Err(error), Vec::new()),
        };
        let (tensors, staged) = Held::new(tensors);
        let thread =
            tensors.try_map(|tensors| tensors).and_then(|tensors| self.spawn(tensors, path.as_ref(), still));
        Saving { thread: Some(thread), running, staged, lent }
    }

    /// Carries a save out in a thread of its own, which drops `still` at its end.
    fn spawn(
        &self,
        tensors: Held<Vec<Taken<'static>>>,
        path: &Path,
        still: Sender<Infallible>,
    ) -> Result<JoinHandle<Result<SaveReport, SaveError>>, SaveError> {
        let mut session = Session::lay_out(&self.options, tensors, path)?;
        if self.snapshot {
            session = session.snapshot()?;
        }
        let carry_out = move || {
            let _still = still;
            session.carry_out()
        };
        let spawned = thread::Builder::new().name("gds-save".to_owned()).spawn(carry_out);
        spawned.map_err(|error| SaveError::Worker { reason: error.to_string() })
    }
}

impl fmt::Debug for Saver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Saver")
            .field("backend", &self.options.backend)
            .field("durability", &self.options.durability)
            .field("shard_size", &self.options.shard_size)
            .field("metadata", &self.options.metadata)
            .field("snapshot", &self.snapshot)
            .finish_non_exhaustive()
    }
}
