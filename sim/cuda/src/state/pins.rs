//! Pinned host memory, by address.

use std::collections::BTreeMap;
use std::io::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::{ptr, thread};

use super::vram::whole_pages;
use crate::code::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, OUT_OF_MEMORY, Result,
};
use crate::ffi::Address;
use crate::ledger::{Entry, Kind};
use crate::sync::{read, write};

/// `CU_MEMHOSTREGISTER_READ_ONLY`.
const REGISTER_READ_ONLY: u32 = 0x08;

/// A range of pinned host memory.
pub(crate) struct Pin {
    pub(crate) address: Address,
    pub(crate) len: u64,
    /// As given by the program.
    pub(crate) flags: u32,
    /// Registered by the program, else allocated by the driver.
    pub(crate) registered: bool,
    pub(crate) device: usize,
    pub(crate) context: u64,
    users: AtomicUsize,
    entry: Entry,
}

/// Keeps a pin from being taken away while a copy is using it.
pub(crate) struct PinInUse(Arc<Pin>);

impl PinInUse {
    pub(crate) fn pin(&self) -> &Pin {
        &self.0
    }
}

impl Drop for PinInUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The live pins.
#[derive(Default)]
pub(crate) struct Pins {
    by_address: RwLock<BTreeMap<Address, Arc<Pin>>>,
}

impl Pins {
    /// `cuMemHostRegister`: pins memory of the program's.
    pub(crate) fn register(
        &self,
        device: usize,
        context: u64,
        address: Address,
        len: u64,
        flags: u32,
    ) -> Result {
        let end = address.checked_add(len).filter(|_| address != 0 && len != 0).ok_or(INVALID_VALUE)?;
        if overlaps(&read(&self.by_address), address, end) {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        populate(address, len, flags & REGISTER_READ_ONLY != 0)?;
        let mut by_address = write(&self.by_address);
        if overlaps(&by_address, address, end) {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        by_address.insert(address, Arc::new(Pin::new(device, context, address, len, flags, true)));
        Ok(())
    }

    /// `cuMemHostAlloc`: pinned memory of the driver's.
    pub(crate) fn allocate(&self, device: usize, context: u64, len: u64, flags: u32) -> Result<Address> {
        let bytes = whole_pages(len).and_then(|len| usize::try_from(len).ok()).ok_or(OUT_OF_MEMORY)?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, kind, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        let address = mapped as Address;
        let pin = Pin::new(device, context, address, len, flags, false);
        write(&self.by_address).insert(address, Arc::new(pin));
        Ok(address)
    }

    /// `cuMemHostUnregister`.
    pub(crate) fn unregister(&self, address: Address) -> Result {
        self.remove(address, true).map_err(|_| HOST_MEMORY_NOT_REGISTERED)
    }

    /// `cuMemFreeHost`.
    pub(crate) fn free(&self, address: Address) -> Result {
        self.remove(address, false)
    }

    fn remove(&self, address: Address, registered: bool) -> Result {
        let mut by_address = write(&self.by_address);
        if by_address.get(&address).is_none_or(|pin| pin.registered != registered) {
            return Err(INVALID_VALUE);
        }
        let pin = by_address.remove(&address);
        drop(by_address);
        if let Some(pin) = pin {
            pin.entry.release();
            pin.retire();
        }
        Ok(())
    }

    /// Takes away what was pinned in a context that ends.
    pub(crate) fn drop_context(&self, context: u64) {
        let mut by_address = write(&self.by_address);
        let gone: Vec<_> = by_address.values().filter(|pin| pin.context == context).cloned().collect();
        for pin in &gone {
            by_address.remove(&pin.address);
        }
        drop(by_address);
        for pin in gone {
            pin.entry.drop_with_context();
            pin.retire();
        }
    }

    /// The pin that `address` lies in, kept from being taken away.
    pub(crate) fn find(&self, address: Address) -> Option<PinInUse> {
        let by_address = read(&self.by_address);
        let (_, pin) = by_address.range(..=address).next_back()?;
        if address - pin.address >= pin.len {
            return None;
        }
        pin.users.fetch_add(1, Ordering::AcqRel);
        Some(PinInUse(Arc::clone(pin)))
    }
}

impl Pin {
    fn new(device: usize, context: u64, address: Address, len: u64, flags: u32, registered: bool) -> Self {
        let entry = Entry::open(Kind::Pin, len);
        Self { address, len, flags, registered, device, context, users: AtomicUsize::new(0), entry }
    }

    /// Waits for a copy that is moving its bytes right now (not for copies yet to come: they will fail), then unmaps what
    /// the driver allocated.
    fn retire(&self) {
        while self.users.load(Ordering::Acquire) > 0 {
            thread::yield_now();
        }
        if !self.registered
            && let Some(len) = whole_pages(self.len)
        {
            // SAFETY: the range was mapped by `allocate`, and no pin nor copy refers to it any more.
            unsafe { libc::munmap(self.address as *mut _, len as usize) };
        }
    }
}

/// Whether a pin shares a byte with the range.
fn overlaps(pins: &BTreeMap<Address, Arc<Pin>>, start: Address, end: Address) -> bool {
    pins.range(..end).next_back().is_some_and(|(_, pin)| pin.address + pin.len > start)
}

/// Brings the pages in, as pinning does; an invalid value where the range is not all mapped and writable.
fn populate(address: Address, len: u64, read_only: bool) -> Result {
    let whole = |bytes: u64| whole_pages(bytes).ok_or(INVALID_VALUE);
    let start = whole(address.saturating_add(1))? - whole(1)?;
    let end = whole(address + len)?;
    let advice = if read_only { libc::MADV_POPULATE_READ } else { libc::MADV_POPULATE_WRITE };
    loop {
        // SAFETY: populating changes no contents; an unmapped range is an error, not a fault.
        if unsafe { libc::madvise(start as *mut _, (end - start) as usize, advice) } == 0 {
            return Ok(());
        }
        match Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // Kernels before 5.14 cannot populate: then nothing is checked.
            Some(libc::EINVAL) => return Ok(()),
            _ => return Err(INVALID_VALUE),
        }
    }
}
