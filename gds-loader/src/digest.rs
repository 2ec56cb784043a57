//! Digests of regions, over the bytes as they are on the device.
//!
//! Bytes in host memory are hashed where they are. Device memory is fetched through small pinned slots, each thread
//! hashing one slot while the next is being copied, so that a model larger than host memory can be checked.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cuda_staging::{Device, Region, Ring, RingOptions, SlotFetch};
use rayon::prelude::*;
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};
use crate::threads::in_parallel;
use crate::workers::share_out;

/// What is computed of bytes in their order.
pub(crate) trait Digest: Clone + Send {
    type Hasher: Send;

    fn start() -> Self::Hasher;
    fn update(hasher: &mut Self::Hasher, bytes: &[u8]);
    fn finish(hasher: Self::Hasher) -> Self;

    /// Of bytes that are all there.
    fn of(bytes: &[u8]) -> Self {
        let mut hasher = Self::start();
        Self::update(&mut hasher, bytes);
        Self::finish(hasher)
    }
}

/// SHA-256 in hex.
#[derive(Clone, Debug)]
pub(crate) struct Sha256Hex(pub(crate) String);

impl Digest for Sha256Hex {
    type Hasher = Sha256;

    fn start() -> Sha256 {
        Sha256::new()
    }

    fn update(hasher: &mut Sha256, bytes: &[u8]) {
        hasher.update(bytes);
    }

    fn finish(hasher: Sha256) -> Self {
        Self(hex(hasher.finalize()))
    }
}

/// Slots of each thread, and their size in bytes: one is hashed while the others are filled.
const RING: RingOptions = RingOptions { slots: 3, slot_size: 4 << 20 };

/// Threads that fetch and hash: hashing is slower than any copy.
const MOST_THREADS: usize = 4;

/// The digest of each region, in their order.
pub(crate) fn of_regions<D: Digest>(device: &Device, regions: &[&Region]) -> Result<Vec<D>> {
    if !device.is_cuda() {
        let of = |region: &&Region| D::of(region.host_bytes().unwrap_or_default());
        return Ok(in_parallel(|| regions.par_iter().map(of).collect()));
    }
    let groups = groups(regions);
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS).min(groups.len());
    let hashed = share_out("gds-hash", threads, || fetch_and_hash(device, regions, &groups, &next));
    let panicked = || Err(Error::Worker { reason: "a hashing thread panicked".into() });
    let hashed =
        hashed.into_iter().map(|hashed| hashed.unwrap_or_else(panicked)).collect::<Result<Vec<_>>>()?;
    let mut digests: Vec<_> = hashed.into_iter().flatten().collect();
    digests.sort_unstable_by_key(|(index, _)| *index);
    Ok(digests.into_iter().map(|(_, digest)| digest).collect())
}

/// Neighbours that fit one slot together, so that a hundred thousand tiny tensors are not as many round trips; a region
/// larger than a slot is a group of its own.
fn groups(regions: &[&Region]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut bytes = 0;
    for (index, region) in regions.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if bytes + region.len() <= RING.slot_size as u64 => {
                group.end = index + 1;
                bytes += region.len();
            }
            _ => {
                groups.push(index..index + 1);
                bytes = region.len();
            }
        }
    }
    groups
}

/// Hashes groups until none is left; each region's digest with its index.
fn fetch_and_hash<D: Digest>(
    device: &Device,
    regions: &[&Region],
    groups: &[Range<usize>],
    next: &AtomicUsize,
) -> Result<Vec<(usize, D)>> {
    let mut ring = device.ring(RING)?;
    let mut digests = Vec::new();
    while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
        let members = &regions[group.clone()];
        match members {
            [single] => digests.push((group.start, hash_long(&mut ring, single)?)),
            several => digests.extend(group.clone().zip(hash_short(&mut ring, several)?)),
        }
    }
    Ok(digests)
}

/// The digests of regions that fit one slot together.
fn hash_short<D: Digest>(ring: &mut Ring, regions: &[&Region]) -> Result<Vec<D>> {
    let mut end = 0;
    let fetches = regions.iter().map(|region| {
        let slot_offset = end;
        end += region.len() as usize;
        SlotFetch { slot_offset, from: Region::clone(region) }
    });
    let fetches = fetches.collect();
    let slot = ring.take()?;
    let filled = ring.fetch(slot, fetches)?;
    let mut rest = filled.bytes();
    let digests = regions.iter().map(|region| {
        let (bytes, after) = rest.split_at_checked(region.len() as usize).unwrap_or((rest, &[]));
        rest = after;
        D::of(bytes)
    });
    let digests = digests.collect();
    ring.put_back(filled.release());
    Ok(digests)
}

/// The digest of a region of any length, slot by slot.
fn hash_long<D: Digest>(ring: &mut Ring, region: &Region) -> Result<D> {
    let step = RING.slot_size as u64;
    let mut pieces: VecDeque<_> = (0..region.len()).step_by(RING.slot_size).collect();
    let mut hasher = D::start();
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
        D::update(&mut hasher, filled.bytes());
        ring.put_back(filled.release());
        in_flight -= 1;
    }
    Ok(D::finish(hasher))
}

fn hex(digest: impl AsRef<[u8]>) -> String {
    use std::fmt::Write as _;
    digest.as_ref().iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
