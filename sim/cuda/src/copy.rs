//! One copy or fill, however it was asked for.
//!
//! Memory that CUDA knows (device, managed, pinned) is looked up again when the copy runs: its contents are those of that
//! moment, and if it is gone by then the copy fails with an illegal address, as a stray DMA would. Pageable sources are
//! staged at the call, pageable destinations make the call wait.

use std::collections::VecDeque;
use std::{ptr, slice};
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

/// Bytes filled at once: a multiple of every width.
const FILL_PIECE: usize = 64 << 10;

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

/// One end of a copy as it runs, kept until it is done.
enum Memory {
    Device(Arc<Allocation>, Address),
    Pinned(*mut u8, #[expect(dead_code, reason = "kept so that the pin is not taken away")] PinInUse),
    Host(*mut u8),
}

impl End {
    fn new(place: Place, address: Address) -> Self {
        if place == Place::Pageable { Self::Waiting(address) } else { Self::Known(address) }
    }

    /// The `len` bytes as they are now.
    fn look_up(&self, len: usize) -> Result<Memory> {
        match self {
            Self::Known(address) => look_up(*address, len),
            Self::Waiting(address) => Ok(Memory::Host(*address as *mut u8)),
            Self::Staged(bytes) => Ok(Memory::Host(bytes.as_ptr().cast_mut())),
        }
    }
}

/// Memory that CUDA knows; an illegal address where it does not (any more).
fn look_up(address: Address, len: usize) -> Result<Memory> {
    let end = address.checked_add(len as u64).ok_or(ILLEGAL_ADDRESS)?;
    let (range_end, memory) = match memory::find(address) {
        Some(found) => (found.address + found.len, Memory::Device(found, address)),
        None => {
            let found = driver()?.pins.find(address).ok_or(ILLEGAL_ADDRESS)?;
            (found.pin().address + found.pin().len, Memory::Pinned(address as *mut u8, found))
        }
    };
    if end > range_end { Err(ILLEGAL_ADDRESS) } else { Ok(memory) }
}

impl Memory {
    /// Where the simulator can reach it.
    fn pointer(&self) -> Result<*mut u8> {
        match self {
            Self::Device(allocation, address) => allocation.alias(*address),
            Self::Pinned(pointer, _) | Self::Host(pointer) => Ok(*pointer),
        }
    }

    /// Writes `len` bytes from `from` into it.
    ///
    /// # Safety
    /// - It is `len` bytes long.
    /// - The `len` bytes at `from` stay as they are meanwhile.
    unsafe fn write(&self, from: *const u8, len: usize) -> Result {
        if let Self::Device(allocation, address) = self {
            // SAFETY: handed on.
            return unsafe { allocation.mapping.write(allocation.offset_of(*address), from, len) };
        }
        // SAFETY: handed on; pinned memory is kept, other host memory is that of a call that waits.
        unsafe { ptr::copy(from, self.pointer()?, len) };
        Ok(())
    }

    /// Reads `len` bytes of it into `to`.
    ///
    /// # Safety
    /// - It is `len` bytes long.
    /// - Nothing else uses the `len` bytes at `to` meanwhile.
    unsafe fn read(&self, to: *mut u8, len: usize) -> Result {
        if let Self::Device(allocation, address) = self {
            // SAFETY: handed on.
            return unsafe { allocation.mapping.read(allocation.offset_of(*address), to, len) };
        }
        // SAFETY: handed on; pinned memory is kept, other host memory is that of a call that waits.
        unsafe { ptr::copy(self.pointer()?, to, len) };
        Ok(())
    }
}

/// Moves the bytes over the link of the device.
fn transfer(device: usize, to: &End, from: &End, len: usize, corrupt: bool) -> Result {
    pass_gate();
    let mut outcome = Ok(());
    device::find(device)?.link.carry(len, || {
        outcome = move_bytes(to, from, len).and_then(|to| if corrupt { flip_a_bit(&to, len) } else { Ok(()) });
    });
    outcome
}

/// Moves the bytes; returns where they went.
fn move_bytes(to: &End, from: &End, len: usize) -> Result<Memory> {
    let (to, from) = (to.look_up(len)?, from.look_up(len)?);
    match (&to, &from) {
        // SAFETY: both were looked up just now with `len` bytes and are kept.
        (Memory::Pinned(..) | Memory::Host(_), Memory::Device(..)) => unsafe { from.read(to.pointer()?, len)? },
        // SAFETY: as above.
        _ => unsafe { to.write(from.pointer()?, len)? },
    }
    Ok(to)
}

/// Makes what a copy brought wrong.
fn flip_a_bit(to: &Memory, len: usize) -> Result {
    let middle = to.pointer()?.wrapping_add(len / 2);
    // SAFETY: inside the `len` bytes written just now, of which there is at least one.
    unsafe { *middle ^= 0x10 };
    Ok(())
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
    let source = End::new(place(from, len)?, from).look_up(len)?;
    let source = source.pointer()?;
    let mut in_flight: VecDeque<Arc<Completion>> = VecDeque::new();
    for start in (0..len).step_by(STAGE) {
        if in_flight.len() == 2
            && let Some(oldest) = in_flight.pop_front()
        {
            oldest.wait();
        }
        let piece = STAGE.min(len - start);
        // SAFETY: `len` bytes at `source` are the program's for the time of the call; the piece is inside.
        let staged: Box<[u8]> = unsafe { slice::from_raw_parts(source.add(start), piece) }.into();
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
        let pattern = self.value.to_le_bytes();
        let piece = pattern.get(..self.width).ok_or(INVALID_VALUE)?.repeat(FILL_PIECE / self.width);
        for start in (0..self.len).step_by(FILL_PIECE) {
            let len = FILL_PIECE.min(self.len - start);
            let to = look_up(self.to + start as u64, len)?;
            // SAFETY: looked up just now with `len` bytes; the piece is at least as long.
            unsafe { to.write(piece.as_ptr(), len)? };
        }
        Ok(())
    }
}

/// Uses `len` bytes of memory that CUDA knows.
pub(crate) fn with_known<T>(address: Address, len: usize, use_it: impl FnOnce(*mut u8) -> T) -> Result<T> {
    let memory = look_up(address, len)?;
    memory.pointer().map(use_it)
}

/// Writes device memory from the host, unordered with every stream.
///
/// # Safety
/// - The `len` bytes at `from` can be read, and stay as they are meanwhile.
pub(crate) unsafe fn write_unordered(to: Address, from: *const u8, len: usize) -> Result {
    // SAFETY: looked up with `len` bytes; the source by the caller's promise.
    unsafe { look_up(to, len)?.write(from, len) }
}

/// Reads device memory from the host, unordered with every stream.
///
/// # Safety
/// - The `len` bytes at `to` can be written, and nothing else uses them meanwhile.
pub(crate) unsafe fn read_unordered(to: *mut u8, from: Address, len: usize) -> Result {
    // SAFETY: looked up with `len` bytes; the destination by the caller's promise.
    unsafe { look_up(from, len)?.read(to, len) }
}
