//! One save from its tensors to its report.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use cuda_staging::{Device, Pending, RegionMut};

use super::asynchronous::Lent;
use super::durable::{self, Kernel, Publication, System, Target};
use super::error::SaveError;
use super::layout::{self, INDEX_NAME};
use super::options::Options;
use super::report::{SaveReport, SaveStages};
use super::snapshot;
use super::tensors::{Origin, SaveTensor};
use super::write::{self, Bytes, Held, Image, Route, Tally, Work};
use crate::cufile::RegisteredBuffer;
use crate::error::Error;
use crate::format::write::{NewTensor, header};
use crate::format::{Dtype, Name, Shape, WriteFault};
use crate::policy::{Backend, CuFilePaths, Verdict, WriteProof, windows};
use crate::report::{DeviceReport, GdsProof, GdsReport, Intervals, gb_per_s};
use crate::transport::PathKind;

/// What a tensor is called and looks like, and its bytes.
pub(super) struct Taken<'a> {
    name: Box<str>,
    dtype: Dtype,
    shape: Shape,
    bytes: Bytes<'a>,
}

impl Taken<'_> {
    /// The CUDA device it is on, if any.
    fn device(&self) -> Option<&Device> {
        match &self.bytes {
            Bytes::Region(region) => Some(region.device()).filter(|device| device.is_cuda()),
            Bytes::Host(_) => None,
        }
    }
}

/// Takes tensors apart into what is saved and what is to be handed back afterwards.
///
/// # Errors
/// None for regions that are what they say.
pub(super) fn take(tensors: Vec<SaveTensor<'_>>) -> Result<(Vec<Taken<'_>>, Vec<Lent>), SaveError> {
    let (mut taken, mut lent) = (Vec::with_capacity(tensors.len()), Vec::new());
    for SaveTensor { name, dtype, shape, bytes } in tensors {
        let bytes = match bytes.0 {
            Origin::Shared(region) => Bytes::Region(region),
            Origin::Borrowed(bytes) => Bytes::Host(bytes),
            Origin::Lent(region) => {
                // All of it is one part, which is frozen; the whole comes back when every trace of the part is gone.
                let all = 0..region.len();
                let (whole, parts) = region.carve(std::slice::from_ref(&all))?;
                lent.push(Lent { name: name.clone(), whole });
                let part = parts.into_iter().next().map(RegionMut::freeze);
                Bytes::Region(part.unwrap_or_else(|| RegionMut::from_vec(Vec::new()).freeze()))
            }
        };
        taken.push(Taken { name, dtype, shape, bytes });
    }
    Ok((taken, lent))
}

/// A save whose files are laid out. Nothing has been created yet.
pub(super) struct Session<'a> {
    options: Options,
    path: PathBuf,
    device: Device,
    tensors: usize,
    bytes: u64,
    /// Of each file, its header and its tensors' bytes.
    images: Held<Vec<Image<'a>>>,
    /// Of each file, its length in bytes.
    lens: Vec<u64>,
    /// The shards' names; `None` for a single file.
    shards: Option<Vec<String>>,
    /// Each tensor's name with the position of its file.
    places: Vec<(Box<str>, usize)>,
    start: Instant,
    stages: SaveStages,
    /// Work of the caller's that may still write the tensors.
    after: Option<Pending>,
}

