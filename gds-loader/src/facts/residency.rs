//! How much of a file the page cache holds, where, and how to make it hold less.
//!
//! Three ways to ask, best first. `cachestat(2)` (Linux 6.5) counts the pages of a range. `mincore(2)` needs a mapping. Both
//! are for files that one owns or may write: elsewhere `cachestat` is refused since Linux 6.14, and `mincore` answers "all
//! resident" since 5.2, so it is not believed. There a `preadv2(RWF_NOWAIT)` sample says it of single pages, once: a page
//! that is not there is fetched by being asked for.
//!
//! What it costs: counting takes some 40 ns for a resident page and next to nothing for others, so a file that is resident is
//! not counted: [`PROBE`] bytes in the middle of each window are, a thirtieth. Only a file of which they tell that it is partly
//! resident is counted, window by window, at most [`MOST_WINDOWS`] of them, a byte each. A terabyte of resident shards costs half
//! a second so, spread over threads. A sample asks for at most [`SAMPLES`] pages of a file, and for [`FEWEST`] where none is there.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _};

use rustix::fs::{Advice, fadvise, fdatasync, fstat};

/// The share of a file's pages that the page cache holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Residency {
    /// Measured over the whole file, 0.0 to 1.0.
    Share(f64),
    /// The kernel would not tell.
    Unknown,
}

impl Residency {
    /// The share, where it is known.
    pub fn share(self) -> Option<f64> {
        match self {
            Self::Share(share) => Some(share),
            Self::Unknown => None,
        }
    }
}

/// Which parts of a file the page cache held when it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidencyMap {
    len: u64,
    /// Bytes of a window, the last of which may be shorter.
    window: u64,
    /// How much of each window is resident: 0 for nothing at all, [`WHOLE`] for all of it.
    shares: Vec<u8>,
}

/// The share of a window that is wholly resident.
const WHOLE: u8 = u8::MAX;

/// Windows are no shorter than this, in bytes: about one read.
const LEAST_WINDOW: u64 = 2 << 20;

/// A file has no more windows than this.
const MOST_WINDOWS: u64 = 16_384;

/// Bytes in the middle of each window that stand for it where all of them are resident.
const PROBE: u64 = 64 << 10;

impl ResidencyMap {
    /// Asks about `file`, `len` bytes long. None where the kernel would not tell.
    pub fn of(file: &File, len: u64) -> Option<Self> {
        if len == 0 {
            return None;
        }
        match Way::of(file) {
            Way::Cachestat => Self::by_probes(len, |range| cachestat(file, range)),
            Way::Mincore => Self::by_counts(len, |range| mincore(file, range)),
            Way::Sample => Self::by_sample(file, len),
        }
        .ok()
    }

    /// A map of so many bytes from the share of each window of `window` bytes, 0.0 to 1.0.
    #[cfg(test)]
    pub(crate) fn from_shares(window: u64, shares: &[f64]) -> Self {
        let shares: Vec<u8> = shares.iter().map(|share| (share * f64::from(WHOLE)) as u8).collect();
        Self { len: window * shares.len() as u64, window, shares }
    }

    /// Counts only where probes do not find every window resident.
    fn by_probes(len: u64, count: impl Fn(Range<u64>) -> io::Result<u64>) -> io::Result<Self> {
        let page = rustix::param::page_size() as u64;
        let window = window_of(len);
        for start in (0..len).step_by(window as usize) {
            let middle = (start + (len - start).min(window) / 2) / page * page;
            let probe = middle..(middle + PROBE.max(page)).min(len);
            let pages = (probe.end - probe.start).div_ceil(page);
            if count(probe)? < pages {
                return Self::by_counts(len, count);
            }
        }
        Ok(Self { len, window: len, shares: vec![WHOLE] })
    }

    /// One count for the whole file, and more only where that leaves a question.
    fn by_counts(len: u64, count: impl Fn(Range<u64>) -> io::Result<u64>) -> io::Result<Self> {
        let page = rustix::param::page_size() as u64;
        let share = |range: Range<u64>| -> io::Result<u8> {
            let pages = (range.end - range.start).div_ceil(page);
            let resident = count(range)?.min(pages);
            Ok(match resident {
                0 => 0,
                all if all == pages => WHOLE,
                // Neither nothing nor all, however little is missing.
                some => (some * u64::from(WHOLE) / pages).clamp(1, u64::from(WHOLE) - 1) as u8,
            })
        };
        let whole = share(0..len)?;
        if whole == 0 || whole == WHOLE {
            return Ok(Self { len, window: len, shares: vec![whole] });
        }
        let window = window_of(len);
        let starts = (0..len).step_by(window as usize);
        let shares =
            starts.map(|start| share(start..(start + window).min(len))).collect::<io::Result<_>>()?;
        Ok(Self { len, window, shares })
    }

