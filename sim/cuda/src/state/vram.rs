//! The memory of one device: a memfd, of which each allocation is an extent.
//!
//! The public mapping of an extent allows nothing: its address is the device pointer, and host code that follows it faults.
//! Copies go through the file itself (pread, pwrite), which is three times as fast as a mapping for pages touched for the
//! first time, as a loader does, and turns a host address that is not there into an error instead of a fault. A mapping that
//! can be written, the alias, is made where one is needed. Being shared memory, none of it ever counts as the program's
//! anonymous memory. Offsets are never used twice (the file is sparse): allocating bumps a counter, freeing punches a hole.

use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::code::{ILLEGAL_ADDRESS, OPERATING_SYSTEM, OUT_OF_MEMORY, Result, UNKNOWN};
use crate::process::system_error;

/// The file's length: more than will ever be allocated. Set once, so that a limit on file sizes set later does not matter.
const LENGTH: i64 = 1 << 60;

/// A device's memory.
pub(crate) struct Vram {
    file: OnceLock<Option<Arc<File>>>,
    next_offset: AtomicU64,
    size: u64,
    used: AtomicU64,
    peak: AtomicU64,
}

/// Rounds up to whole pages; `None` where that is no length.
pub(crate) fn whole_pages(len: u64) -> Option<u64> {
    // SAFETY: sysconf only looks a value up.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    len.checked_next_multiple_of(page)
}

impl Vram {
    pub(crate) fn new(size: u64) -> Self {
        Self {
            file: OnceLock::new(),
            next_offset: AtomicU64::new(0),
            size,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        }
    }

    /// Bytes there are.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes allocated, in whole pages.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The most bytes ever allocated at once.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    fn file(&self) -> Result<&Arc<File>> {
        let file = self.file.get_or_init(|| {
            // SAFETY: the name is terminated.
            let fd = unsafe { libc::memfd_create(c"cuda-sim".as_ptr(), libc::MFD_CLOEXEC) };
            if fd < 0 {
                system_error("memfd_create", OPERATING_SYSTEM);
                return None;
            }
            // SAFETY: a fresh descriptor that nobody else has.
            let file = unsafe { File::from_raw_fd(fd) };
            // SAFETY: plain system call on our descriptor.
            if unsafe { libc::ftruncate(fd, LENGTH) } != 0 {
                system_error("ftruncate", OPERATING_SYSTEM);
                return None;
            }
            Some(Arc::new(file))
        });
        file.as_ref().ok_or(OPERATING_SYSTEM)
    }

    /// Takes `len` bytes (rounded up to pages). `host_visible` makes the public range accessible: managed memory.
    pub(crate) fn allocate(&self, len: u64, host_visible: bool) -> Result<Mapping> {
        let rounded = whole_pages(len).ok_or(OUT_OF_MEMORY)?;
        let take = |used: u64| used.checked_add(rounded).filter(|&sum| sum <= self.size);
        let used =
            self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).map_err(|_| OUT_OF_MEMORY)?;
        self.peak.fetch_max(used + rounded, Ordering::Relaxed);
        let offset = self.next_offset.fetch_add(rounded, Ordering::Relaxed);
        let mapping = self.file().and_then(|file| Mapping::new(file, offset, rounded, host_visible));
        mapping.inspect_err(|_| self.give_back(rounded))
    }

    /// Takes the pages of a freed mapping back into account.
    pub(crate) fn give_back(&self, rounded: u64) {
        self.used.fetch_sub(rounded, Ordering::Relaxed);
    }

    /// The descriptor of the file, for another process to open.
    pub(crate) fn descriptor(&self) -> Result<i32> {
        self.file().map(|file| file.as_raw_fd())
    }
}

/// An extent of a memfd.
pub(crate) struct Mapping {
    file: Arc<File>,
    /// Where it is in the file.
    pub(crate) offset: u64,
    /// Bytes, whole pages.
    pub(crate) len: u64,
    /// What the program sees.
    pub(crate) public: u64,
    host_visible: bool,
    /// Where the simulator can reach it; made when first needed.
    alias: OnceLock<Result<u64>>,
}

