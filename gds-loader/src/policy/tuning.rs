//! How storage is read best: how long the reads, how many at a time, by how many workers.
//!
//! One table, [`ReadTuning::of`], from what the storage is to where the reads of a load begin. They are starting points: the
//! engine may go from `depth` up to `most_depth` where that turns out to be faster, and what the user says overrules all of
//! it. Trade-off: the table knows kinds of storage and no models of drives, so it is right within a factor of two and never
//! wrong by ten.

use crate::facts::{FileFacts, FileSystem, StorageDevice, StorageKind};
use crate::plan::align_up;

/// Where the reads of a load begin, and how far an engine may go from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadTuning {
    /// Longest extent read in one go, in bytes: a multiple of 4096.
    pub(crate) read_size: u64,
    /// Workers where each keeps several reads in flight.
    pub(crate) workers: usize,
    /// Reads that each of them keeps in flight to begin with.
    pub(crate) depth: usize,
    /// The most that may come to.
    pub(crate) most_depth: usize,
    /// Workers where each waits for its one read.
    pub(crate) threads: usize,
    /// Host memory for all slots together, in bytes, at most.
    pub(crate) slot_memory: u64,
}

const MIB: u64 = 1 << 20;

/// Longest extent read in one go where nothing speaks for another, in bytes: beyond it no storage gains, and slots grow.
const READ_SIZE: u64 = 4 * MIB;

/// Host memory for slots, in bytes: enough to hide copies, pinned in well under 0.1 s.
const SLOT_MEMORY: u64 = 64 * MIB;

/// Longest extent read from the page cache into a slot, in bytes, and slots for each thread that does. The limit is the memory's
/// bandwidth there: bytes that the processor fills a slot with and a copy fetches at once need none, if all slots fit into its
/// cache.
const CACHED_READ_SIZE: u64 = MIB;
const CACHED_SLOTS: u64 = 4;

/// The least that a processor's cache can make of [`SLOT_MEMORY`], in bytes.
const LEAST_SLOT_MEMORY: u64 = 8 * MIB;

/// The longest that an `rsize` can make it, in bytes.
const MOST_READ_SIZE: u64 = 16 * MIB;

/// Drives beyond these ask for no more reads: the workers are busy by then.
const MOST_DRIVES: usize = 8;

impl ReadTuning {
    /// For storage of which nothing is known.
    pub(crate) fn unknown(cores: usize) -> Self {
        Self::of_kind(StorageKind::Unknown, 1, cores)
    }

    /// The table. Threads wait more than they compute, so there may be more than cores.
    fn of_kind(kind: StorageKind, drives: usize, cores: usize) -> Self {
        let drives = drives.clamp(1, MOST_DRIVES);
        let row = |read_size, workers, depth, most_depth, threads| Self {
            read_size,
            workers,
            depth,
            most_depth,
            threads,
            slot_memory: SLOT_MEMORY,
        };
        match kind {
            // A queue per core, and deep ones: 16 MiB in flight per drive at the least.
            StorageKind::Nvme => {
                row(READ_SIZE, cores.clamp(1, 2 * drives), 4, 16, cores.clamp(4, 16).max(2 * drives))
            }
            // 32 commands on one link that two long reads fill.
            StorageKind::SolidState => row(READ_SIZE, 1, 4 * drives, 8 * drives, 4 * drives),
            // One reader for each disk, so that the head stays where it is; the second read in flight is the next one in order.
            StorageKind::Rotational => row(2 * READ_SIZE, 1, 2 * drives, 2 * drives, drives),
            // Every read is a round trip, and many connections are faster than one.
            StorageKind::Network => row(READ_SIZE, cores.clamp(2, 8), 4, 16, (2 * cores).clamp(8, 32)),
            // Copies: a core each.
            StorageKind::Memory => row(READ_SIZE, cores.clamp(1, 16), 1, 1, cores.clamp(4, 16)),
            // Its host serves each request by one thread and as a whole: shorter ones let more of them work. 32 MiB in flight too.
            StorageKind::Virtual => row(MIB, cores.clamp(1, 2), 16, 32, cores.clamp(8, 16)),
            StorageKind::Stacked | StorageKind::Unknown => {
                row(READ_SIZE, cores.clamp(1, 2), 4, 16, cores.clamp(4, 16))
            }
        }
    }

