//! What a load makes of the page cache, for one file: what it reads from there, and what it leaves there.
//!
//! A file that `auto` reads directly has parts that are read through the page cache all the same: those that are resident, and
//! every part while other processes load the file too, so that the device reads it once for all of them. What such reads brought
//! into the cache is dropped when the load has ended; what was there before stays.

use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::presence::{Presence, Whose, others};
use super::runs::{cached_runs, common, covers, joined};
use crate::facts::{FileFacts, FileSystem, drop_pages, fit_in_memory, is_resident};
use crate::transport::ReadAhead;

/// Memory, as the files of a load need it and as it is there, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// What the files take in the page cache, and what the load allocates besides.
    pub(crate) needed: u64,
    /// None where nobody says.
    pub(crate) available: Option<u64>,
}

impl Memory {
    /// Whether the files fit into the page cache.
    pub(crate) fn fits(self) -> bool {
        self.available.is_some_and(|available| fit_in_memory(self.needed, available))
    }

    /// Why they do not.
    pub(crate) fn shortage(self) -> String {
        match self.available {
            Some(available) => {
                format!(
                    "it would need {} bytes, more than 90% of the {available} bytes available",
                    self.needed
                )
            }
            None => "how much memory is available is not known".into(),
        }
    }
}

/// How a load goes about the page cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    pub(crate) memory: Memory,
    /// Whether a file that others load too is shared with them.
    pub(crate) share: bool,
    /// Whether what was brought into the page cache stays there.
    pub(crate) keep: bool,
    /// Bytes to ask the kernel for at a time.
    pub(crate) read_ahead: Option<u64>,
}

/// How far ahead of what is read the page cache is filled, in bytes: as much in flight as deep direct reads have.
const AHEAD: u64 = 32 << 20;

/// What a load makes of the page cache, for one file.
#[derive(Debug)]
pub(crate) struct PageCache {
    file: Arc<File>,
    len: u64,
    /// The stretches that are read through it because they are in it.
    resident: Vec<Range<u64>>,
    /// The stretches of which it held nothing before.
    absent: Vec<Range<u64>>,
    /// What was read through it.
    read: Mutex<Vec<Range<u64>>>,
    /// The end of what the kernel has been told to fetch, and the start of the read that made us say so.
    advised: Mutex<(u64, u64)>,
    read_ahead: ReadAhead,
    presence: Mutex<Option<Presence>>,
    /// Whether the file is read through the page cache while others load it.
    shares: bool,
    /// Why not.
    shortage: Option<String>,
    /// Whether no other load was seen that would share, had this one the memory.
    alone: AtomicBool,
    /// Whether other processes have been seen to load the file.
    seen: AtomicBool,
    used_resident: AtomicBool,
    used_shared: AtomicBool,
    used_brought: AtomicBool,
    /// Whether what was brought into it stays.
    keeps: bool,
}

impl PageCache {
    /// Of a file of which these facts are known. Its load is announced to others where `share` says so and the memory suffices.
    pub(crate) fn new(file: &Arc<File>, facts: &FileFacts, habits: Habits) -> Self {
        let Habits { memory, share, keep: keeps, .. } = habits;
        let fits = memory.fits();
        // Locks of network file systems go to their server.
        let share = share && !matches!(facts.file_system, FileSystem::Network { .. } | FileSystem::Memory);
        let whose = if fits { Whose::Sharing } else { Whose::Short };
        let presence = share.then(|| Presence::announce(file, whose));
        let presence = presence.and_then(|presence| {
            presence.inspect_err(|error| tracing::debug!(%error, "others cannot be told of this load")).ok()
        });
        Self {
            file: Arc::clone(file),
            len: facts.len,
            resident: facts.map.as_ref().map(cached_runs).unwrap_or_default(),
            absent: facts.map.as_ref().map(crate::facts::ResidencyMap::absent).unwrap_or_default(),
            read: Mutex::default(),
            advised: Mutex::default(),
            read_ahead: ReadAhead::new(habits.read_ahead),
            seen: AtomicBool::new(share && fits && others(file, Whose::Sharing)),
            shares: share && fits,
            shortage: (share && !fits).then(|| memory.shortage()),
            alone: AtomicBool::new(!(share && !fits && others(file, Whose::Any))),
            presence: Mutex::new(presence),
            used_resident: AtomicBool::new(false),
            used_shared: AtomicBool::new(false),
            used_brought: AtomicBool::new(false),
            keeps,
        }
    }