impl<'a> Session<'a> {
    /// Checks everything that can be checked, and lays the files out.
    ///
    /// # Errors
    /// What cannot be meant or cannot be written: see [`SaveError`].
    pub(super) fn lay_out(
        options: &Options,
        held: Held<Vec<Taken<'a>>>,
        path: &Path,
    ) -> Result<Self, SaveError> {
        let start = Instant::now();
        options.check(path)?;
        let tensors = held.get();
        let is_set = options.makes_a_set(path);
        if is_set && tensors.is_empty() {
            let reason =
                "an index names at least one tensor, and there is none: save to a single file".into();
            return Err(SaveError::Option { option: "shard-size", reason });
        }
        let device = device_of(tensors)?;
        refuse_host_bytes_by_gds(options, tensors, &device, path)?;
        if options.after.is_some() && !device.is_cuda() {
            let reason = "no tensor is on a CUDA device, so there is no stream to wait for".into();
            return Err(SaveError::Option { option: "after-stream", reason });
        }
        refuse_repeated_names(tensors)?;
        let sized: Vec<(&str, u64)> =
            tensors.iter().map(|tensor| (&*tensor.name, tensor.bytes.len())).collect();
        let groups = layout::shards(&sized, options.shard_size);
        let bytes = sized.iter().fold(0_u64, |sum, (_, len)| sum.saturating_add(*len));
        let shards: Option<Vec<String>> =
            is_set.then(|| (0..groups.len()).map(|k| layout::shard_name(k, groups.len())).collect());

        let (mut headers, mut lens, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (file, group) in groups.iter().enumerate() {
            let new = |&index: &usize| {
                let Taken { name, dtype, shape, .. } = &tensors[index];
                NewTensor { name, dtype: *dtype, shape }
            };
            let new: Vec<NewTensor<'_>> = group.iter().map(new).collect();
            let header = header(&new, &options.metadata, &options.limits).map_err(|fault| {
                let shard = shards.as_ref().map(|shards| path.join(&shards[file]));
                SaveError::Format { path: shard.unwrap_or_else(|| path.to_owned()), fault }
            })?;
            lens.push(header.file_len);
            headers.push(RegionMut::from_vec(header.bytes).freeze());
            places.extend(group.iter().map(|&index| (tensors[index].name.clone(), file)));
        }
        if let Some(shards) = &shards {
            refuse_long_index(&places, shards, bytes, options, path)?;
        }
        let count = tensors.len();
        let images = held.try_map(|tensors| {
            let mut data: Vec<_> = tensors.into_iter().map(|tensor| Some(tensor.bytes)).collect();
            let mut take = |group: Vec<usize>| group.into_iter().filter_map(|k| data[k].take()).collect();
            let images = headers.into_iter().zip(groups);
            Ok::<_, SaveError>(images.map(|(header, group)| Image { header, tensors: take(group) }).collect())
        })?;
        // On this thread: some handles mean another stream on another thread.
        let after = options.after.map(|stream| stream.pending(&device)).transpose()?;
        let stages = SaveStages { plan_s: start.elapsed().as_secs_f64(), ..SaveStages::default() };
        Ok(Self {
            options: options.clone(),
            path: path.to_owned(),
            device,
            tensors: count,
            bytes,
            images,
            lens,
            shards,
            places,
            start,
            stages,
            after,
        })
    }

    /// Waits until the caller's work that may still write the tensors is over, however long that takes, or until the save is
    /// cancelled.
    fn wait_for_caller(&mut self) -> Result<(), SaveError> {
        let Some(pending) = self.after.take() else { return Ok(()) };
        match pending.wait(|| !self.options.cancel.is_cancelled())? {
            true => Ok(()),
            false => Err(SaveError::Cancelled { written: 0, planned: self.bytes }),
        }
    }

    /// Copies every byte within its device, so that the tensors' memory is needed no longer.
    ///
    /// # Errors
    /// [`SaveError::Snapshot`] where the device's memory does not suffice.
    pub(super) fn snapshot(mut self) -> Result<Self, SaveError> {
        let start = Instant::now();
        self.wait_for_caller()?;
        let device = &self.device;
        let copies = self.images.try_map(|images| snapshot::take(images, device))?;
        // A hold that nobody waits for.
        self.images = copies.anew();
        self.stages.plan_s += start.elapsed().as_secs_f64();
        Ok(self)
    }

    /// Writes, syncs and publishes.
    ///
    /// # Errors
    /// See [`SaveError`]. What was there before is there still.
    pub(super) fn carry_out(self) -> Result<SaveReport, SaveError> {
        self.carry_out_by(Arc::new(Kernel))
    }

    pub(super) fn carry_out_by(mut self, system: Arc<dyn System>) -> Result<SaveReport, SaveError> {
        self.wait_for_caller()?;
        let Self { options, path, device, images, lens, mut stages, .. } = self;
        let lap = Instant::now();
        let target = match &self.shards {
            None => Target::File(path.clone()),
            Some(shards) => {
                Target::Set { folder: path.clone(), index: INDEX_NAME.to_owned(), shards: shards.clone() }
            }
        };
        // Before anything is created: where it is asked for and not to be had, nothing shall have been.
        let cufile = cufile_paths(options.backend, &device, &path)?;
        let mut publication = Publication::begin(system, target, options.durability)?;
        let mut routes = Vec::with_capacity(lens.len());
        for (index, &len) in lens.iter().enumerate() {
            let file = publication.create(index, len)?;
            let name = self.shards.as_ref().map_or_else(|| path.clone(), |shards| path.join(&shards[index]));
            routes.push(Route::open(&name, file, options.backend, cufile.driver().cloned())?);
        }
        let wanting: Vec<&Route> = routes.iter().filter(|route| route.wants_windows()).collect();
        let extent = options.extent(!wanting.is_empty())?;
        let windows = match cufile.driver().filter(|_| !wanting.is_empty()) {
            None => Vec::new(),
            Some(driver) => windows(driver, &device, extent).or_else(|error| {
                let reason = format!("registering a window: {error}");
                wanting.iter().try_for_each(|route| route.leave_windows(&reason)).map(|()| Vec::new())
            })?,
        };
        let (workers, ring) = options.workers(extent, windows.len(), device.is_cuda());
        let window_bytes = windows.iter().map(RegisteredBuffer::len).sum();
        stages.open_s = lap.elapsed().as_secs_f64();

        let work = Work {
            routes: &routes,
            device: &device,
            workers,
            ring,
            bytes: self.bytes,
            on_progress: options.on_progress.clone(),
            cancel: options.cancel.clone(),
        };
        let proof = cufile.driver().filter(|_| !windows.is_empty()).map(WriteProof::begin);
        let mut tally = write::run(&work, images, extent, deal(windows, workers))?;
        device.health()?;
        let gds = judge(proof, &mut tally, &cufile, options.backend, &path, window_bytes)?;

        let lap = Instant::now();
        let index = |names: &[String]| index(&self.places, names, self.bytes);
        let short_writes = routes.iter().map(Route::short_writes).sum();
        let fallbacks = routes.into_iter().flat_map(Route::into_fallbacks).collect();
        let synced = publication.commit(&index)?;
        stages.commit_s = lap.elapsed().as_secs_f64();
        stages.sync_s = synced.seconds;
        let time = self.start.elapsed();
        Ok(SaveReport {
            path,
            device: DeviceReport::of(&device),
            files: lens.len(),
            tensors: self.tensors,
            bytes: self.bytes,
            seconds: time.as_secs_f64(),
            gb_per_s: gb_per_s(self.bytes, time),
            paths: tally.paths,
            fallbacks,
            stages: finish(stages, &tally),
            longest_stall_s: tally.longest.as_secs_f64(),
            short_writes,
            peak_pinned_bytes: tally.pinned,
            gds,
            synced,
        })
    }
}

/// The CUDA device of the tensors; the CPU where none is on one.
fn device_of(tensors: &[Taken<'_>]) -> Result<Device, SaveError> {
    let mut devices = tensors.iter().filter_map(|tensor| Some((&tensor.name, tensor.device()?)));
    let Some((first, device)) = devices.next() else { return Ok(Device::cpu()) };
    match devices.find(|(_, other)| other.info().index != device.info().index) {
        None => Ok(device.clone()),
        Some((name, other)) => {
            let reason = format!(
                "it is on {other:?} and `{}` on {device:?}; a save reads from one device and the host: copy it, or save each \
                 device's tensors apart",
                Name(first)
            );
            Err(SaveError::Tensor { name: name.to_string(), reason })
        }
    }
}

/// The host's bytes cannot be written straight from a GPU.
fn refuse_host_bytes_by_gds(
    options: &Options,
    tensors: &[Taken<'_>],
    device: &Device,
    path: &Path,
) -> Result<(), SaveError> {
    let by = PathKind::Gds;
    if options.backend != Backend::Only(by) {
        return Ok(());
    }
    let of_host = |tensor: &&Taken<'_>| tensor.bytes.len() > 0 && tensor.device().is_none();
    let there_is = match tensors.iter().find(of_host) {
        Some(tensor) => format!("tensor `{}` is in the host's", Name(&tensor.name)),
        None if !device.is_cuda() => "no tensor is there".to_owned(),
        None => return Ok(()),
    };
    let reason = format!("it writes from the memory of a CUDA device, and {there_is}");
    Err(SaveError::Unavailable { path: path.to_owned(), by, reason })
}

fn refuse_repeated_names(tensors: &[Taken<'_>]) -> Result<(), SaveError> {
    let mut names = HashSet::with_capacity(tensors.len());
    match tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
        None => Ok(()),
        Some(tensor) => {
            let reason = "two tensors have this name, and a checkpoint has room for one of them".into();
            Err(SaveError::Tensor { name: tensor.name.to_string(), reason })
        }
    }
}

/// Refuses an index that readers would not take, before the old one is replaced by it.
fn refuse_long_index(
    places: &[(Box<str>, usize)],
    shards: &[String],
    total_size: u64,
    options: &Options,
    path: &Path,
) -> Result<(), SaveError> {
    // As long as they get where these are taken.
    let names: Vec<String> = shards.iter().map(|name| durable::unique(name, 0)).collect();
    let index_len = layout::index_len(total_size, &weight_map(places, &names));
    let max_bytes = options.limits.effective();
    if index_len <= max_bytes {
        return Ok(());
    }
    let fault = WriteFault::IndexTooLarge { index_len, max_bytes };
    Err(SaveError::Format { path: path.join(INDEX_NAME), fault })
}

fn cufile_paths(backend: Backend, device: &Device, path: &Path) -> Result<CuFilePaths, SaveError> {
    CuFilePaths::open(backend, device, path).map_err(|error| match error {
        Error::Unavailable { path, by, reason } => SaveError::Unavailable { path, by, reason },
        other => SaveError::Worker { reason: other.to_string() },
    })
}

/// Holds the claim that bytes went by `gds` against cuFile's own statistics.
fn judge(
    proof: Option<WriteProof>,
    tally: &mut Tally,
    cufile: &CuFilePaths,
    backend: Backend,
    path: &Path,
    window_bytes: u64,
) -> Result<Option<GdsReport>, SaveError> {
    let claimed = tally.paths.get(PathKind::Gds);
    let report = |proof, reason| Some(GdsReport { proof, reason, window_bytes });
    let Some(proof) = proof.filter(|_| claimed > 0) else {
        return Ok(cufile.refusal().and_then(|reason| report(None, Some(reason.to_owned()))));
    };
    Ok(match proof.verdict() {
        Verdict::Verified => report(Some(GdsProof::Verified), None),
        Verdict::Unverified(reason) => report(Some(GdsProof::Unverified), Some(reason)),
        Verdict::Bounced(writes) => {
            let reason = format!(
                "cuFile's statistics say that {writes} of its writes were served by the host, although compatibility mode was not \
                 allowed"
            );
            if backend == Backend::Only(PathKind::Gds) {
                return Err(SaveError::Unavailable { path: path.to_owned(), by: PathKind::Gds, reason });
            }
            tally.paths.reassign(PathKind::Gds, PathKind::GdsCompat);
            report(Some(GdsProof::Bounced), Some(reason))
        }
    })
}

/// The text of the index, given the shards' names.
fn index(places: &[(Box<str>, usize)], names: &[String], total_size: u64) -> Vec<u8> {
    layout::index(total_size, &weight_map(places, names))
}

fn weight_map<'a>(places: &'a [(Box<str>, usize)], names: &'a [String]) -> BTreeMap<&'a str, &'a str> {
    places.iter().filter_map(|(tensor, file)| Some((&**tensor, names.get(*file)?.as_str()))).collect()
}

fn finish(stages: SaveStages, tally: &Tally) -> SaveStages {
    let writes = Intervals::union(tally.writes.iter().copied());
    let fetches = Intervals::union(tally.fetches.iter().copied());
    SaveStages {
        pin_s: tally.pin.as_secs_f64(),
        fetch_s: fetches.length().as_secs_f64(),
        write_s: writes.length().as_secs_f64(),
        fetch_hidden: fetches.share_within(&writes),
        ..stages
    }
}

/// Deals window slots to workers, as evenly as they go.
fn deal(windows: Vec<RegisteredBuffer>, workers: usize) -> Vec<Vec<RegisteredBuffer>> {
    let mut hands: Vec<Vec<RegisteredBuffer>> = (0..workers).map(|_| Vec::new()).collect();
    for (index, window) in windows.into_iter().enumerate() {
        hands[index % workers].push(window);
    }
    hands
}
