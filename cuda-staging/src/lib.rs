//! Devices, device memory, pinned slots and overlapped asynchronous copies.
//!
//! Bytes from storage land in a [slot](FreeSlot), host memory that is pinned once, and are copied from there to a
//! [region](RegionMut) of a [`Device`] while the next slot is being read. On a machine without a GPU the same code
//! runs on [`Device::cpu`], where a copy is a `memcpy`.
//!
//! # Who owns what, and when
//!
//! - A [`Device`] is shared by everything made on it, and closed when the last of that is gone.
//! - A [`RegionMut`] is unique access to a range of an allocation. [`RegionMut::carve`] hands out disjoint parts;
//!   [`Carved::reunite`] gives the whole back once every part is gone; [`RegionMut::freeze`] ends writing. Parts keep
//!   the allocation alive, which is freed with the last one.
//! - A [`FreeSlot`] is the caller's: to fill with a closure, or to hand to an engine that writes it by itself
//!   ([`ReadingSlot`]). A [`FilledSlot`] is given to [`Ring::launch`], together with the regions its bytes go to.
//! - What is in flight is the [`Ring`]'s, until the driver says that the copies are over. Where it does not say so,
//!   because it failed or did not answer in time, slots and regions are leaked and the device is poisoned: nothing
//!   in flight is ever freed.
//!
//! # When things go wrong
//!
//! A missing driver, symbol or device is [`Error::Unavailable`], with a reason. The first failure that may mean a
//! broken context poisons the device, and everything on it then answers [`Error::Poisoned`] with that first failure.
//! In a forked child, every operation on a CUDA device answers [`Error::Forked`], dropping does nothing, and slots
//! read as zero.
//!
//! # Example
//!
//! ```
//! use cuda_staging::{Device, DeviceSelector, RingOptions, SlotCopy};
//!
//! let device = Device::open(&DeviceSelector::Auto)?;
//! let mut ring = device.ring(RingOptions { slots: 2, slot_size: 64 << 10 })?;
//! let (carved, parts) = device.allocate(300_000, 256)?.carve(&[0..100_000, 100_000..300_000])?;
//! for (part, value) in parts.into_iter().zip([1, 2]) {
//!     // Each part is larger than a slot.
//!     let mut rest = part;
//!     while !rest.is_empty() {
//!         let slot = ring.take()?;
//!         let len = rest.len().min(slot.capacity() as u64);
//!         let (piece, after) = rest.split_at(len)?;
//!         rest = after;
//!         let filled = slot.fill(|bytes| {
//!             bytes.fill(value);
//!             Ok::<_, std::io::Error>(bytes.len())
//!         });
//!         let filled = filled.map_err(|(_, error)| error)?;
//!         ring.launch(filled, vec![SlotCopy { slot_offset: 0, to: piece }])?;
//!     }
//! }
//! ring.drain()?;
//! let whole = carved.reunite().map_err(|_| "a part is still in use")?.freeze();
//! let mut bytes = vec![0; 300_000];
//! device.copy_to_host(&whole, &mut bytes)?;
//! assert!(bytes[..100_000].iter().all(|&byte| byte == 1) && bytes[100_000..].iter().all(|&byte| byte == 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]
#![cfg_attr(
    feature = "loom",
    allow(dead_code, unused_imports, reason = "models stand in for the driver's library")
)]

mod cuda;
mod device;
mod error;
mod info;
pub mod limits;
mod memory;
#[cfg(test)]
#[cfg(feature = "loom")]
mod models;
mod pending;
mod region;
mod ring;
mod selector;
mod slot;
mod statistics;
mod stream;
mod sync;

/// The release of cudarc whose streams [`Ring::wait_for_cudarc`] takes.
pub use cudarc;

pub use device::Device;
pub use error::{Error, Result};
pub use info::{DeviceInfo, DeviceKind, MemoryInfo};
pub use pending::Pending;
pub use region::{Carved, ReadingRegion, Region, RegionMut, Toucher};
pub use ring::{DROP_WAIT_LIMIT, Ring, RingOptions, SlotCopy, SlotFetch, WAIT_LIMIT, Window, WindowRing};
pub use selector::DeviceSelector;
pub use slot::{FilledSlot, FreeSlot, ReadingSlot, SlotsMemory};
pub use statistics::RingStatistics;
pub use stream::Stream;