    /// One page stands for a window.
    fn by_sample(file: &File, len: u64) -> io::Result<Self> {
        let window = len.div_ceil(SAMPLES).max(LEAST_WINDOW).next_power_of_two();
        let windows = len.div_ceil(window);
        let mut shares = vec![0; windows as usize];
        // Without readahead, or each page that is not there brings its neighbours. That is advice, which may be refused.
        let _ = fadvise(file.as_fd(), 0, None, Advice::Random);
        let outcome = spread(windows).enumerate().try_for_each(|(asked, window_index)| {
            let start = window_index * window;
            let middle = start + (len - start).min(window) / 2;
            if asked as u64 >= FEWEST && shares.iter().all(|share| *share == 0) {
                return Ok(());
            }
            if is_there(file, middle)? {
                shares[window_index as usize] = WHOLE;
            }
            Ok(())
        });
        let _ = fadvise(file.as_fd(), 0, None, Advice::Normal);
        outcome.map(|()| Self { len, window, shares })
    }

    /// The share of the whole file.
    pub fn share(&self) -> f64 {
        let resident: f64 =
            self.windows().map(|(range, share)| share * (range.end - range.start) as f64).sum();
        resident / self.len as f64
    }

    /// Every window and its share, 0.0 to 1.0, in order.
    pub fn windows(&self) -> impl Iterator<Item = (Range<u64>, f64)> {
        self.shares.iter().enumerate().map(|(index, share)| {
            let start = index as u64 * self.window;
            (start..(start + self.window).min(self.len), f64::from(*share) / f64::from(WHOLE))
        })
    }

    /// The stretches of which nothing was resident.
    pub fn absent(&self) -> Vec<Range<u64>> {
        let mut stretches: Vec<Range<u64>> = Vec::new();
        for (range, _) in self.windows().filter(|(_, share)| *share == 0.0) {
            match stretches.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => stretches.push(range),
            }
        }
        stretches
    }
}

/// Bytes of a window of a file of `len` bytes.
fn window_of(len: u64) -> u64 {
    len.div_ceil(MOST_WINDOWS).max(LEAST_WINDOW).next_power_of_two()
}

/// How to ask about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Cachestat,
    Mincore,
    Sample,
}

impl Way {
    fn of(file: &File) -> Self {
        if cachestat(file, 0..1).is_ok() {
            Self::Cachestat
        } else if mincore_tells_the_truth(file) && mincore(file, 0..1).is_ok() {
            Self::Mincore
        } else {
            Self::Sample
        }
    }
}

/// Asks how much of `file`, `len` bytes long, is in the page cache.
pub fn residency(file: &File, len: u64) -> Residency {
    ResidencyMap::of(file, len).map_or(Residency::Unknown, |map| Residency::Share(map.share()))
}

/// Whether the page cache holds all of this range now, as far as the kernel tells.
pub fn is_resident(file: &File, range: Range<u64>) -> bool {
    let pages = (range.end - range.start).div_ceil(rustix::param::page_size() as u64);
    match Way::of(file) {
        Way::Cachestat => cachestat(file, range).is_ok_and(|count| count >= pages),
        Way::Mincore => mincore(file, range).is_ok_and(|count| count >= pages),
        Way::Sample if range.is_empty() => true,
        Way::Sample => [range.start, range.start.midpoint(range.end), range.end - 1]
            .into_iter()
            .all(|offset| is_there(file, offset).unwrap_or(false)),
    }
}

/// Drops `file`'s pages from the page cache, after writing back dirty ones (which cannot be dropped).
///
/// # Errors
/// What `fdatasync(2)` or `posix_fadvise(2)` says. Success does not prove the cache is empty: pages that someone has mapped
/// stay, so ask [`residency`] afterwards.
pub fn evict(file: &File) -> io::Result<()> {
    // A file opened for reading may still be synced; a file system that cannot (EINVAL, EROFS) has nothing dirty.
    let _ = fdatasync(file.as_fd());
    Ok(fadvise(file.as_fd(), 0, None, Advice::DontNeed)?)
}

