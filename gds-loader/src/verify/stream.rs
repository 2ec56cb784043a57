//! Reads files from their first byte to their last into slots that are forgotten at once.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use cuda_staging::{Device, Ring, RingOptions, limits};
use rayon::prelude::*;

use super::{Found, Verifier};
use crate::error::{Error, Result};
use crate::facts::{FileFacts, Places, Root, available_memory};
use crate::manifest::Builder;
use crate::pipeline::Progress;
use crate::plan::align_up;
use crate::policy::{CuFilePaths, Memory, Route, Terms};
use crate::report::{CacheReport, Fallback, PathBytes, share_of};
use crate::threads::{in_parallel, share_out};
use crate::transport::{PathKind, Transport, read_extent};

/// Bytes of one read.
const READ_SIZE: u64 = 4 << 20;

/// Threads that read, each waiting for the kernel more than it computes.
const THREADS: Range<usize> = 4..16;

/// What reading did.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) paths: PathBytes,
    pub(super) fallbacks: Vec<Fallback>,
    pub(super) cache: CacheReport,
    /// For each file why the rest of it was not read.
    pub(super) failures: Vec<Option<Error>>,
}

/// One read.
struct Extent {
    file: usize,
    range: Range<u64>,
}

struct Shared<'a> {
    verifier: &'a Verifier,
    routes: &'a [Route],
    builder: &'a Builder,
    extents: &'a [Extent],
    next: AtomicUsize,
    done: AtomicU64,
    total: u64,
    /// Files of which no more is read.
    given_up: Vec<AtomicBool>,
    failures: Mutex<Vec<Option<Error>>>,
}

/// Reads all of `files`, which belong to the model at `path`, and adds every byte to `builder`.
///
/// A file that cannot be read to its end does not keep others from being read.
///
/// # Errors
/// [`Error::Cancelled`], [`Error::Unavailable`] where no path or not the one that was asked for serves, and those of a worker.
pub(super) fn read(verifier: &Verifier, path: &Path, files: &[Found], builder: &Builder) -> Result<Stream> {
    let (device, backend) = (Device::cpu(), verifier.backend);
    let cufile = CuFilePaths::open(backend, &device, path)?;
    let root = Root::system();
    let needed = files.iter().map(|found| found.layout.len).fold(0, u64::saturating_add);
    let memory = Memory { needed, available: available_memory(&root) };
    let terms = Terms { backend, cufile: &cufile, memory, share: true, keep_pages: false };
    let places = Places::new(root);
    let open = |found: &Found| {
        let facts = FileFacts::at(&*found.file.open_at(&found.path)?, found.layout.len, &places);
        Ok((Route::open(&found.path, &found.file, &facts, &terms)?, facts))
    };
    let opened: Result<Vec<(Route, FileFacts)>> = in_parallel(|| files.par_iter().map(open).collect());
    let (mut routes, facts): (Vec<Route>, Vec<FileFacts>) = opened?.into_iter().unzip();
    let step =
        routes.iter().map(|route| route.transport().alignment()).fold(limits::page_size() as u64, u64::max);
    let read_size = align_up(READ_SIZE, step);
    let extents: Vec<Extent> = extents(&routes, read_size);
    let shared = Shared {
        verifier,
        routes: &routes,
        builder,
        extents: &extents,
        next: AtomicUsize::new(0),
        done: AtomicU64::new(0),
        total: routes.iter().map(Route::len).sum(),
        given_up: routes.iter().map(|_| AtomicBool::new(false)).collect(),
        failures: Mutex::new(routes.iter().map(|_| None).collect()),
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.clamp(THREADS.start, THREADS.end).min(extents.len());
    let slots = RingOptions { slots: 1, slot_size: read_size as usize };
    let paths = share_out(threads, || work(&shared, device.ring(slots)?));
    let panicked = || Err(Error::Worker { reason: "a reading thread panicked".into() });
    let paths = paths.into_iter().map(|paths| paths.unwrap_or_else(panicked)).collect::<Result<Vec<_>>>()?;
    let mut all = PathBytes::default();
    paths.iter().for_each(|paths| all.merge(paths));
    let (placed, planned) = (shared.done.load(Ordering::Relaxed), shared.total);
    if verifier.cancel.is_cancelled() && placed < planned {
        return Err(Error::Cancelled { placed, planned });
    }
    let mut failures = shared.failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (failure, route) in failures.iter_mut().zip(&routes) {
        if failure.is_none() {
            *failure = route.check_unchanged().err();
        }
    }
    in_parallel(|| routes.par_iter_mut().for_each(Route::leave_page_cache));
    let before = facts.iter().map(|facts| (facts.len, facts.residency));
    let after = routes.iter().map(|route| (route.len(), route.residency()));
    let cache = CacheReport { resident_before: share_of(before), resident_after: share_of(after) };
    let fallbacks = routes.into_iter().flat_map(Route::into_fallbacks).collect();
    Ok(Stream { paths: all, fallbacks, cache, failures })
}

/// The reads, in the order of files and offsets.
fn extents(routes: &[Route], read_size: u64) -> Vec<Extent> {
    let of_file = |(file, route): (usize, &Route)| {
        let starts = (0..route.len()).step_by(read_size as usize);
        starts.map(move |start| Extent { file, range: start..start + read_size })
    };
    routes.iter().enumerate().flat_map(of_file).collect()
}

fn work(shared: &Shared<'_>, mut ring: Ring) -> Result<PathBytes> {
    let mut paths = PathBytes::default();
    while !shared.verifier.cancel.is_cancelled()
        && let Some(extent) = shared.extents.get(shared.next.fetch_add(1, Ordering::Relaxed))
    {
        if shared.given_up[extent.file].load(Ordering::Relaxed) {
            continue;
        }
        match read_one(shared, &mut ring, extent) {
            Ok((kind, bytes)) => {
                paths.add(kind, bytes);
                let done = shared.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
                if let Some(on_progress) = &shared.verifier.on_progress {
                    on_progress(Progress { bytes_done: done, bytes_total: shared.total });
                }
            }
            Err(error @ Error::Read { .. }) => {
                shared.given_up[extent.file].store(true, Ordering::Relaxed);
                let mut failures = shared.failures.lock().unwrap_or_else(PoisonError::into_inner);
                failures[extent.file].get_or_insert(error);
            }
            Err(error) => {
                // Nobody reads on for a result that there will not be.
                shared.next.store(shared.extents.len(), Ordering::Relaxed);
                return Err(error);
            }
        }
    }
    Ok(paths)
}

/// Reads one extent, and adds its bytes.
fn read_one(shared: &Shared<'_>, ring: &mut Ring, extent: &Extent) -> Result<(PathKind, u64)> {
    let route = &shared.routes[extent.file];
    let read = |transport: &Transport| {
        let Transport::Host(reads) = transport else {
            return Err(Error::Worker { reason: "verification reads into host memory alone".into() });
        };
        let slot = ring.take()?;
        let filled = slot.fill(|into| {
            read_extent(reads.as_ref(), into, extent.range.clone(), route.len()).map(|count| count as usize)
        });
        Ok(match filled {
            Ok(filled) => Ok(filled),
            Err((slot, failure)) => {
                ring.put_back(slot);
                Err(failure)
            }
        })
    };
    let (kind, filled) = route.attempt(&extent.range, read)?;
    let bytes = filled.bytes();
    shared.builder.add(extent.file, extent.range.start, bytes);
    let count = bytes.len() as u64;
    ring.put_back(filled.release());
    Ok((kind, count))
}
