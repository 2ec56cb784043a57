//! How much of a file the page cache holds, and how to make it hold nothing.
//!
//! Three ways to ask, best first. `cachestat(2)` (Linux 6.5) counts pages without mapping anything. `mincore(2)` needs a
//! mapping and, since Linux 5.2, answers "all resident" about files one neither owns nor may write, so it is believed only
//! for the others. A `preadv2(RWF_NOWAIT)` sample tells the truth once: its readahead makes the next answer "yes".

use std::fs::File;
use std::io;
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

/// Asks how much of `file`, `len` bytes long, is in the page cache.
pub fn residency(file: &File, len: u64) -> Residency {
    if len == 0 {
        return Residency::Unknown;
    }
    let pages = len.div_ceil(rustix::param::page_size() as u64);
    let share = |resident: u64| Residency::Share((resident as f64 / pages as f64).min(1.0));
    if let Ok(resident) = cachestat(file, len) {
        return share(resident);
    }
    if mincore_tells_the_truth(file)
        && let Ok(resident) = mincore(file, len)
    {
        return share(resident);
    }
    sample(file, len).map_or(Residency::Unknown, Residency::Share)
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

fn cachestat(file: &File, len: u64) -> io::Result<u64> {
    let range = CachestatRange { offset: 0, len };
    let mut answer = Cachestat::default();
    // SAFETY: both structures have the kernel's layout, live on this stack for the whole call, and the kernel writes only
    // within the second.
    let code =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut answer, 0_u32) };
    if code == 0 { Ok(answer.cached) } else { Err(io::Error::last_os_error()) }
}

/// Whether `mincore` answers truthfully about `file`: the kernel does so for its owner and for who may write it.
fn mincore_tells_the_truth(file: &File) -> bool {
    let owned = fstat(file.as_fd()).is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw());
    owned || rustix::process::geteuid().is_root()
}

/// The part of a file mapped at a time: enough to be quick, little enough for any address space.
const MAPPED: u64 = 1 << 30;

fn mincore(file: &File, len: u64) -> io::Result<u64> {
    let page = rustix::param::page_size();
    let mut resident = 0;
    for offset in (0..len).step_by(MAPPED as usize) {
        let length = (len - offset).min(MAPPED) as usize;
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

/// Offsets looked at where only a sample can be had.
const SAMPLES: u64 = 64;

/// The share of sampled pages that can be read without waiting for a disk.
fn sample(file: &File, len: u64) -> Option<f64> {
    let mut byte = [0_u8; 1];
    let step = (len / SAMPLES).max(1);
    let (mut hits, mut asked) = (0_u32, 0_u32);
    for offset in (0..len).step_by(step as usize).take(SAMPLES as usize) {
        let vector = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        // SAFETY: the vector names one live byte of this stack, which the call may write.
        let got =
            unsafe { libc::preadv2(file.as_raw_fd(), &raw const vector, 1, offset as i64, libc::RWF_NOWAIT) };
        match got {
            1 => hits += 1,
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock => {}
            _ => return None,
        }
        asked += 1;
    }
    (asked > 0).then(|| f64::from(hits) / f64::from(asked))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn file_of(len: usize) -> File {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![7; len]).unwrap();
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
    fn the_ways_to_ask_agree() {
        let file = file_of(4 << 20);
        evict(&file).unwrap();
        assert_eq!(sample(&file, 4 << 20), Some(0.0));
        evict(&file).unwrap();
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, 1 << 20).unwrap();
        let by_mincore = mincore(&file, 4 << 20).unwrap();
        assert!(by_mincore > 0 && by_mincore < 1024, "{by_mincore} of 1024 pages");
        if let Ok(by_cachestat) = cachestat(&file, 4 << 20) {
            assert_eq!(by_cachestat, by_mincore);
        }
    }

    #[test]
    fn an_empty_file_has_no_share() {
        assert_eq!(residency(&file_of(0), 0), Residency::Unknown);
    }
}
