//! One copy or fill, however it was asked for.
//!
//! Memory that CUDA knows (device, managed, pinned) is looked up again when the copy runs: its contents are those of that
//! moment, and if it is gone by then the copy fails with an illegal address, as a stray DMA would. Pageable sources are
//! staged at the call, pageable destinations make the call wait.

use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::code::{ILLEGAL_ADDRESS, INVALID_VALUE, Result};
use crate::engine::{Completion, pass_gate};
use crate::faults;
use crate::ffi::Address;
use crate::state::context::Context;
use crate::state::memory::Allocation;
use crate::state::pins::PinInUse;
use crate::state::stream::Stream;
use crate::state::{device, driver, memory};

/// Bytes staged at once; two such pieces may be on their way, so that a copy of any size needs little memory.
const STAGE: usize = 4 << 20;

static COPIES: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static CORRUPTED: AtomicU64 = AtomicU64::new(0);

/// Copies asked for, their bytes, and how many of them were corrupted.
pub(crate) fn counts() -> (u64, u64, u64) {
    let [copies, bytes, corrupted] = [&COPIES, &BYTES, &CORRUPTED].map(|count| count.load(Ordering::Relaxed));
    (copies, bytes, corrupted)
}

pub(crate) fn reset_counts() {
    for count in [&COPIES, &BYTES, &CORRUPTED] {
        count.store(0, Ordering::Relaxed);
    }
}

/// What the function called requires of its two addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Any,
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
}

/// Whose memory an address is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Device,
    /// Managed or pinned: host and device may use it.
    Shared,
    Pageable,
}

/// Whose memory the range is; an invalid value where it runs over the end of what CUDA knows.
fn place(address: Address, len: usize) -> Result<Place> {
    let end = address.checked_add(len as u64).filter(|_| address != 0).ok_or(INVALID_VALUE)?;
    let (range_end, place) = match memory::find(address) {
        Some(found) => {
            (found.address + found.len, if found.is_managed() { Place::Shared } else { Place::Device })
        }
        None => match driver()?.pins.find(address) {
            Some(found) => (found.pin().address + found.pin().len, Place::Shared),
            None => return Ok(Place::Pageable),
        },
    };
    if end > range_end { Err(INVALID_VALUE) } else { Ok(place) }
}

/// Both ends of a copy, checked against its form.
fn places(to: Address, from: Address, len: usize, form: Form) -> Result<(Place, Place)> {
    let (to, from) = (place(to, len)?, place(from, len)?);
    let allowed = match form {
        Form::Any => true,
        Form::HostToDevice => to != Place::Pageable && from != Place::Device,
        Form::DeviceToHost => from != Place::Pageable && to != Place::Device,
        Form::DeviceToDevice => to != Place::Pageable && from != Place::Pageable,
    };
    if allowed { Ok((to, from)) } else { Err(INVALID_VALUE) }
}

/// One end of a copy, until it runs.
enum End {
    /// Memory that CUDA knows, to be looked up then.
    Known(Address),
    /// Pageable memory of a call that waits.
    Waiting(Address),
    /// The contents at the time of the call.
    Staged(Box<[u8]>),
}

/// Keeps the memory behind a pointer.
enum Keep {
    Allocation { _allocation: Arc<Allocation> },
    Pin { _pin: PinInUse },
    Nothing,
}

impl End {
    fn new(place: Place, address: Address) -> Self {
        if place == Place::Pageable { Self::Waiting(address) } else { Self::Known(address) }
    }

    /// Where the `len` bytes are now.
    fn pointer(&self, len: usize) -> Result<(*mut u8, Keep)> {
        match self {
            Self::Known(address) => known(*address, len),
            Self::Waiting(address) => Ok((*address as *mut u8, Keep::Nothing)),
            Self::Staged(bytes) => Ok((bytes.as_ptr().cast_mut(), Keep::Nothing)),
        }
    }
}

fn known(address: Address, len: usize) -> Result<(*mut u8, Keep)> {
    let end = address + len as u64;
    if let Some(allocation) = memory::find(address) {
        let inside = end <= allocation.address + allocation.len;
        let pointer = allocation.alias(address);
        return inside
            .then_some((pointer, Keep::Allocation { _allocation: allocation }))
            .ok_or(ILLEGAL_ADDRESS);
    }
    let pin = driver()?.pins.find(address).ok_or(ILLEGAL_ADDRESS)?;
    let inside = end <= pin.pin().address + pin.pin().len;
    inside.then_some((address as *mut u8, Keep::Pin { _pin: pin })).ok_or(ILLEGAL_ADDRESS)
}

/// Moves the bytes over the link of the device.
fn transfer(device: usize, to: &End, from: &End, len: usize, corrupt: bool) -> Result {
    pass_gate();
    let mut outcome = Ok(());
    device::find(device)?.link.carry(len, || {
        outcome = to.pointer(len).and_then(|(to, _keep_to)| {
            let (from, _keep_from) = from.pointer(len)?;
            // SAFETY: both ranges were looked up just now and are kept, or belong to a call that waits (the C contract of its
            // pointers), or are ours. They may overlap.
            unsafe { ptr::copy(from, to, len) };
            if corrupt {
                // SAFETY: inside the range written above; `len` is not 0.
                unsafe { *to.add(len / 2) ^= 0x10 };
            }
            Ok(())
        });
    });
    outcome
}