    /// For files on this storage.
    pub(crate) fn of(storage: &StorageDevice, file_system: FileSystem, cores: usize) -> Self {
        let mut tuning = Self::of_kind(storage.kind, storage.drives, cores);
        if let FileSystem::Network { read_size: Some(asked), .. } = file_system
            && asked > 0
            && asked <= MOST_READ_SIZE
        {
            // Whole requests to the server.
            let whole = align_up(READ_SIZE.max(asked), asked.next_power_of_two());
            tuning.read_size = whole.min(MOST_READ_SIZE);
        }
        if let (Some(requests), Some(longest)) = (storage.queue_depth, storage.longest_request) {
            // More than the kernel queues for the drives would wait in front of the queue.
            let queued = requests.saturating_mul(longest).saturating_mul(storage.drives.max(1) as u64);
            let most =
                usize::try_from(queued / tuning.read_size / tuning.workers as u64).unwrap_or(usize::MAX);
            tuning.most_depth = tuning.most_depth.min(most).max(1);
            tuning.depth = tuning.depth.min(tuning.most_depth);
        }
        tuning
    }

    /// For a load of these files: as it suits the storage that most of its bytes come from, the page cache being one. `cache` is
    /// the last level of the processor's in bytes, where bytes go through slots.
    pub(crate) fn for_files<'a>(
        files: impl IntoIterator<Item = &'a FileFacts>,
        cores: usize,
        cache: Option<u64>,
    ) -> Self {
        let mut sources: Vec<(StorageDevice, FileSystem, f64)> = Vec::new();
        let mut add = |storage: StorageDevice, file_system: FileSystem, bytes: f64| match sources
            .iter_mut()
            .find(|(known, on, _)| *known == storage && *on == file_system)
        {
            Some((_, _, sum)) => *sum += bytes,
            None => sources.push((storage, file_system, bytes)),
        };
        for facts in files {
            let resident = facts.residency.share().unwrap_or(0.0);
            let len = facts.len as f64;
            add(StorageDevice::of_kind(StorageKind::Memory), FileSystem::Memory, len * resident);
            add(facts.storage.clone(), facts.file_system, len * (1.0 - resident));
        }
        let most = sources.iter().max_by(|one, other| one.2.total_cmp(&other.2));
        let tuning = most.map(|(storage, file_system, _)| Self::of(storage, *file_system, cores));
        let mut tuning = tuning.unwrap_or_else(|| Self::unknown(cores));
        if let (Some((storage, ..)), Some(cache)) = (most, cache)
            && storage.kind == StorageKind::Memory
        {
            tuning.read_size = CACHED_READ_SIZE;
            let slots = tuning.threads as u64 * CACHED_SLOTS * CACHED_READ_SIZE;
            tuning.slot_memory = slots.min(cache / 2).clamp(LEAST_SLOT_MEMORY, SLOT_MEMORY);
        }
        tracing::debug!(storage = ?most.map(|(storage, ..)| storage), ?tuning, "how the files are read");
        tuning
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{DirectIo, Network, Residency};

    fn storage(kind: StorageKind, drives: usize, queue: Option<(u64, u64)>) -> StorageDevice {
        let mut storage = StorageDevice::of_kind(kind);
        storage.drives = drives;
        storage.queue_depth = queue.map(|(requests, _)| requests);
        storage.longest_request = queue.map(|(_, bytes)| bytes);
        storage
    }

    fn of(kind: StorageKind, drives: usize) -> ReadTuning {
        ReadTuning::of(&storage(kind, drives, None), FileSystem::Local, 8)
    }

    const KINDS: [StorageKind; 8] = [
        StorageKind::Nvme,
        StorageKind::SolidState,
        StorageKind::Rotational,
        StorageKind::Virtual,
        StorageKind::Network,
        StorageKind::Memory,
        StorageKind::Stacked,
        StorageKind::Unknown,
    ];

    #[test]
    fn every_row_makes_sense() {
        for kind in KINDS {
            for (drives, cores) in [(0, 1), (1, 2), (4, 64), (100, 256)] {
                for queue in [None, Some((2, 4096)), Some((1023, 128 << 10)), Some((u64::MAX, u64::MAX))] {
                    let tuning = ReadTuning::of(&storage(kind, drives, queue), FileSystem::Local, cores);
                    assert!(tuning.read_size.is_multiple_of(4096) && tuning.read_size <= MOST_READ_SIZE);
                    assert!(tuning.workers >= 1 && tuning.workers <= 16, "{tuning:?}");
                    assert!(tuning.threads >= 1 && tuning.threads <= 32, "{tuning:?}");
                    assert!(tuning.depth >= 1 && tuning.depth <= tuning.most_depth, "{tuning:?}");
                }
            }
        }
    }

    #[test]
    fn a_turning_disk_has_one_sequential_reader() {
        let tuning = of(StorageKind::Rotational, 1);
        assert_eq!((tuning.workers, tuning.threads, tuning.most_depth), (1, 1, 2));
    }

    #[test]
    fn more_drives_are_read_deeper() {
        let in_flight = |drives| {
            let tuning = of(StorageKind::Nvme, drives);
            tuning.workers * tuning.depth
        };
        assert!(in_flight(4) > in_flight(1));
        assert!(of(StorageKind::Network, 0).threads > of(StorageKind::Unknown, 0).threads);
    }

    #[test]
    fn the_queue_bounds_the_depth() {
        let queued = Some((64, 128 << 10));
        let tuning = ReadTuning::of(&storage(StorageKind::Nvme, 1, queued), FileSystem::Local, 2);
        assert_eq!((tuning.workers, tuning.depth, tuning.most_depth), (2, 1, 1), "8 MiB in the queue");
    }

    #[test]
    fn reads_over_a_network_are_whole_requests() {
        let read_size = |asked| {
            let on = FileSystem::Network { kind: Network::Nfs, read_size: Some(asked) };
            ReadTuning::of(&storage(StorageKind::Network, 0, None), on, 8).read_size
        };
        assert_eq!(read_size(1 << 20), 4 << 20);
        assert_eq!(read_size(8 << 20), 8 << 20);
        assert_eq!(read_size(65_536), 4 << 20);
        assert_eq!(read_size(0), 4 << 20);
        assert_eq!(read_size(1 << 40), 4 << 20);
    }

    #[test]
    fn a_load_is_tuned_for_where_most_of_its_bytes_come_from() {
        let facts = |len, kind, resident| FileFacts {
            len,
            direct_io: DirectIo::Unknown,
            file_system: FileSystem::Local,
            storage: storage(kind, 1, None),
            residency: Residency::Share(resident),
            map: None,
        };
        let disk = facts(100, StorageKind::Rotational, 0.0);
        let drive = facts(150, StorageKind::Nvme, 0.0);
        let threads = |files: &[&FileFacts]| ReadTuning::for_files(files.iter().copied(), 8, None).threads;
        assert_eq!(threads(&[&disk]), 1);
        assert_eq!(threads(&[&disk, &drive]), of(StorageKind::Nvme, 1).threads);
        assert_eq!(threads(&[&disk, &disk, &drive]), 1);
        let warm = facts(100, StorageKind::Rotational, 0.9);
        assert_eq!(threads(&[&warm]), of(StorageKind::Memory, 0).threads, "it is in the page cache");
        assert_eq!(threads(&[]), ReadTuning::unknown(8).threads);
    }
    #[test]
    fn slots_of_what_is_in_the_page_cache_fit_the_processors() {
        let facts = |resident| FileFacts {
            len: 100,
            direct_io: DirectIo::Unknown,
            file_system: FileSystem::Local,
            storage: storage(StorageKind::Nvme, 1, None),
            residency: Residency::Share(resident),
            map: None,
        };
        let tuning = |resident, cores, cache| ReadTuning::for_files([&facts(resident)], cores, cache);
        let memory = |resident, cores, cache| tuning(resident, cores, cache).slot_memory;
        assert_eq!(memory(1.0, 2, Some(300 * MIB)), 16 * MIB, "four slots for each of four threads");
        assert_eq!(memory(1.0, 64, Some(300 * MIB)), SLOT_MEMORY);
        assert_eq!(memory(1.0, 64, Some(40 * MIB)), 20 * MIB);
        assert_eq!(memory(1.0, 64, Some(MIB)), LEAST_SLOT_MEMORY);
        assert_eq!(tuning(1.0, 64, Some(MIB)).read_size, MIB);
        for (resident, cache) in [(0.0, Some(32 * MIB)), (1.0, None)] {
            let tuning = tuning(resident, 8, cache);
            assert_eq!((tuning.slot_memory, tuning.read_size), (SLOT_MEMORY, READ_SIZE), "{resident}");
        }
    }
}
