//! Devices: the CPU, or a CUDA device with its primary context.

use std::ffi::c_void;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use uuid::Uuid;

use crate::cuda::{self, Attributes, Context, DeviceMemory};
use crate::error::{Error, Result};
use crate::info::{DeviceInfo, DeviceKind, MemoryInfo};
use crate::limits::{numa_node, page_size};
use crate::memory::{HostMemory, Purpose};
use crate::pending::Pending;
use crate::region::{Allocation, Memory, Region, RegionMut};
use crate::ring::{Ring, RingOptions, WindowRing};
use crate::selector::DeviceSelector;
use crate::stream::Stream;

/// A device. Cheap to clone; everything made on it keeps it open.
///
/// A CUDA device retains the primary context once, so that it shares memory and streams with other libraries in the
/// process, and releases it when the last clone, region, ring and stream are gone. Whatever calls the driver makes
/// that context current on its thread and leaves it so: who has other contexts on that thread sets theirs again.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    info: DeviceInfo,
    context: Option<Arc<Context>>,
}

impl Device {
    /// Opens the device meant by `selector`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no driver or no such device, with what there is. `Auto` never fails with
    /// it, but takes the CPU.
    pub fn open(selector: &DeviceSelector) -> Result<Self> {
        match selector {
            DeviceSelector::Cpu => Ok(Self::cpu()),
            DeviceSelector::Cuda(index) => Self::cuda(*index),
            DeviceSelector::Uuid(uuid) => Self::cuda_with_uuid(*uuid),
            DeviceSelector::Auto => match Self::cuda(0) {
                Err(Error::Unavailable { reason }) => {
                    tracing::info!(%reason, "no CUDA device; taking the CPU");
                    Ok(Self::cpu())
                }
                opened => opened,
            },
        }
    }

    /// The CPU: regions are host memory, copies are done at once.
    pub fn cpu() -> Self {
        let info = DeviceInfo {
            kind: DeviceKind::Cpu,
            index: None,
            name: "CPU".to_owned(),
            uuid: None,
            pci_bus_id: None,
            total_memory: None,
        };
        Self { inner: Arc::new(Inner { info, context: None }) }
    }

    /// The CUDA device of this index, as `CUDA_VISIBLE_DEVICES` numbers them.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no driver, or no device of this index; [`Error::Driver`] where the
    /// device is there and cannot be used.
    pub fn cuda(index: u32) -> Result<Self> {
        let driver = cuda::driver()?;
        let count = driver.device_count()?;
        if index >= count {
            return Err(Error::Unavailable {
                reason: match count {
                    0 => "the driver sees no GPU: look at nvidia-smi and at CUDA_VISIBLE_DEVICES".to_owned(),
                    1 => format!("there is no cuda:{index}; the only device is cuda:0"),
                    _ => format!(
                        "there is no cuda:{index}; there are {count} devices, cuda:0 to cuda:{}",
                        count - 1
                    ),
                },
            });
        }
        Self::with_attributes(Attributes::read(driver, index)?, index)
    }

    fn cuda_with_uuid(uuid: Uuid) -> Result<Self> {
        let driver = cuda::driver()?;
        let mut others = Vec::new();
        for index in 0..driver.device_count()? {
            let attributes = Attributes::read(driver, index)?;
            if attributes.uuid == Some(uuid) {
                return Self::with_attributes(attributes, index);
            }
            let other = attributes.uuid.map_or_else(|| "no UUID".to_owned(), |other| format!("GPU-{other}"));
            others.push(format!("cuda:{index} is {other}"));
        }
        let others = if others.is_empty() { "there is no device".to_owned() } else { others.join(", ") };
        Err(Error::Unavailable { reason: format!("no device is GPU-{uuid}: {others}") })
    }

    /// What is known of every CUDA device. None is opened: no context is made.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no driver; those of the driver.
    pub fn list() -> Result<Vec<DeviceInfo>> {
        let driver = cuda::driver()?;
        let indices = 0..driver.device_count()?;
        indices.map(|index| Ok(Self::describe(Attributes::read(driver, index)?, index))).collect()
    }

    fn describe(attributes: Attributes, index: u32) -> DeviceInfo {
        DeviceInfo {
            kind: DeviceKind::Cuda,
            index: Some(index),
            name: attributes.name,
            uuid: attributes.uuid,
            pci_bus_id: attributes.pci_bus_id,
            total_memory: Some(attributes.total_memory),
        }
    }

    fn with_attributes(attributes: Attributes, index: u32) -> Result<Self> {
        let context = Context::retain(cuda::driver()?, &attributes, index)?;
        let info = Self::describe(attributes, index);
        Ok(Self { inner: Arc::new(Inner { info, context: Some(context) }) })
    }

    /// Whether this is a CUDA device.
    pub fn is_cuda(&self) -> bool {
        self.context().is_some()
    }

    /// What is known of it.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// `cpu` or `cuda:N`.
    pub(crate) fn name(&self) -> &str {
        self.context().map_or("cpu", |context| context.name())
    }

    pub(crate) fn context(&self) -> Option<&Arc<Context>> {
        self.inner.context.as_ref()
    }

