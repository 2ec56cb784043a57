//! One copy or fill, however it was asked for.
//!
//! Memory that CUDA knows (device, managed, pinned) is looked up again when the copy runs: its contents are those of that
//! moment, and if it is gone by then the copy fails with an illegal address, as a stray DMA would. Pageable sources are
//! staged at the call, pageable destinations make the call wait.

mod fill;
mod memory;
mod unordered;

use std::collections::VecDeque;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use fill::{fill_now, launch_fill};
pub(crate) use memory::Form;
use memory::{End, Memory, Place, place, places};
pub(crate) use unordered::{read_unordered, with_known, write_unordered};

use crate::code::Result;
use crate::engine::{Completion, pass_gate};
use crate::faults;
use crate::ffi::Address;
use crate::state::context::Context;
use crate::state::device;
use crate::state::stream::Stream;

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

/// Moves the bytes over the link of the device.
fn transfer(device: usize, to: &End, from: &End, len: usize, corrupt: bool) -> Result {
    pass_gate();
    let mut outcome = Ok(());
    device::find(device)?.link.carry(len, || {
        outcome =
            move_bytes(to, from, len).and_then(|to| if corrupt { flip_a_bit(&to, len) } else { Ok(()) });
    });
    outcome
}

/// Moves the bytes; returns where they went.
fn move_bytes(to: &End, from: &End, len: usize) -> Result<Memory> {
    let (to, from) = (to.look_up(len)?, from.look_up(len)?);
    match (&to, &from) {
        // SAFETY: both were looked up just now with `len` bytes and are kept.
        (Memory::Pinned(..) | Memory::Host(_), Memory::Device(..)) => unsafe {
            from.read(to.pointer()?, len)?
        },
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
