//! The memory of one device: a memfd, of which each allocation is an extent mapped twice.
//!
//! The public mapping allows nothing: its address is the device pointer, and host code that follows it faults. The alias is
//! what the simulator copies through. Being shared memory, it never counts as the program's anonymous memory. Offsets
//! are never used twice (the file is sparse), so an allocation is a bump of a counter and a free a hole.

use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::code::{OPERATING_SYSTEM, OUT_OF_MEMORY, Result};
use crate::process::system_error;

/// The file's length: more than will ever be allocated. Set once, so that a limit on file sizes set later does not matter.
const LENGTH: i64 = 1 << 60;

/// A device's memory.
pub(crate) struct Vram {
    file: OnceLock<Option<File>>,
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

    fn file(&self) -> Result<&File> {
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
            Some(file)
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

    /// Gives the pages of an extent back to the system.
    pub(crate) fn discard(&self, offset: u64, rounded: u64) {
        if let Ok(file) = self.file() {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: plain system call on our descriptor; no mapping of the extent is left.
            unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, rounded as i64) };
        }
    }

    /// The descriptor of the file, for another process to open.
    pub(crate) fn descriptor(&self) -> Result<i32> {
        self.file().map(|file| file.as_raw_fd())
    }
}

/// An extent of a memfd, mapped twice.
pub(crate) struct Mapping {
    /// What the program sees.
    pub(crate) public: u64,
    /// What the simulator copies through.
    pub(crate) alias: *mut u8,
    pub(crate) offset: u64,
    /// Bytes, whole pages.
    pub(crate) len: u64,
}

// SAFETY: plain addresses; what is read and written through the alias is the program's to order, as with device memory.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(file: &File, offset: u64, len: u64, host_visible: bool) -> Result<Self> {
        let map = |protection: i32| {
            let bytes = usize::try_from(len).map_err(|_| OUT_OF_MEMORY)?;
            let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
            // SAFETY: a new mapping at an address of the kernel's choice.
            let address = unsafe {
                libc::mmap(ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), offset as i64)
            };
            if address == libc::MAP_FAILED {
                eprintln!("cuda-sim: mmap of {len} bytes of device memory: {}", Error::last_os_error());
                return Err(OUT_OF_MEMORY);
            }
            Ok(address.cast::<u8>())
        };
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        let public = map(if host_visible { writable } else { libc::PROT_NONE })?;
        let alias = if host_visible { Ok(public) } else { map(writable) };
        let alias = alias.inspect_err(|_| unmap(public, len))?;
        // SAFETY: the range was mapped above. Advice may be refused.
        unsafe {
            libc::madvise(alias.cast(), len as usize, libc::MADV_HUGEPAGE);
            libc::madvise(alias.cast(), len as usize, libc::MADV_DONTFORK);
        }
        Ok(Self { public: public as u64, alias, offset, len })
    }

    /// Takes the range away from the program; the alias stays for copies in progress until [`Mapping::unmap_alias`].
    pub(crate) fn unmap_public(&self) {
        if self.alias as u64 != self.public {
            unmap(self.public as *mut u8, self.len);
        }
    }

    pub(crate) fn unmap_alias(&self) {
        unmap(self.alias, self.len);
    }
}

fn unmap(address: *mut u8, len: u64) {
    // SAFETY: the callers pass a range that `Mapping::new` mapped, once each.
    unsafe { libc::munmap(address.cast(), len as usize) };
}
