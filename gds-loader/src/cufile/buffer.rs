//! Registered memory: mapped for the storage once, so that transfers go straight to it.
//!
//! A [`RegisteredBuffer`] is unique access to a range of memory, as a [`RegionMut`] is, together with its share of the
//! registration. It can be split; the last part deregisters, and only then can the memory be freed. Registering is slow
//! and its room (the GPU's BAR1) small, so register once, keep within a [`RegistrationBudget`], and carve.

use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_staging::{Device, RegionMut, Window};

use super::driver::{Driver, Release};
use super::error::{CuFileError, CuFileResult};
use super::memory::Span;

/// How many bytes may be registered at a time, by all who share it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RegistrationBudget {
    counts: Arc<Counts>,
}

#[derive(Debug)]
struct Counts {
    limit: u64,
    used: AtomicU64,
    peak: AtomicU64,
}

impl RegistrationBudget {
    /// At most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        let (used, peak) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { counts: Arc::new(Counts { limit, used, peak }) }
    }

    /// The most bytes that may be registered.
    pub fn limit(&self) -> u64 {
        self.counts.limit
    }

    /// Bytes registered now.
    pub fn used(&self) -> u64 {
        self.counts.used.load(Ordering::Acquire)
    }

    /// The most bytes registered at a time so far.
    pub fn peak(&self) -> u64 {
        self.counts.peak.load(Ordering::Acquire)
    }

    fn take(&self, bytes: u64) -> CuFileResult<Share> {
        let Counts { limit, used, peak } = &*self.counts;
        let taken = used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            used.checked_add(bytes).filter(|sum| sum <= limit)
        });
        match taken {
            Ok(before) => {
                peak.fetch_max(before + bytes, Ordering::AcqRel);
                Ok(Share { budget: self.clone(), bytes })
            }
            Err(used) => Err(CuFileError::OverBudget { asked: bytes, used, limit: *limit }),
        }
    }
}

/// Bytes taken from a budget, given back at the end.
struct Share {
    budget: RegistrationBudget,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.counts.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A registration, shared by all parts of the memory.
struct Registration {
    driver: Driver,
    base: u64,
    len: u64,
    /// No bytes of the memory, but what keeps its allocation alive until it is deregistered.
    keep: ManuallyDrop<RegionMut>,
    /// Given back only once deregistered.
    share: ManuallyDrop<Option<Share>>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        const NOT_REGISTERED: i32 = 5024;
        let freed = match self.driver.enter_to_release() {
            Release::Released => true,
            // What may still use the memory keeps it.
            Release::Leak => false,
            Release::By(library) => {
                self.driver.enter_on(Some(self.keep.device())).ok();
                // SAFETY: registered once in `register` and deregistered once, here. Nothing is in flight: operations
                // own their part of the memory, and with it this registration.
                let answer = unsafe { (library.cuFileBufDeregister)(pointer(self.base)) };
                match answer.result() {
                    Ok(()) => true,
                    Err(failure) if failure.status.code() == NOT_REGISTERED => true,
                    Err(failure) => {
                        tracing::warn!(bytes = self.len, %failure, "cuFileBufDeregister failed; the memory is kept");
                        false
                    }
                }
            }
        };
        if freed {
            // SAFETY: neither is used again, since this is the destructor.
            unsafe {
                ManuallyDrop::drop(&mut self.keep);
                ManuallyDrop::drop(&mut self.share);
            }
        }
    }
}

fn pointer(address: u64) -> *const c_void {
    ptr::with_exposed_provenance(address as usize)
}

/// Registered memory, of a device or of the host: unique access to it, or to a part of it.
///
/// Its bytes stay registered while a part exists, and are deregistered before the memory is freed:
///
/// ```compile_fail
/// # fn read(driver: &gds_loader::cufile::Driver, region: cuda_staging::RegionMut) {
/// let buffer = gds_loader::cufile::RegisteredBuffer::register(driver, region).unwrap();
/// drop(region); // moved into the buffer: cannot be freed under it
/// # }
/// ```
pub struct RegisteredBuffer {
    /// Before the region: the last part deregisters before the memory goes.
    registration: Arc<Registration>,
    region: RegionMut,
}

impl RegisteredBuffer {
    /// Registers all of `region`.
    ///
    /// # Errors
    /// The region comes back with [`CuFileError::Call`] where the library refuses it; see
    /// [`CuFileError::is_registration_limit`] for "less might do". Empty regions are refused.
    pub fn register(driver: &Driver, region: RegionMut) -> CuFileResult<Self, (RegionMut, CuFileError)> {
        Self::register_with(driver, region, None)
    }