    /// Whether memory of the one is memory of the other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner) || self.inner.info.index == other.inner.info.index
    }

    /// The NUMA node nearest to it, where the machine has several.
    pub(crate) fn numa_node(&self) -> Option<u32> {
        numa_node(Path::new("/"), self.inner.info.pci_bus_id.as_deref()?)
    }

    /// Free and total memory; None for the CPU, whose limits are [`crate::limits::memory_limit`]'s.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn memory(&self) -> Result<Option<MemoryInfo>> {
        let Some(context) = self.context() else { return Ok(None) };
        let (free, total) = cuda::memory_info(context)?;
        Ok(Some(MemoryInfo { free, total }))
    }

    /// Allocates `len` bytes at a multiple of `alignment`, a power of two. On a CUDA device the bytes are what was
    /// there before; on the CPU they are zero, and in huge pages where the kernel has them. No bytes are no allocation.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], after which the device is as usable as before.
    pub fn allocate(&self, len: u64, alignment: u64) -> Result<RegionMut> {
        if !alignment.is_power_of_two() {
            return Err(Error::invalid(format!("an alignment of {alignment} bytes is not a power of two")));
        }
        if len == 0 {
            return Ok(RegionMut::new(Allocation::new(self.clone(), Memory::Empty), 0, 0));
        }
        // cuMemAlloc promises 256 bytes; mmap gives pages. Beyond that, room to move the start.
        let promised = if self.is_cuda() { 256 } else { page_size() as u64 };
        let padded = len.checked_add(alignment.saturating_sub(promised)).ok_or_else(|| {
            Error::invalid(format!("{len} bytes aligned to {alignment} exceed the address space"))
        })?;
        let memory = match self.context() {
            Some(context) => Memory::Device(DeviceMemory::allocate(context, padded)?),
            None => {
                let size = usize::try_from(padded).map_err(|_| Error::invalid(format!("{padded} bytes")))?;
                Memory::Host(HostMemory::map(size, Purpose::Destination)?)
            }
        };
        let allocation = Allocation::new(self.clone(), memory);
        let start = allocation.address();
        Ok(RegionMut::new(allocation, start.next_multiple_of(alignment) - start, len))
    }

    /// Takes memory of the caller's as a region. It is never freed by us.
    ///
    /// On a CUDA device the range is checked to be allocated, on this device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the driver does not know the range as memory of this device; on the CPU where
    /// the address is null.
    ///
    /// # Safety
    /// Until the region and everything made of it are gone:
    /// - `address..address + len` stays allocated;
    /// - nothing else writes it, and nothing else reads it while a [`RegionMut`] of it exists;
    /// - on the CPU, its bytes are initialised and writable, and its provenance was exposed
    ///   (`pointer.expose_provenance()`).
    pub unsafe fn adopt(&self, address: u64, len: u64) -> Result<RegionMut> {
        match self.context() {
            Some(context) => cuda::check_device_range(context, address, len)?,
            None if len > 0
                && (address == 0 || address.checked_add(len).is_none() || len > isize::MAX as u64) =>
            {
                return Err(Error::invalid(format!("{len} bytes at {address:#x} cannot be host memory")));
            }
            None => {}
        }
        Ok(RegionMut::new(Allocation::new(self.clone(), Memory::Adopted { address }), 0, len))
    }

    /// Makes a stream.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self)
    }

    /// The work that is on a stream of the caller's now (`CUstream`; null is the default stream), to be waited for.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on the CPU device, and for a stream that is being captured for a graph; those of the driver.
    ///
    /// # Safety
    /// - `stream` is null or a live stream of this device.
    pub unsafe fn pending(&self, stream: *mut c_void) -> Result<Pending> {
        // SAFETY: the caller's promise.
        unsafe { Pending::on(self, stream.cast()) }
    }

    /// Makes a ring of slots with a stream of its own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no slots or empty ones, [`Error::OutOfMemory`], and those of the driver. Slots
    /// that cannot be pinned are no error: see [`crate::RingStatistics::unpinned`].
    pub fn ring(&self, options: RingOptions) -> Result<Ring> {
        Ring::new(self, options)
    }

    /// Makes a ring for copies out of windows of this device, with a stream of its own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on the CPU device; those of the driver.
    pub fn window_ring<W: AsRef<RegionMut> + 'static>(&self) -> Result<WindowRing<W>> {
        WindowRing::new(self)
    }

    /// Copies a region to the host and waits for it. For tests, lessons and small reads; a [`Ring`] fetches faster.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the lengths differ or the region is another device's; those of the driver.
    pub fn copy_to_host(&self, from: &Region, into: &mut [u8]) -> Result<()> {
        if !self.is_same(from.device()) {
            return Err(Error::invalid(format!("{from:?} is not memory of {}", self.name())));
        }
        if from.len() != into.len() as u64 {
            return Err(Error::invalid(format!("{} bytes for a region of {}", into.len(), from.len())));
        }
        match (self.context(), from.host_bytes()) {
            (_, Some(bytes)) => into.copy_from_slice(bytes),
            // SAFETY: `from` keeps its allocation alive, is memory of this device, and is read-only.
            (Some(context), None) if !from.is_empty() => unsafe {
                cuda::copy_to_host(context, from.address(), into)?;
            },
            _ => {}
        }
        Ok(())
    }

    /// Makes its context current on the calling thread, for libraries that look for it there. On the CPU there is nothing
    /// to do.
    ///
    /// # Errors
    /// Those of [`Device::health`], and of the driver.
    pub fn make_current(&self) -> Result<()> {
        self.context().map_or(Ok(()), |context| context.make_current())
    }

    /// Whether the device can still be used.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failure that broke its context, [`Error::Forked`] in a forked child. Never for the
    /// CPU.
    pub fn health(&self) -> Result<()> {
        self.context().map_or(Ok(()), |context| context.health())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name()).finish()
    }
}