    /// Whether other processes have been seen to load the file.
    pub(crate) fn is_shared(&self) -> bool {
        self.seen.load(Ordering::Relaxed)
    }

    /// Whether this extent of a file that is read directly is better read through the page cache, now.
    pub(crate) fn serves(&self, extent: &Range<u64>) -> bool {
        let extent = extent.start..extent.end.min(self.len);
        let used = if covers(&self.resident, &extent) {
            &self.used_resident
        } else if self.others() {
            self.seen.store(true, Ordering::Relaxed);
            self.fetch_ahead(&extent);
            &self.used_shared
        } else if self.is_shared() && is_resident(&self.file, extent) {
            // Those who brought it have ended.
            &self.used_brought
        } else {
            return false;
        };
        used.store(true, Ordering::Relaxed);
        true
    }

    fn others(&self) -> bool {
        self.shares && others(&self.file, Whose::Sharing)
    }

    /// Notes that this extent is read through the page cache.
    pub(crate) fn note(&self, extent: &Range<u64>) {
        if self.absent.is_empty() {
            return;
        }
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        match read.last_mut() {
            Some(last) if last.end == extent.start => last.end = extent.end,
            _ => read.push(extent.clone()),
        }
    }

    /// Asks the kernel to fetch what follows, so that the device's queue is filled however few read at a time.
    fn fetch_ahead(&self, extent: &Range<u64>) {
        let target = (extent.end + AHEAD).min(self.len);
        let from = {
            let mut advised = self.advised.lock().unwrap_or_else(PoisonError::into_inner);
            let (end, start) = *advised;
            // A read from before the last ones, or from far behind them, is a new beginning.
            let goes_on = extent.start + AHEAD >= start && extent.start <= end;
            let from = if goes_on { end } else { extent.start };
            if target <= from {
                return;
            }
            *advised = (target, extent.start);
            from
        };
        self.read_ahead.expect(&self.file, from, target - from);
    }

    /// Ends the load: drops what it brought into the page cache, unless others still load the file.
    pub(crate) fn leave(&self) {
        // Gone before the others are asked: of two that end together, at least one sees nobody, and drops.
        let presence = self.presence.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(presence);
        if self.shortage.is_some() && others(&self.file, Whose::Any) {
            self.alone.store(false, Ordering::Relaxed);
        }
        let read = std::mem::take(&mut *self.read.lock().unwrap_or_else(PoisonError::into_inner));
        if read.is_empty() || self.keeps || others(&self.file, Whose::Sharing) {
            return;
        }
        for range in common(&joined(read), &self.absent) {
            if let Err(error) = drop_pages(&self.file, range) {
                tracing::debug!(%error, "pages could not be dropped");
            }
        }
    }

