//! The memory of one device: a memfd, of which each allocation is an extent.
//!
//! The public mapping of an extent allows nothing: its address is the device pointer, and host code that follows it faults.
//! Copies go through the file itself (pread, pwrite), which is three times as fast as a mapping for pages touched for the
//! first time, as a loader does, and turns a host address that is not there into an error instead of a fault. A mapping that
//! can be written, the alias, is made where one is needed. Being shared memory, none of it ever counts as the program's
//! anonymous memory. Offsets are never used twice (the file is sparse): allocating bumps a counter, freeing punches a hole.
//! Only what is resident from the start, at the front of the file, is: see [`super::resident`].

use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::resident::{Piece, Resident};
use crate::code::{ILLEGAL_ADDRESS, OPERATING_SYSTEM, OUT_OF_MEMORY, Result, UNKNOWN};
use crate::process::system_error;

/// The file's length: more than will ever be allocated. Set once, so that a limit on file sizes set later does not matter.
const LENGTH: i64 = 1 << 60;

/// A device's memory.
pub(crate) struct Vram {
    file: OnceLock<Option<Arc<File>>>,
    /// `None` inside where there is none, or it could not be made.
    resident: OnceLock<Option<Arc<Resident>>>,
    resident_len: u64,
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
    /// Memory of `size` bytes, of which `resident` are to have their pages from the start.
    pub(crate) fn new(size: u64, resident: u64) -> Self {
        let resident_len = whole_pages(resident.min(size)).unwrap_or(0);
        Self {
            file: OnceLock::new(),
            resident: OnceLock::new(),
            resident_len,
            next_offset: AtomicU64::new(resident_len),
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

    /// Bytes that have their pages from the start, and of them in use.
    pub(crate) fn resident(&self) -> (u64, u64) {
        let resident = self.resident.get().and_then(Option::as_ref);
        resident.map_or((0, 0), |resident| (self.resident_len, self.resident_len - resident.free()))
    }

    /// Brings in the memory that is to be resident, the first time.
    pub(crate) fn make_resident(&self) {
        self.resident.get_or_init(|| {
            let file = self.file().ok().filter(|_| self.resident_len > 0)?;
            Resident::new(file, self.resident_len).map(Arc::new)
        });
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
        self.map(rounded, host_visible).inspect_err(|_| self.give_back(rounded))
    }

    /// Maps so many whole pages that nobody has: resident ones as long as there are.
    fn map(&self, len: u64, host_visible: bool) -> Result<Mapping> {
        let resident = self.resident.get().and_then(Option::as_ref);
        let piece = resident.and_then(|resident| resident.take(len));
        let offset = match &piece {
            Some(piece) => piece.offset,
            None => self.next_offset.fetch_add(len, Ordering::Relaxed),
        };
        Ok(Mapping { piece, ..Mapping::new(self.file()?, offset, len, host_visible)? })
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
    /// Resident memory; free for others when this is dropped.
    piece: Option<Piece>,
    /// Where the simulator can reach it where it is not resident; made when first needed.
    alias: OnceLock<Result<u64>>,
}

impl Mapping {
    pub(crate) fn new(file: &Arc<File>, offset: u64, len: u64, host_visible: bool) -> Result<Self> {
        let protection = if host_visible { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        let public = map(file, offset, len, protection)?;
        Ok(Self {
            file: Arc::clone(file),
            offset,
            len,
            public,
            host_visible,
            piece: None,
            alias: OnceLock::new(),
        })
    }

    /// Where the simulator can read and write the extent.
    pub(crate) fn alias(&self) -> Result<*mut u8> {
        if self.host_visible {
            return Ok(self.public as *mut u8);
        }
        if let Some(piece) = &self.piece {
            return Ok(piece.address() as *mut u8);
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
        let resident = self.piece.is_some() && can_be_read(from, len);
        if resident || self.host_visible || file_sizes_are_limited() {
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

    /// Gives the pages back to the system, but for resident ones.
    pub(crate) fn discard(&self) {
        if self.piece.is_some() {
            return;
        }
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

/// Whether host code can read `len` bytes at `from`. Then resident memory is written through its mapping, at twice the speed of
/// the file; a kernel that does not tell (before 5.14) leaves it at the file's.
fn can_be_read(from: *const u8, len: usize) -> bool {
    // SAFETY: sysconf only looks a value up.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let before = from.addr() % page;
    // SAFETY: brings in the pages of the range as reading it would, or says that it cannot.
    unsafe { libc::madvise(from.wrapping_sub(before) as *mut _, before + len, libc::MADV_POPULATE_READ) == 0 }
}

/// Whether the program limits the size of the files it writes (RLIMIT_FSIZE): the memfd would count as one of them.
fn file_sizes_are_limited() -> bool {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is valid for writing.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    limit.rlim_cur != libc::RLIM_INFINITY
}

/// Maps a range of the file. A child of a fork does not have it.
pub(super) fn map(file: &File, offset: u64, len: u64, protection: i32) -> Result<u64> {
    let bytes = usize::try_from(len).map_err(|_| OUT_OF_MEMORY)?;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address =
        unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), offset as i64) };
    if address == libc::MAP_FAILED {
        return Err(system_error("mapping device memory", OUT_OF_MEMORY));
    }
    // SAFETY: the range was mapped above.
    unsafe { libc::madvise(address, bytes, libc::MADV_DONTFORK) };
    Ok(address as u64)
}

fn unmap(address: u64, len: u64) {
    // SAFETY: the callers pass a range that `map` made, once each.
    unsafe { libc::munmap(address as *mut _, len as usize) };
}
