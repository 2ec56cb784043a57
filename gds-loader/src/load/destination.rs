//! Where tensors land: one allocation of ours, or memory of the caller's, one region a tensor.
//!
//! Both look alike to the planner: a space of offsets. The caller's regions are given offsets that leave the same remainder
//! as their addresses, so that direct reads know where they may land, and lie far enough apart that no run spans two.

use std::marker::PhantomData;
use std::ops::Range;

use cuda_staging::{Carved, Device, Region, RegionMut, Toucher};

use crate::error::{Error, Result};
use crate::plan::align_up;

/// Memory of the caller's for one tensor, for [`Loader::load_into`](crate::Loader::load_into).
#[derive(Debug)]
pub struct Destination<'a> {
    pub(crate) name: String,
    pub(crate) region: RegionMut,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> Destination<'a> {
    /// The tensor `name` goes into `bytes`, which must be exactly as long as it.
    ///
    /// # Errors
    /// None today; adopting host memory cannot fail, yet the device layer reserves the right.
    pub fn host(name: impl Into<String>, bytes: &'a mut [u8]) -> Result<Self> {
        let (address, len) = (bytes.as_mut_ptr().expose_provenance() as u64, bytes.len() as u64);
        // SAFETY: `bytes` is borrowed for 'a, which outlives this value and with it the load; its provenance is exposed; it
        // is initialised, and borrowed exclusively. On the CPU device every read and copy ends before the load
        // returns, so nothing writes the memory after 'a, not even when a load fails: `pread` returns when it is over, and a queue
        // waits without a limit for reads into adopted memory.
        let region = unsafe { Device::cpu().adopt(address, len) }?;
        Ok(Self { name: name.into(), region, borrowed: PhantomData })
    }

    /// The tensor `name` goes into the region, which must be exactly as long as it.
    pub fn region(name: impl Into<String>, region: RegionMut) -> Self {
        Self { name: name.into(), region, borrowed: PhantomData }
    }

    /// The tensor `name` goes to `address` on `device`, into `len` bytes of the caller's.
    ///
    /// # Errors
    /// Where the driver does not know the range as memory of this device.
    ///
    /// # Safety
    /// Until `load_into` returns:
    /// - `address..address + len` stays allocated;
    /// - nothing else reads or writes it, work on streams included, except work that
    ///   [`Loader::after_stream`](crate::Loader::after_stream) waits for.
    ///
    /// If `load_into` returns an error of the device, copies may still be in flight: keep the memory until the process ends.
    pub unsafe fn device(name: impl Into<String>, device: &Device, address: u64, len: u64) -> Result<Self> {
        // SAFETY: the caller promises what `adopt` asks for.
        let region = unsafe { device.adopt(address, len) }?;
        Ok(Self::region(name, region))
    }
}

/// The regions of a load, each at its offset in the planner's space.
pub(crate) struct Space {
    regions: Vec<(u64, RegionMut)>,
}

/// A [`Space`] whose parts are with the workers.
pub(crate) struct CarvedSpace(Vec<Carved>);

impl Space {
    /// One region, at offset 0.
    pub(crate) fn of_one(region: RegionMut) -> Self {
        Self { regions: vec![(0, region)] }
    }

    /// Several regions, at offsets that leave their addresses' remainders modulo `modulus`, a power of two.
    pub(crate) fn of_many(regions: Vec<RegionMut>, modulus: u64) -> Self {
        let mut end = 0;
        let place = |region: RegionMut| {
            let offset = align_up(end + 1, modulus) + region.address() % modulus;
            end = offset + region.len();
            (offset, region)
        };
        Self { regions: regions.into_iter().map(place).collect() }
    }

    /// For touching memory of our own ahead of the reads; its offsets are the space's.
    pub(crate) fn toucher(&self) -> Option<Toucher> {
        match self.regions.as_slice() {
            [(0, region)] => region.toucher(),
            _ => None,
        }
    }

    /// The offset of each region.
    pub(crate) fn offsets(&self) -> Vec<u64> {
        self.regions.iter().map(|(offset, _)| *offset).collect()
    }

    /// Hands out the regions of `parts`, in their order; each lies within one region.
    pub(crate) fn carve(self, parts: &[Range<u64>]) -> Result<(CarvedSpace, Vec<RegionMut>)> {
        let mut shares: Vec<(Vec<usize>, Vec<Range<u64>>)> = vec![Default::default(); self.regions.len()];
        for (index, part) in parts.iter().enumerate() {
            let region = self.regions.partition_point(|(offset, _)| *offset <= part.start) - 1;
            let base = self.regions[region].0;
            shares[region].0.push(index);
            shares[region].1.push(part.start - base..part.end - base);
        }
        let mut carved = Vec::with_capacity(self.regions.len());
        let mut handed_out: Vec<Option<RegionMut>> = (0..parts.len()).map(|_| None).collect();
        for ((_, region), (indices, ranges)) in self.regions.into_iter().zip(shares) {
            let (rest, regions) = region.carve(&ranges)?;
            carved.push(rest);
            for (index, region) in indices.into_iter().zip(regions) {
                handed_out[index] = Some(region);
            }
        }
        Ok((CarvedSpace(carved), handed_out.into_iter().flatten().collect()))
    }
}

impl CarvedSpace {
    /// The whole regions again, frozen, once every part is gone.
    pub(crate) fn reunite(self) -> Result<Vec<Region>> {
        let still_out =
            || Error::Worker { reason: "a part of the destination is still being written".into() };
        self.0.into_iter().map(|carved| Ok(carved.reunite().map_err(|_| still_out())?.freeze())).collect()
    }
}