/// Counts a copy; whether it is to be corrupted.
fn count(len: usize) -> bool {
    COPIES.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(len as u64, Ordering::Relaxed);
    let corrupt = faults::at_copy();
    CORRUPTED.fetch_add(u64::from(corrupt), Ordering::Relaxed);
    corrupt
}

/// A copy in the order of a stream.
pub(crate) fn launch(stream: &Stream, to: Address, from: Address, len: usize, form: Form) -> Result {
    if len == 0 {
        return Ok(());
    }
    let (to_place, from_place) = places(to, from, len, form)?;
    let corrupt = count(len);
    if from_place == Place::Pageable && to_place != Place::Pageable {
        return launch_staged(stream, to, from, len, corrupt);
    }
    let device = stream.context.device;
    let (to, from) = (End::new(to_place, to), End::new(from_place, from));
    stream.run(move || transfer(device, &to, &from, len, corrupt))?;
    if to_place == Place::Pageable { stream.synchronize() } else { Ok(()) }
}

/// A copy in the order of a stream, whose source may be changed as soon as the call returns.
pub(crate) fn launch_during_call(stream: &Stream, to: Address, from: Address, len: usize) -> Result {
    if len == 0 {
        return Ok(());
    }
    match places(to, from, len, Form::Any)? {
        (Place::Pageable, _) => launch(stream, to, from, len, Form::Any),
        _ => launch_staged(stream, to, from, len, count(len)),
    }
}

/// Copies the source away piece by piece, and brings the pieces in the order of the stream.
fn launch_staged(stream: &Stream, to: Address, from: Address, len: usize, corrupt: bool) -> Result {
    let device = stream.context.device;
    let mut in_flight: VecDeque<Arc<Completion>> = VecDeque::new();
    for start in (0..len).step_by(STAGE) {
        if in_flight.len() == 2
            && let Some(oldest) = in_flight.pop_front()
        {
            oldest.wait();
        }
        let piece = STAGE.min(len - start);
        let (source, _keep) = match place(from, len)? {
            Place::Pageable => ((from as *mut u8), Keep::Nothing),
            _ => known(from, len)?,
        };
        // SAFETY: `len` bytes at `source` are kept, or the program's for the time of the call; the piece is inside.
        let staged: Box<[u8]> = unsafe { std::slice::from_raw_parts(source.add(start), piece) }.into();
        let (to, from) = (End::Known(to + start as u64), End::Staged(staged));
        stream.run(move || transfer(device, &to, &from, piece, corrupt && start == 0))?;
        if len > STAGE {
            in_flight.push_back(stream.queue.mark()?);
        }
    }
    Ok(())
}

/// A copy that the call waits for, in the order of the legacy default stream.
pub(crate) fn now(context: &Arc<Context>, to: Address, from: Address, len: usize, form: Form) -> Result {
    if len == 0 {
        return Ok(());
    }
    let (to_place, from_place) = places(to, from, len, form)?;
    let corrupt = count(len);
    wait_for_blocking_streams(context)?;
    let (to, from) = (End::new(to_place, to), End::new(from_place, from));
    transfer(context.device, &to, &from, len, corrupt).inspect_err(|&code| context.health.poison(code))
}

/// Waits as the legacy default stream does before its next work.
fn wait_for_blocking_streams(context: &Context) -> Result {
    for stream in context.streams()? {
        if stream.is_blocking() {
            stream.queue.drain()?;
        }
    }
    context.health.check()
}

/// Fills memory with `count` times the first `width` bytes of `value`, in the order of a stream.
pub(crate) fn launch_fill(stream: &Stream, to: Address, value: u32, width: usize, count: usize) -> Result {
    let Some(fill) = Fill::new(to, value, width, count)? else { return Ok(()) };
    stream.run(move || fill.run())
}

/// The same, waited for.
pub(crate) fn fill_now(context: &Context, to: Address, value: u32, width: usize, count: usize) -> Result {
    let Some(fill) = Fill::new(to, value, width, count)? else { return Ok(()) };
    wait_for_blocking_streams(context)?;
    fill.run().inspect_err(|&code| context.health.poison(code))
}

struct Fill {
    to: Address,
    value: u32,
    width: usize,
    len: usize,
}

impl Fill {
    /// Checks the arguments; `None` where there is nothing to fill.
    fn new(to: Address, value: u32, width: usize, count: usize) -> Result<Option<Self>> {
        let len = count.checked_mul(width).ok_or(INVALID_VALUE)?;
        if len == 0 {
            return Ok(None);
        }
        if to % width as u64 != 0 || place(to, len)? == Place::Pageable {
            return Err(INVALID_VALUE);
        }
        Ok(Some(Self { to, value, width, len }))
    }

    fn run(&self) -> Result {
        let (to, _keep) = known(self.to, self.len)?;
        let pattern = self.value.to_le_bytes();
        for start in (0..self.len).step_by(self.width) {
            if self.width == 1 {
                // SAFETY: the whole range was looked up just now and is kept.
                unsafe { ptr::write_bytes(to, pattern[0], self.len) };
                break;
            }
            // SAFETY: as above; `start + width` is at most `len`, and `width` at most 4.
            unsafe { ptr::copy_nonoverlapping(pattern.as_ptr(), to.add(start), self.width) };
        }
        Ok(())
    }
}

/// Uses `len` bytes of memory that CUDA knows.
pub(crate) fn with_known<T>(address: Address, len: usize, use_it: impl FnOnce(*mut u8) -> T) -> Result<T> {
    let (pointer, _keep) = known(address, len)?;
    Ok(use_it(pointer))
}
