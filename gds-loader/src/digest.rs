//! SHA-256 of regions, over the bytes as they are on the device.
//!
//! Bytes in host memory are hashed where they are. Device memory is fetched through small pinned slots, each thread
//! hashing one slot while the next is being copied, so that a model larger than host memory can be checked.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cuda_staging::{Device, Region, Ring, RingOptions, SlotFetch};
use rayon::prelude::*;
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};

/// Slots of each thread, and their size in bytes: one is hashed while the others are filled.
const RING: RingOptions = RingOptions { slots: 3, slot_size: 4 << 20 };

/// Threads that fetch and hash: hashing is slower than any copy.
const MOST_THREADS: usize = 4;

/// The digest of each region, in hex, in their order.
pub(crate) fn sha256(device: &Device, regions: &[&Region]) -> Result<Vec<String>> {
    if !device.is_cuda() {
        return Ok(regions
            .par_iter()
            .map(|region| hex(Sha256::digest(region.host_bytes().unwrap_or_default())))
            .collect());
    }
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS).min(regions.len());
    let hashed = thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| fetch_and_hash(device, regions, &next))).collect();
        let joined = workers.into_iter().map(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| Err(Error::Worker { reason: "a hashing thread panicked".into() }))
        });
        joined.collect::<Result<Vec<_>>>()
    })?;
    let mut digests = vec![String::new(); regions.len()];
    for (index, digest) in hashed.into_iter().flatten() {
        digests[index] = digest;
    }
    Ok(digests)
}

/// Hashes regions until none is left; each with its index.
fn fetch_and_hash(device: &Device, regions: &[&Region], next: &AtomicUsize) -> Result<Vec<(usize, String)>> {
    let mut ring = device.ring(RING)?;
    let mut digests = Vec::new();
    while let index = next.fetch_add(1, Ordering::Relaxed)
        && let Some(region) = regions.get(index)
    {
        digests.push((index, hash(&mut ring, region)?));
    }
    Ok(digests)
}

fn hash(ring: &mut Ring, region: &Region) -> Result<String> {
    let step = RING.slot_size as u64;
    let mut pieces: VecDeque<_> = (0..region.len()).step_by(RING.slot_size).collect();
    let mut hasher = Sha256::new();
    let mut in_flight = 0;
    while in_flight > 0 || !pieces.is_empty() {
        if in_flight < RING.slots
            && let Some(start) = pieces.pop_front()
        {
            let slot = ring.take()?;
            let from = region.slice(start..(start + step).min(region.len()))?;
            ring.launch_fetch(slot, vec![SlotFetch { slot_offset: 0, from }])?;
            in_flight += 1;
            continue;
        }
        let Some(filled) = ring.take_fetched()? else { break };
        hasher.update(filled.bytes());
        ring.put_back(filled.release());
        in_flight -= 1;
    }
    Ok(hex(hasher.finalize()))
}

fn hex(digest: impl AsRef<[u8]>) -> String {
    use std::fmt::Write as _;
    digest.as_ref().iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
