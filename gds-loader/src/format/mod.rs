//! The safetensors format: dtypes, shapes, headers, sharded indexes.
//!
//! A file is an 8-byte little-endian header length, that many bytes of JSON, and the tensors' bytes back to back. The
//! `safetensors` crate is the reference: what it accepts and what it refuses decides here too, except where this reader
//! is stricter on purpose (see [`header`]).
//!
//! Everything here is a function of bytes and numbers. Which files a path means is the business of [`crate::source`].

pub mod dtype;
mod fault;
mod geometry;
pub mod header;
pub mod index;
mod json;
mod printable;
pub mod shape;
pub mod sniff;
mod table;
pub mod write;

pub use dtype::Dtype;
pub use fault::{FormatError, HeaderFault};
pub use header::{Header, HeaderLimits, TensorEntry};
pub use index::{Index, IndexError};
pub(crate) use printable::{Name, Shown, list, words};
pub use printable::{printable, steers_a_terminal};
pub(crate) use shape::Brief;
pub use shape::Shape;
pub use sniff::FileKind;
pub use write::{NewHeader, NewTensor, WriteFault};
