//! What the machine itself can do: the figures that no load can beat, measured in the same rounds as the loads.

use std::thread;
use std::time::Instant;

use cuda_staging::{Device, RegionMut, Ring, RingOptions, SlotCopy, limits};
use memmap2::MmapMut;

use super::judge::Copies;
use crate::error::{Error, Result};

/// Bytes of each of the two buffers between which memory is copied, where there is room: larger than any processor's cache.
const MEMORY_BUFFER: usize = 512 << 20;

/// How often it is copied in each round.
const PASSES: usize = 3;

/// They take at most this share of the memory the control group allows.
const SHARE_OF_LIMIT: u64 = 8;

/// Two buffers, touched once and then copied from one to the other in each round.
#[derive(Debug)]
pub struct MemoryCopy {
    from: MmapMut,
    to: MmapMut,
}

impl MemoryCopy {
    /// Maps and touches the buffers.
    ///
    /// # Errors
    /// Where the memory is not to be had.
    pub fn prepare() -> std::io::Result<Self> {
        let allowed = limits::memory_limit().unwrap_or(u64::MAX) / SHARE_OF_LIMIT / 2;
        let len = usize::try_from(allowed).unwrap_or(usize::MAX).clamp(limits::page_size(), MEMORY_BUFFER);
        let mut buffers = [MmapMut::map_anon(len)?, MmapMut::map_anon(len)?];
        for buffer in &mut buffers {
            buffer.fill(1);
        }
        let [from, to] = buffers;
        Ok(Self { from, to })
    }

    /// Copies all of one buffer to the other with all cores, a few times: the quickest, since what disturbs such a short measurement
    /// only ever slows it down.
    pub fn measure(&mut self) -> Copies {
        let first = self.copy();
        (1..PASSES).map(|_| self.copy()).fold(
            first,
            |best, next| {
                if next.seconds < best.seconds { next } else { best }
            },
        )
    }

    fn copy(&mut self) -> Copies {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let part = self.from.len().div_ceil(cores).max(1);
        let start = Instant::now();
        thread::scope(|scope| {
            for (from, to) in self.from.chunks(part).zip(self.to.chunks_mut(part)) {
                scope.spawn(move || to.copy_from_slice(from));
            }
        });
        // The compiler must not leave out copies that nobody looks at.
        std::hint::black_box(&self.to);
        Copies::new(cores as u64, self.from.len() as u64, start.elapsed().as_secs_f64())
    }
}

/// Bytes of a copy that measures the link: long enough that its launch does not matter.
const LINK_COPY: usize = 16 << 20;
/// Slots whose copies follow each other.
const LINK_SLOTS: usize = 4;

/// Copies `bytes` from pinned memory to `device`, back to back, twice: the second time counts, when nothing is touched for the first
/// time any more.
///
/// # Errors
/// Those of the device.
pub fn pinned_copies(device: &Device, bytes: u64) -> Result<Copies> {
    let ranges: Vec<_> =
        (0..bytes).step_by(LINK_COPY).map(|start| start..bytes.min(start + LINK_COPY as u64)).collect();
    let mut ring = device.ring(RingOptions { slots: LINK_SLOTS, slot_size: LINK_COPY })?;
    // Written once: memory that never was is one page of zeros, which would be copied from the processor's cache.
    let mut filled = Vec::new();
    for _ in 0..LINK_SLOTS {
        let ones = |slot: &mut [u8]| {
            slot.fill(1);
            Ok::<usize, Error>(slot.len())
        };
        filled.push(ring.take()?.fill(ones).map_err(|(_, error)| error)?);
    }
    filled.into_iter().for_each(|slot| ring.put_back(slot.release()));
    let (carved, parts) = device.allocate(bytes, 1)?.carve(&ranges)?;
    copy_to(&mut ring, parts)?;
    let lost = |_| Error::Worker { reason: "device memory of a finished copy did not come back".into() };
    let (_carved, parts) = carved.reunite().map_err(lost)?.carve(&ranges)?;
    let start = Instant::now();
    copy_to(&mut ring, parts)?;
    Ok(Copies::new(ranges.len() as u64, bytes, start.elapsed().as_secs_f64()))
}

fn copy_to(ring: &mut Ring, parts: Vec<RegionMut>) -> Result<()> {
    for part in parts {
        let all = |slot: &mut [u8]| Ok::<usize, Error>(slot.len());
        let slot = ring.take()?.fill(all).map_err(|(_, error)| error)?;
        ring.launch(slot, vec![SlotCopy { slot_offset: 0, to: part }])?;
    }
    Ok(ring.drain()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_counted_and_timed() {
        let copies = pinned_copies(&Device::cpu(), (LINK_COPY + 1) as u64).unwrap();
        assert_eq!((copies.copies, copies.bytes), (2, LINK_COPY as u64 + 1));
        assert!(copies.seconds > 0.0);
    }
}