/// Drops the clean pages of this range that nobody has mapped; pages that lie in it in part stay.
///
/// # Errors
/// What `posix_fadvise(2)` says.
pub fn drop_pages(file: &File, range: Range<u64>) -> io::Result<()> {
    // A length of 0 would mean "to the end of the file".
    match NonZeroU64::new(range.end.saturating_sub(range.start)) {
        Some(len) => Ok(fadvise(file.as_fd(), range.start, Some(len), Advice::DontNeed)?),
        None => Ok(()),
    }
}

/// `struct cachestat_range` of `linux/mman.h`.
#[repr(C)]
struct CachestatRange {
    offset: u64,
    len: u64,
}

/// `struct cachestat` of `linux/mman.h`: counts of pages.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// The number of the system call, the same on every architecture (`asm-generic/unistd.h`).
const SYS_CACHESTAT: libc::c_long = 451;

/// Pages of this range, which is not empty, that are in the page cache.
fn cachestat(file: &File, range: Range<u64>) -> io::Result<u64> {
    let range = CachestatRange { offset: range.start, len: range.end - range.start };
    let mut answer = Cachestat::default();
    // SAFETY: both structures have the kernel's layout, live on this stack for the whole call, and the kernel writes only
    // within the second.
    let code =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut answer, 0_u32) };
    if code == 0 { Ok(answer.cached) } else { Err(io::Error::last_os_error()) }
}

/// Who owns a file whose owner this user namespace has no number for (`/proc/sys/kernel/overflowuid`).
const NOBODY: u32 = 65_534;

/// Whether `mincore` answers truthfully about `file`: the kernel does so for its owner, for root, where it is root of the
/// owner too, and for who may write it, which is not asked.
fn mincore_tells_the_truth(file: &File) -> bool {
    let user = rustix::process::geteuid();
    fstat(file.as_fd())
        .is_ok_and(|stat| stat.st_uid == user.as_raw() || (user.is_root() && stat.st_uid != NOBODY))
}

/// The part of a file mapped at a time: enough to be quick, little enough for any address space.
const MAPPED: u64 = 1 << 30;

/// Pages of this range that are in the page cache; `range.start` is a multiple of the page size.
fn mincore(file: &File, range: Range<u64>) -> io::Result<u64> {
    let page = rustix::param::page_size();
    let mut resident = 0;
    for offset in range.clone().step_by(MAPPED as usize) {
        let length = (range.end - offset).min(MAPPED) as usize;
        // SAFETY: the mapping is never read, so a file that changes or shrinks meanwhile does no harm.
        let map = unsafe { memmap2::MmapOptions::new().offset(offset).len(length).map(file) }?;
        let mut vector = vec![0_u8; length.div_ceil(page)];
        // SAFETY: the range is exactly the mapping's, and the vector has one byte for each of its pages.
        let code =
            unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), length, vector.as_mut_ptr().cast()) };
        if code != 0 {
            return Err(io::Error::last_os_error());
        }
        resident += vector.iter().filter(|page| **page & 1 != 0).count() as u64;
    }
    Ok(resident)
}

/// Pages of a file asked for at most where only a sample can be had.
const SAMPLES: u64 = 64;

/// Pages asked for before a file is called cold: spread over it, so that a resident half or quarter is not missed.
const FEWEST: u64 = 8;

/// Every index below `count`, each far from those before it.
fn spread(count: u64) -> impl Iterator<Item = u64> {
    let bits = count.next_power_of_two().trailing_zeros();
    (0..1_u64 << bits)
        .map(move |index| if bits == 0 { 0 } else { index.reverse_bits() >> (64 - bits) })
        .filter(move |index| *index < count)
}

