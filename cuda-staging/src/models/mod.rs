//! Models of what runs at the same time, for `cargo xtask loom`: every order of events, within a bound, instead of those that
//! happen to occur.
//!
//! The code is this crate's own, from the ring down to its calls of the driver. Only the driver is a model ([`gpu`], behind the
//! table of functions that a library fills elsewhere): each of its streams is a thread that does one thing at a time, whenever
//! the model's order says. What it copies it takes from where it is at that moment, so that a slot that is filled too early gives
//! wrong bytes, and it fails where memory is not pinned or allocated any more. A model in which anybody waits for ever
//! fails, and so does one that leaves something behind.
//!
//! Loom runs all threads of a model on one thread of the system, so what is global to a model is thread-local here.

mod faults;
mod gpu;
mod regions;
mod slots;
mod table;
mod windows;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpu::{Faults, Gpu, State};
pub(crate) use table::table;

use crate::{Device, FilledSlot, FreeSlot, Region, RegionMut, Ring, RingOptions, SlotCopy};

thread_local! {
    static GPU: RefCell<Option<Arc<Gpu>>> = const { RefCell::new(None) };
    static LEAKED: RefCell<Vec<Leaked>> = const { RefCell::new(Vec::new()) };
}

fn gpu() -> Arc<Gpu> {
    GPU.with_borrow(|gpu| gpu.clone().expect("a model is running"))
}

/// A call of the driver whose place in the order of events does not matter.
fn quietly<T>(call: impl FnOnce(&mut State) -> T) -> T {
    gpu().quietly(call)
}

/// A call of the driver that gives a stream something to do.
fn on(stream: usize, call: impl FnOnce(&mut State) -> i32) -> i32 {
    gpu().on(stream, call)
}

/// What was leaked, and how it is freed.
struct Leaked {
    value: *mut (),
    free: unsafe fn(*mut ()),
}

/// Keeps `value` until the model is over: after the last stream has ended it is freed, since loom counts what is not.
pub(crate) fn leak<T>(value: T) {
    /// # Safety
    /// - `value` is a box of a `T`, freed once.
    unsafe fn free<T>(value: *mut ()) {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(value.cast::<T>()) });
    }
    let leaked = Leaked { value: Box::into_raw(Box::new(value)).cast(), free: free::<T> };
    LEAKED.with_borrow_mut(|all| all.push(leaked));
}

/// Runs `body` in every order of events that takes at most so many threads off the processor before they would wait.
fn model(preemptions: usize, faults: Faults, body: impl Fn(&Device) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    let orders = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&orders);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        GPU.set(Some(Gpu::new(faults)));
        let device = Device::cuda(0).unwrap();
        body(&device);
        gpu().finish();
        for Leaked { value, free } in LEAKED.take() {
            // SAFETY: each is freed once, with the type it was leaked with; nothing works on it any more.
            unsafe { free(value) };
        }
        drop(device);
        gpu().assert_empty();
        GPU.set(None);
    });
    println!("{} orders", orders.load(Ordering::Relaxed));
}

/// Bytes of a slot in these models.
const PAGE: usize = 4096;

/// Bytes of a copy.
const LEN: usize = 8;

fn ring(device: &Device, slots: usize) -> Ring {
    device.ring(RingOptions { slots, slot_size: PAGE }).unwrap()
}

/// A destination of so many pieces, cut into them.
fn pieces(device: &Device, count: u64) -> (crate::Carved, Vec<RegionMut>) {
    let len = LEN as u64;
    let ranges: Vec<_> = (0..count).map(|index| index * len..(index + 1) * len).collect();
    device.allocate(count * len, 256).unwrap().carve(&ranges).unwrap()
}

/// Reads the byte `value` into a slot. Others may come in between, as they may while storage is read.
fn fill(slot: FreeSlot, value: u8) -> FilledSlot {
    let filled = slot.fill(|bytes| {
        bytes[..LEN / 2].fill(value);
        loom::thread::yield_now();
        bytes[LEN / 2..LEN].fill(value);
        Ok::<_, ()>(LEN)
    });
    filled.map_err(|_| ()).unwrap()
}

fn copy(to: RegionMut) -> Vec<SlotCopy> {
    vec![SlotCopy { slot_offset: 0, to }]
}

/// The bytes of a region of the modelled device, without asking whether it is well.
fn bytes_of(region: &Region) -> Vec<u8> {
    quietly(|state| state.device(region.address(), region.len() as usize).to_vec())
}

/// What pieces filled with these values make.
fn expected(values: impl IntoIterator<Item = u8>) -> Vec<u8> {
    values.into_iter().flat_map(|value| [value; LEN]).collect()
}