    /// Why parts of a file that is read directly went through the page cache, or why they did not.
    pub(crate) fn reasons(&self) -> Vec<(bool, String)> {
        let used = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let mut reasons = Vec::new();
        if used(&self.used_resident) {
            reasons.push((true, "these parts are in the page cache".to_owned()));
        }
        if used(&self.used_shared) {
            reasons.push((
                true,
                "other processes load it too, and through the page cache the device reads it once for all"
                    .to_owned(),
            ));
        }
        if used(&self.used_brought) {
            reasons.push((true, "other processes have brought these parts into the page cache".to_owned()));
        }
        if let Some(shortage) = &self.shortage
            && !used(&self.alone)
        {
            reasons.push((
                false,
                format!(
                    "other processes load it too, but it is not shared through the page cache: {shortage}"
                ),
            ));
        }
        reasons
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{ResidencyMap, evict};
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::FileExt as _;

    const MIB: u64 = 1 << 20;

    /// A file of 32 MiB of which the second quarter is in the page cache, and its name.
    fn quarter() -> (tempfile::NamedTempFile, Arc<File>) {
        let named = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        named.as_file().write_all_at(&vec![7; 32 << 20], 0).unwrap();
        evict(named.as_file()).unwrap();
        let file = Arc::new(File::open(named.path()).unwrap());
        rustix::fs::fadvise(file.as_fd(), 0, None, rustix::fs::Advice::Random).unwrap();
        read(&file, 8 * MIB..16 * MIB);
        (named, file)
    }

    fn read(file: &File, range: Range<u64>) {
        file.read_exact_at(&mut vec![0; (range.end - range.start) as usize], range.start).unwrap();
    }

    const PLENTY: Memory = Memory { needed: 1, available: Some(1 << 40) };

    fn opened(file: &Arc<File>, memory: Memory, keep: bool) -> PageCache {
        let facts = FileFacts::of(file, 32 * MIB);
        PageCache::new(file, &facts, Habits { memory, share: true, keep, read_ahead: None })
    }

    fn resident(file: &File) -> f64 {
        ResidencyMap::of(file, 32 * MIB).unwrap().share()
    }

    /// Reads all of the file through the page cache, in extents of 3 MiB.
    fn read_all(cache: &PageCache) {
        for start in (0..32 * MIB).step_by(3 << 20) {
            let extent = start..start + 3 * MIB;
            cache.note(&extent);
            read(&cache.file, start..extent.end.min(32 * MIB));
        }
    }

    #[test]
    fn what_was_brought_is_dropped_and_what_was_there_stays() {
        let (_named, file) = quarter();
        let before = ResidencyMap::of(&file, 32 * MIB);
        let cache = opened(&file, PLENTY, false);
        read_all(&cache);
        assert_eq!(resident(&file), 1.0);
        cache.leave();
        assert_eq!(ResidencyMap::of(&file, 32 * MIB), before);
        // What was not read here is not dropped, whoever brought it.
        let cache = opened(&file, PLENTY, false);
        cache.note(&(0..4 * MIB));
        read(&file, 0..8 * MIB);
        cache.leave();
        assert_eq!(resident(&file), 0.375);
    }

    #[test]
    fn pages_stay_where_that_was_asked_for_or_others_still_load_the_file() {
        let (named, file) = quarter();
        let cache = opened(&file, PLENTY, true);
        read_all(&cache);
        cache.leave();
        assert_eq!(resident(&file), 1.0);

        let (named_2, file_2) = quarter();
        drop(named);
        let other = Arc::new(File::open(named_2.path()).unwrap());
        let (mine, theirs) = (opened(&file_2, PLENTY, false), opened(&other, PLENTY, false));
        read_all(&mine);
        mine.leave();
        assert_eq!(resident(&file_2), 1.0, "the other one still loads it");
        theirs.note(&(0..32 * MIB));
        theirs.leave();
        assert_eq!(resident(&file_2), 0.25, "the last one drops it");
    }

    #[test]
    fn an_extent_goes_through_the_page_cache_for_each_reason_there_is() {
        let (named, file) = quarter();
        let cache = opened(&file, PLENTY, false);
        assert!(cache.serves(&(8 * MIB..12 * MIB)) && !cache.serves(&(14 * MIB..18 * MIB)));
        assert!(!cache.serves(&(28 * MIB..32 * MIB)) && !cache.is_shared());
        let other = Arc::new(File::open(named.path()).unwrap());
        let theirs = opened(&other, PLENTY, false);
        assert!(theirs.is_shared(), "it came second");
        assert!(cache.serves(&(28 * MIB..36 * MIB)) && cache.is_shared());
        read(&other, 24 * MIB..28 * MIB);
        theirs.leave();
        assert!(cache.serves(&(24 * MIB..28 * MIB)), "they have brought it");
        assert!(!cache.serves(&(20 * MIB..24 * MIB)), "they are gone");
        assert_eq!(cache.reasons().len(), 3, "{:?}", cache.reasons());
    }

    #[test]
    fn files_that_do_not_fit_are_not_shared_and_that_is_said() {
        let (named, file) = quarter();
        let short = Memory { needed: 91, available: Some(100) };
        let cache = opened(&file, short, false);
        let other = Arc::new(File::open(named.path()).unwrap());
        let theirs = opened(&other, short, false);
        assert!(!cache.serves(&(0..4 * MIB)) && !theirs.serves(&(0..4 * MIB)));
        cache.leave();
        let reasons = cache.reasons();
        let [(false, why)] = reasons.as_slice() else { panic!("{reasons:?}") };
        assert!(why.contains("91 bytes") && why.contains("90% of the 100 bytes"), "{why}");
        theirs.leave();
        assert!(theirs.reasons().iter().all(|(cached, _)| !cached));
    }
}
