//! What will be read from where, and where it will land: pure, no device, descriptor or transport is named here.
//!
//! Three words of the field carry the whole plan. An *extent* is a range of file bytes read in one go, aligned as the
//! file's direct I/O demands. A *run* is a maximal stretch of wanted bytes whose distance (destination - file offset) is
//! constant. A *piece* is an extent together with the stretches of runs it holds: one read, then the copies that scatter it.
//!
//! The trade-off: every tensor gets its aligned place in the destination *before* anything is read, and odd-sized tensors
//! cost an extra copy each. The alternative, reading a whole file in one block and shifting it afterwards, needs a second
//! pass over device memory and has corrupted weights in other loaders.

mod layout;
mod pieces;

pub use layout::{Layout, LayoutRule, Run, lay_out, runs, runs_apart};
pub use pieces::{Cut, FileShape, Landing, Piece, Plan, Scatter, cut};

/// The bytes of one tensor in its file, and how its destination must be aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Index of the file that holds it.
    pub file: u32,
    /// Offset of its first byte in the file.
    pub offset: u64,
    /// Length in bytes; 0 is legal and moves nothing.
    pub len: u64,
    /// Alignment of its destination in bytes: a power of two.
    pub alignment: u64,
}

/// `value` rounded down to a multiple of `alignment`, a power of two.
pub(crate) const fn align_down(value: u64, alignment: u64) -> u64 {
    value & !(alignment - 1)
}

/// `value` rounded up to a multiple of `alignment`, a power of two.
///
/// Saturates at the largest multiple that fits, so a hostile offset cannot wrap round to a small one.
pub(crate) const fn align_up(value: u64, alignment: u64) -> u64 {
    match value.checked_add(alignment - 1) {
        Some(sum) => align_down(sum, alignment),
        None => align_down(u64::MAX, alignment),
    }
}