impl Mapping {
    pub(crate) fn new(file: &Arc<File>, offset: u64, len: u64, host_visible: bool) -> Result<Self> {
        let protection = if host_visible { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        let public = map(file, offset, len, protection)?;
        Ok(Self { file: Arc::clone(file), offset, len, public, host_visible, alias: OnceLock::new() })
    }

    /// Where the simulator can read and write the extent.
    pub(crate) fn alias(&self) -> Result<*mut u8> {
        if self.host_visible {
            return Ok(self.public as *mut u8);
        }
        let make = || map(&self.file, self.offset, self.len, libc::PROT_READ | libc::PROT_WRITE);
        self.alias.get_or_init(make).map(|alias| alias as *mut u8)
    }

    /// Writes `len` bytes from `from` at `start`. An address that is not there is an illegal address.
    ///
    /// # Safety
    /// - `start + len` is inside the extent.
    /// - Nothing else writes the `len` bytes at `from` in the meantime, or the program has a race of its own.
    pub(crate) unsafe fn write(&self, start: u64, from: *const u8, len: usize) -> Result {
        if self.host_visible || file_sizes_are_limited() {
            // SAFETY: inside the extent by the caller's promise; the source is the program's to keep.
            unsafe { ptr::copy(from, self.alias()?.add(start as usize), len) };
            return Ok(());
        }
        whole(len, |done| {
            let offset = (self.offset + start) as i64 + done as i64;
            // SAFETY: the kernel checks the source's addresses.
            unsafe { libc::pwrite(self.file.as_raw_fd(), from.add(done).cast(), len - done, offset) }
        })
    }

    /// Reads `len` bytes at `start` into `to`. An address that is not there is an illegal address.
    ///
    /// # Safety
    /// - `start + len` is inside the extent.
    /// - Nothing else uses the `len` bytes at `to` in the meantime, or the program has a race of its own.
    pub(crate) unsafe fn read(&self, start: u64, to: *mut u8, len: usize) -> Result {
        if self.host_visible {
            // SAFETY: inside the extent by the caller's promise; the destination is the program's to keep.
            unsafe { ptr::copy(self.alias()?.add(start as usize), to, len) };
            return Ok(());
        }
        whole(len, |done| {
            let offset = (self.offset + start) as i64 + done as i64;
            // SAFETY: the kernel checks the destination's addresses.
            unsafe { libc::pread(self.file.as_raw_fd(), to.add(done).cast(), len - done, offset) }
        })
    }

    /// Takes the range away from the program. What still uses the extent goes on using it.
    pub(crate) fn unmap_public(&self) {
        if !self.host_visible {
            unmap(self.public, self.len);
        }
    }

    /// Unmaps what is left. The last use.
    pub(crate) fn unmap(&self) {
        if self.host_visible {
            unmap(self.public, self.len);
        } else if let Some(Ok(alias)) = self.alias.get() {
            unmap(*alias, self.len);
        }
    }

    /// Gives the pages back to the system.
    pub(crate) fn discard(&self) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: plain system call on our descriptor; nobody uses the extent any more.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, self.offset as i64, self.len as i64) };
    }
}

/// Repeats a transfer that may be short until `len` bytes are done.
fn whole(len: usize, mut transfer: impl FnMut(usize) -> isize) -> Result {
    let mut done = 0;
    while done < len {
        match usize::try_from(transfer(done)) {
            Ok(0) => return Err(ILLEGAL_ADDRESS),
            Ok(count) => done += count,
            Err(_) => match Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EFAULT) => return Err(ILLEGAL_ADDRESS),
                _ => return Err(system_error("copying", UNKNOWN)),
            },
        }
    }
    Ok(())
}

/// Whether the program limits the size of the files it writes (RLIMIT_FSIZE): the memfd would count as one of them.
fn file_sizes_are_limited() -> bool {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is valid for writing.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    limit.rlim_cur != libc::RLIM_INFINITY
}

fn map(file: &File, offset: u64, len: u64, protection: i32) -> Result<u64> {
    let bytes = usize::try_from(len).map_err(|_| OUT_OF_MEMORY)?;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address =
        unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), offset as i64) };
    if address == libc::MAP_FAILED {
        return Err(system_error("mapping device memory", OUT_OF_MEMORY));
    }
    // SAFETY: the range was mapped above. A child of a fork has no use for it.
    unsafe { libc::madvise(address, bytes, libc::MADV_DONTFORK) };
    Ok(address as u64)
}

fn unmap(address: u64, len: u64) {
    // SAFETY: the callers pass a range that `map` made, once each.
    unsafe { libc::munmap(address as *mut _, len as usize) };
}