    /// Registers all of `region` within `budget`, from which its bytes are taken until it is deregistered.
    ///
    /// # Errors
    /// As for [`RegisteredBuffer::register`], and [`CuFileError::OverBudget`].
    pub fn register_within(
        driver: &Driver,
        region: RegionMut,
        budget: &RegistrationBudget,
    ) -> CuFileResult<Self, (RegionMut, CuFileError)> {
        match budget.take(region.len()) {
            Ok(share) => Self::register_with(driver, region, Some(share)),
            Err(error) => Err((region, error)),
        }
    }

    fn register_with(
        driver: &Driver,
        region: RegionMut,
        share: Option<Share>,
    ) -> CuFileResult<Self, (RegionMut, CuFileError)> {
        let (base, len) = (region.address(), region.len());
        let size = match usize::try_from(len) {
            Ok(size) if size > 0 => size,
            _ => return Err((region, CuFileError::usage(format!("registering {len} bytes")))),
        };
        let library = match driver.enter_on(Some(region.device())) {
            Ok(library) => library,
            Err(error) => return Err((region, error)),
        };
        const CALL: &str = "cuFileBufRegister";
        // SAFETY: `region` is allocated for `size` bytes, and kept so until it is deregistered: by the keeper below, or
        // by coming back to the caller where this fails.
        let answer = unsafe { (library.cuFileBufRegister)(pointer(base), size, 0) };
        if let Err(failure) = answer.result() {
            let doing = format!("registering {len} bytes at {base:#x} of {:?}", region.device());
            return Err((region, driver.refused(CALL, failure, doing)));
        }
        let (keep, region) = match region.split_at(0) {
            Ok(parts) => parts,
            // Cannot be, since every region has a beginning; then the registration stays as it is.
            Err(error) => return Err((RegionMut::from_vec(Vec::new()), error.into())),
        };
        let registration = Registration {
            driver: driver.clone(),
            base,
            len,
            keep: ManuallyDrop::new(keep),
            share: ManuallyDrop::new(share),
        };
        Ok(Self { registration: Arc::new(registration), region })
    }

    /// The driver it is registered with.
    pub fn driver(&self) -> &Driver {
        &self.registration.driver
    }

    /// The device whose memory this is.
    pub fn device(&self) -> &Device {
        self.region.device()
    }

    /// Length of this part in bytes.
    pub fn len(&self) -> u64 {
        self.region.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    /// The address of its first byte.
    pub fn address(&self) -> u64 {
        self.region.address()
    }

    /// The memory, to look at.
    pub fn region(&self) -> &RegionMut {
        &self.region
    }

    /// The bytes for writing, where it is the host's memory.
    pub fn host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.region.host_bytes_mut()
    }

    /// Splits at `mid` bytes from the start; both parts share the registration.
    ///
    /// # Errors
    /// Where `mid` lies beyond the end; the buffer is gone then.
    pub fn split_at(self, mid: u64) -> CuFileResult<(Self, Self)> {
        let (head, tail) = self.region.split_at(mid)?;
        let registration = Arc::clone(&self.registration);
        Ok((Self { registration, region: head }, Self { registration: self.registration, region: tail }))
    }

    /// Gives the memory back. It is deregistered when the last part of the registration is gone.
    pub fn into_region(self) -> RegionMut {
        drop(self.registration);
        self.region
    }

    pub(super) fn place(&self) -> Span {
        let base = self.registration.base;
        Span::new(base, self.region.address() - base, self.region.len())
    }
}

impl AsRef<RegionMut> for RegisteredBuffer {
    fn as_ref(&self) -> &RegionMut {
        &self.region
    }
}

// SAFETY: a registered buffer has the only access to its region, and never changes it for another.
unsafe impl Window for RegisteredBuffer {}

impl fmt::Debug for RegisteredBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Registration { base, len, .. } = &*self.registration;
        f.debug_struct("RegisteredBuffer")
            .field("region", &self.region)
            .field("registered", &format_args!("{len} bytes at {base:#x}"))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_never_exceeded_and_given_back() {
        let budget = RegistrationBudget::new(10);
        let first = budget.take(6).unwrap();
        assert!(matches!(budget.take(5), Err(CuFileError::OverBudget { asked: 5, used: 6, limit: 10 })));
        assert!(matches!(budget.take(u64::MAX), Err(CuFileError::OverBudget { .. })));
        let second = budget.take(4).unwrap();
        drop(first);
        assert_eq!((budget.used(), budget.peak()), (4, 10));
        drop(second);
        assert_eq!(budget.used(), 0);
    }
}