/// Whether this byte can be read without waiting for a disk.
fn is_there(file: &File, offset: u64) -> io::Result<bool> {
    let mut byte = [0_u8; 1];
    let vector = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: the vector names one live byte of this stack, which the call may write.
    let got =
        unsafe { libc::preadv2(file.as_raw_fd(), &raw const vector, 1, offset as i64, libc::RWF_NOWAIT) };
    match got {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            error => Err(error),
        },
        // 0 is the end of a file that has shrunk; that is found when it is read.
        got => Ok(got == 1),
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges, of which some have one")]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::FileExt as _;

    const MIB: u64 = 1 << 20;

    fn file_of(len: usize) -> File {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![7; len]).unwrap();
        file
    }

    /// A file of 32 MiB of which the second quarter is in the page cache; no readahead blurs it.
    fn quarter() -> File {
        let file = file_of(32 << 20);
        evict(&file).unwrap();
        fadvise(file.as_fd(), 0, None, Advice::Random).unwrap();
        file.read_exact_at(&mut vec![0; 8 << 20], 8 * MIB).unwrap();
        file
    }

    #[test]
    fn a_file_just_written_is_resident_and_an_evicted_one_is_not() {
        let file = file_of(8 << 20);
        assert_eq!(residency(&file, 8 << 20).share(), Some(1.0));
        evict(&file).unwrap();
        assert_eq!(residency(&file, 8 << 20).share(), Some(0.0));
    }

    #[test]
    fn every_way_to_ask_finds_the_resident_quarter() {
        let file = quarter();
        let expected: Vec<f64> = (0..16).map(|k| if (4..8).contains(&k) { 1.0 } else { 0.0 }).collect();
        let expected = ResidencyMap::from_shares(2 * MIB, &expected);
        let by_mincore = ResidencyMap::by_counts(32 * MIB, |range| mincore(&file, range)).unwrap();
        assert_eq!(by_mincore, expected);
        if cachestat(&file, 0..1).is_ok() {
            let count = |range| cachestat(&file, range);
            assert_eq!(ResidencyMap::by_counts(32 * MIB, count).unwrap(), expected);
            assert_eq!(ResidencyMap::by_probes(32 * MIB, count).unwrap(), expected);
        }
        assert_eq!(ResidencyMap::by_sample(&file, 32 * MIB).unwrap(), expected);
        assert_eq!(expected.share(), 0.25);
        assert_eq!(expected.absent(), [0..8 * MIB, 16 * MIB..32 * MIB]);
        assert!(is_resident(&file, 8 * MIB..16 * MIB));
    }

    #[test]
    fn a_sample_of_a_cold_file_asks_for_little() {
        let file = file_of(256 << 20);
        evict(&file).unwrap();
        assert_eq!(ResidencyMap::by_sample(&file, 256 * MIB).unwrap().share(), 0.0);
        let fetched = mincore(&file, 0..256 * MIB).unwrap();
        assert!(fetched <= FEWEST, "{fetched} pages were fetched");
    }

    #[test]
    fn a_page_more_or_less_is_neither_nothing_nor_all() {
        let file = file_of(4 << 20);
        evict(&file).unwrap();
        fadvise(file.as_fd(), 0, None, Advice::Random).unwrap();
        file.read_exact_at(&mut [0], 3 * MIB).unwrap();
        let map = ResidencyMap::of(&file, 4 * MIB).unwrap();
        assert!(map.share() > 0.0 && map.share() < 0.01, "{}", map.share());
        assert_eq!(map.absent(), [0..2 * MIB]);
        assert!(!is_resident(&file, 2 * MIB..4 * MIB));
    }

    #[test]
    fn pages_that_lie_in_a_range_are_dropped_and_no_others() {
        let file = file_of(8 << 20);
        file.sync_all().unwrap();
        drop_pages(&file, 2 * MIB..4 * MIB).unwrap();
        drop_pages(&file, 6 * MIB..6 * MIB).unwrap();
        let expected = ResidencyMap::from_shares(2 * MIB, &[1.0, 0.0, 1.0, 1.0]);
        assert_eq!(ResidencyMap::of(&file, 8 * MIB), Some(expected));
    }

    #[test]
    fn a_resident_file_is_probed_and_any_other_is_counted() {
        use std::cell::Cell;
        let len = 1 << 30;
        let asked = Cell::new(0);
        // Resident but for the window that begins at `hole`.
        let count = |hole: Option<u64>| {
            let asked = &asked;
            move |range: Range<u64>| {
                asked.set(asked.get() + (range.end - range.start));
                let missing =
                    hole.map_or(0, |at| (at + 2 * MIB).min(range.end).saturating_sub(at.max(range.start)));
                Ok((range.end - range.start - missing) / 4096)
            }
        };
        if rustix::param::page_size() != 4096 {
            return;
        }
        assert_eq!(ResidencyMap::by_probes(len, count(None)).unwrap().share(), 1.0);
        assert_eq!(asked.get(), len / 32, "bytes counted of a resident file");
        for hole in [0, 512 * MIB, 1022 * MIB] {
            let map = ResidencyMap::by_probes(len, count(Some(hole))).unwrap();
            assert_eq!(map.absent(), [hole..hole + 2 * MIB]);
        }
    }

    #[test]
    fn indexes_are_spread_and_none_is_left_out() {
        assert_eq!(spread(8).collect::<Vec<_>>(), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(spread(1).collect::<Vec<_>>(), [0]);
        for count in [2, 5, 13, 64] {
            let mut all: Vec<u64> = spread(count).collect();
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_empty_file_has_no_share() {
        assert_eq!(residency(&file_of(0), 0), Residency::Unknown);
    }
}
