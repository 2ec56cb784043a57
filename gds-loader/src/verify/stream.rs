//! Reads files from their first byte to their last into slots that are forgotten at once.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
use crate::threads::in_parallel;
use crate::transport::{PathKind, Transport, read_extent};
use crate::workers::share_out;

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

/// The reads, in the order of files and offsets. Counted and not listed: a sparse file can claim more of them than memory holds.
struct Extents {
    read_size: u64,
    /// For each file how many reads there are up to its end.
    ends: Vec<u64>,
}

impl Extents {
    fn new(lens: impl Iterator<Item = u64>, read_size: u64) -> Self {
        let count = |total: &mut u64, len: u64| {
            *total = total.saturating_add(len.div_ceil(read_size));
            Some(*total)
        };
        Self { read_size, ends: lens.scan(0, count).collect() }
    }

    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or_default()
    }

    fn get(&self, index: u64) -> Option<Extent> {
        let file = self.ends.partition_point(|&end| end <= index);
        self.ends.get(file)?;
        let first = file.checked_sub(1).map_or(0, |before| self.ends[before]);
        let start = (index - first) * self.read_size;
        Some(Extent { file, range: start..start + self.read_size })
    }
}

struct Shared<'a> {
    verifier: &'a Verifier,
    routes: &'a [Route],
    builder: &'a Builder,
    extents: Extents,
    next: AtomicU64,
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
        let file = found.file.open_at(&found.path)?;
        let facts = FileFacts::at(&file, found.layout.len, &places);
        // It may be opened again now.
        drop(file);
        Ok((Route::open(&found.path, &found.file, Some(found.modified), &facts, &terms)?, facts))
    };
    let opened: Result<Vec<(Route, FileFacts)>> = in_parallel(|| files.par_iter().map(open).collect());
    let (mut routes, facts): (Vec<Route>, Vec<FileFacts>) = opened?.into_iter().unzip();
    let step =
        routes.iter().map(|route| route.transport().alignment()).fold(limits::page_size() as u64, u64::max);
    let read_size = align_up(READ_SIZE, step);
    let extents = Extents::new(routes.iter().map(Route::len), read_size);
    let threads = thread::available_parallelism().map_or(1, usize::from).clamp(THREADS.start, THREADS.end);
    let threads = usize::try_from(extents.len()).map_or(threads, |reads| threads.min(reads));
    let shared = Shared {
        verifier,
        routes: &routes,
        builder,
        extents,
        next: AtomicU64::new(0),
        done: AtomicU64::new(0),
        total: routes.iter().map(Route::len).fold(0, u64::saturating_add),
        given_up: routes.iter().map(|_| AtomicBool::new(false)).collect(),
        failures: Mutex::new(routes.iter().map(|_| None).collect()),
    };
    let slots = RingOptions { slots: 1, slot_size: read_size as usize };
    let paths = share_out("gds-verify", threads, || work(&shared, device.ring(slots)?));
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

fn work(shared: &Shared<'_>, mut ring: Ring) -> Result<PathBytes> {
    let mut paths = PathBytes::default();
    while !shared.verifier.cancel.is_cancelled()
        && let Some(extent) = shared.extents.get(shared.next.fetch_add(1, Ordering::Relaxed))
    {
        if shared.given_up[extent.file].load(Ordering::Relaxed) {
            continue;
        }
        match read_one(shared, &mut ring, &extent) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::FileLayout;
    use crate::source::ShardFile;
    use std::fs::File;
    use std::time::Duration;

    fn listed(lens: &[u64]) -> Vec<(usize, Range<u64>)> {
        let extents = Extents::new(lens.iter().copied(), 10);
        let listed = (0..).map_while(|index| extents.get(index));
        let listed: Vec<_> = listed.map(|extent| (extent.file, extent.range)).collect();
        assert_eq!(listed.len() as u64, extents.len());
        listed
    }

    #[test]
    fn every_file_is_read_from_its_first_byte_to_its_last() {
        assert_eq!(listed(&[]), []);
        assert_eq!(listed(&[0, 0]), []);
        assert_eq!(listed(&[0, 10, 0, 11, 1]), [(1, 0..10), (3, 0..10), (3, 10..20), (4, 0..10)]);
    }

    #[test]
    fn what_files_claim_costs_no_memory() {
        let most = i64::MAX as u64;
        let extents = Extents::new([most, most, most].into_iter(), 1 << 22);
        assert_eq!(extents.len(), 3 << 41);
        let last = extents.get((3 << 41) - 1).unwrap();
        assert_eq!((last.file, last.range.end), (2, 1 << 63));
        assert!(extents.get(3 << 41).is_none());
    }
    #[test]
    fn a_file_written_to_since_its_header_was_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        std::fs::write(&path, [1; 100]).unwrap();
        let failure = |since: Duration| {
            let file = File::open(&path).unwrap();
            let modified = file.metadata().unwrap().modified().unwrap() - since;
            let layout = FileLayout::other("a.safetensors", 100);
            let found = Found { path: path.clone(), file: ShardFile::kept(file), layout, modified };
            let builder = Builder::new(vec![found.layout.clone()]);
            read(&Verifier::new(), &path, &[found], &builder).unwrap().failures.remove(0)
        };
        assert!(failure(Duration::ZERO).is_none());
        let error = failure(Duration::from_millis(1));
        assert!(matches!(error, Some(Error::Rewritten { .. })), "{error:?}");
    }
}
