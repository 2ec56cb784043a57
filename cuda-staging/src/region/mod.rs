//! Ranges of device memory, with unique or shared access.
//!
//! A [`RegionMut`] is the only way to its bytes, as `&mut` is, but owned: workers in other threads, and copies in
//! flight, hold their parts as values. It can be split and carved, never cloned. Once everything is written it is
//! frozen into a [`Region`], which is shared and read-only.
//!
//! All parts of one allocation share a lease, an `Arc` that keeps the allocation alive. Its count is also how a carved
//! region knows that every part is gone: that costs an increment for a part, and needs no `unsafe`.

mod allocation;
mod carve;
mod reading;
mod touch;

use std::fmt;
use std::ops::Range;
use std::slice;

pub(crate) use allocation::{Allocation, Memory};
pub use carve::Carved;
pub use reading::ReadingRegion;
pub use touch::Toucher;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::sync::Arc;

/// What keeps the allocation alive. A part of a part holds a lease below that of the part it was carved from.
struct Lease {
    allocation: Arc<Allocation>,
    /// Held only to be counted.
    _parent: Option<Arc<Lease>>,
}

/// Unique access to a range of a device's memory.
///
/// There is no safe way to write through a shared reference, and no second `RegionMut` for the same bytes.
pub struct RegionMut {
    lease: Arc<Lease>,
    /// In bytes from the start of the allocation.
    offset: u64,
    len: u64,
}

impl RegionMut {
    /// The range `offset..offset + len` of a new allocation.
    pub(crate) fn new(allocation: Allocation, offset: u64, len: u64) -> Self {
        let lease = Lease { allocation: Arc::new(allocation), _parent: None };
        Self { lease: Arc::new(lease), offset, len }
    }

    /// Host memory of the caller's, as a region of the CPU device. The vector is freed with the last part of it.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let len = bytes.len() as u64;
        Self::new(Allocation::new(Device::cpu(), Memory::of_vec(bytes)), 0, len)
    }

    /// The device whose memory this is.
    pub fn device(&self) -> &Device {
        self.lease.allocation.device()
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte: a device pointer, or a host pointer on the CPU device. Without meaning where
    /// the region is empty.
    pub fn address(&self) -> u64 {
        self.lease.allocation.address() + self.offset
    }

    /// The bytes, on the CPU device.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        self.lease.allocation.host_slice(self.offset, self.len).map(|(start, len)| {
            // SAFETY: `host_slice` gives initialised host memory that lives as long as the allocation, which `self`
            // keeps alive; no other region has these bytes, and `&self` allows no writing.
            unsafe { slice::from_raw_parts(start, len) }
        })
    }

    /// The bytes for writing, on the CPU device.
    pub fn host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.lease.allocation.host_slice(self.offset, self.len).map(|(start, len)| {
            // SAFETY: as in `host_bytes`; `&mut self` makes this the only access.
            unsafe { slice::from_raw_parts_mut(start, len) }
        })
    }

    /// Splits at `mid` bytes from the start.
    ///
    /// # Errors
    /// Where `mid` lies beyond the end; the region is gone then.
    pub fn split_at(self, mid: u64) -> Result<(Self, Self)> {
        if mid > self.len {
            return Err(Error::invalid(format!("splitting a region of {} bytes at {mid}", self.len)));
        }
        let tail = Self { lease: Arc::clone(&self.lease), offset: self.offset + mid, len: self.len - mid };
        Ok((Self { len: mid, ..self }, tail))
    }

    /// Whether it is memory of the caller's, which ends when its owner says.
    pub(crate) fn is_adopted(&self) -> bool {
        self.lease.allocation.is_adopted()
    }

    /// Ends all writing.
    pub fn freeze(self) -> Region {
        Region { lease: self.lease, offset: self.offset, len: self.len }
    }
}

impl AsRef<RegionMut> for RegionMut {
    fn as_ref(&self) -> &RegionMut {
        self
    }
}

impl fmt::Debug for RegionMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe("RegionMut", self.device(), self.address(), self.len, f)
    }
}

/// Shared, read-only access to a range of a device's memory. Keeps the allocation alive.
#[derive(Clone)]
pub struct Region {
    lease: Arc<Lease>,
    /// In bytes from the start of the allocation.
    offset: u64,
    len: u64,
}

impl Region {
    /// The device whose memory this is.
    pub fn device(&self) -> &Device {
        self.lease.allocation.device()
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte: a device pointer, or a host pointer on the CPU device. Without meaning where
    /// the region is empty.
    pub fn address(&self) -> u64 {
        self.lease.allocation.address() + self.offset
    }

    /// The part at `range`, in bytes from the start of this region.
    ///
    /// # Errors
    /// Where the range is reversed or reaches beyond the end.
    pub fn slice(&self, range: Range<u64>) -> Result<Self> {
        check_inside(&range, self.len)?;
        Ok(Self {
            lease: Arc::clone(&self.lease),
            offset: self.offset + range.start,
            len: range.end - range.start,
        })
    }

    /// The bytes, on the CPU device.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        self.lease.allocation.host_slice(self.offset, self.len).map(|(start, len)| {
            // SAFETY: `host_slice` gives initialised host memory that lives as long as the allocation, which `self`
            // keeps alive; a frozen range is never written again.
            unsafe { slice::from_raw_parts(start, len) }
        })
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe("Region", self.device(), self.address(), self.len, f)
    }
}

fn describe(kind: &str, device: &Device, address: u64, len: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct(kind)
        .field("device", &device.name())
        .field("address", &format_args!("{address:#x}"))
        .field("len", &len)
        .finish()
}

fn check_inside(range: &Range<u64>, len: u64) -> Result<()> {
    if range.start > range.end || range.end > len {
        let Range { start, end } = range;
        return Err(Error::invalid(format!("bytes {start}..{end} of a region of {len} bytes")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_parts_are_disjoint_and_cover_the_whole() {
        let region = RegionMut::from_vec((0..100).collect());
        let start = region.address();
        let (mut head, tail) = region.split_at(30).unwrap();
        assert_eq!((head.len(), tail.len()), (30, 70));
        assert_eq!(tail.address(), start + 30);
        head.host_bytes_mut().unwrap().fill(255);
        assert_eq!(tail.host_bytes().unwrap()[0], 30, "writing one half leaves the other alone");
    }

    #[test]
    fn split_beyond_the_end_is_refused() {
        assert!(matches!(RegionMut::from_vec(vec![0; 4]).split_at(5), Err(Error::InvalidArgument(_))));
    }

    #[test]
    fn a_frozen_part_keeps_the_allocation_alive() {
        let region = RegionMut::from_vec(b"one two".to_vec()).freeze();
        let word = region.slice(4..7).unwrap();
        drop(region);
        assert_eq!(word.host_bytes().unwrap(), b"two");
        assert!(word.slice(2..4).is_err());
        #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
        let reversed = word.slice(2..1);
        assert!(reversed.is_err());
    }

    #[test]
    fn an_empty_region_has_no_bytes() {
        let mut region = RegionMut::from_vec(Vec::new());
        assert!(region.is_empty());
        assert_eq!(region.host_bytes_mut().unwrap(), &[0u8; 0]);
    }
}
