//! What the page cache holds of a file, asked by `mincore(2)` here, apart from the code under test.
#![allow(dead_code, reason = "each test binary uses its part of this")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;

/// Writes `path` back and drops its pages.
pub(crate) fn evict(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    // SAFETY: a system call on an open descriptor, without pointers.
    let code = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(code, 0, "posix_fadvise");
}

/// Bytes of `path` from offset `from` on that are in the page cache, in whole pages.
pub(crate) fn resident_bytes(path: &Path, from: u64) -> u64 {
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    // SAFETY: a new mapping at a place of the kernel's choice, of an open file; it is never read.
    let map = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(map, libc::MAP_FAILED);
    let mut pages = vec![0_u8; len.div_ceil(page)];
    // SAFETY: the range is the mapping, and the vector has a byte for each of its pages.
    let code = unsafe { libc::mincore(map, len, pages.as_mut_ptr().cast()) };
    assert_eq!(code, 0, "mincore: {}", std::io::Error::last_os_error());
    // SAFETY: mapped above, and not used again.
    unsafe { libc::munmap(map, len) };
    let resident = pages.iter().skip(from as usize / page).filter(|page| **page & 1 == 1).count();
    (resident * page) as u64
}

/// Whether the pages of files in `folder` can be dropped: not on tmpfs.
pub(crate) fn can_be_cold(folder: &Path) -> bool {
    let probe = folder.join("probe");
    std::fs::write(&probe, vec![1; 1 << 20]).unwrap();
    evict(&probe);
    let cold = resident_bytes(&probe, 0) == 0;
    std::fs::remove_file(&probe).unwrap();
    cold
}
