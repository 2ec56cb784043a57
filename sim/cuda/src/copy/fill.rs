//! Filling memory with a value.

use super::memory::{Place, look_up, place};
use super::wait_for_blocking_streams;
use crate::code::{INVALID_VALUE, Result};
use crate::ffi::Address;
use crate::state::context::Context;
use crate::state::stream::Stream;

/// Bytes filled at once: a multiple of every width.
const FILL_PIECE: usize = 64 << 10;

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
        if !to.is_multiple_of(width as u64) || place(to, len)? == Place::Pageable {
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
