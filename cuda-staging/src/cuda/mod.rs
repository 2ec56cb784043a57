//! The CUDA driver, and the only place that names cudarc.
//!
//! cudarc gives the types. The calls go through our own table of functions that return integers (`api`), because cudarc's
//! own take a toolkit's stub for the driver, panic where the library or a symbol is missing and return an exhaustive enum,
//! for which a code newer than the enum would be undefined behaviour. Above the table, each file is one thing the driver
//! makes and one RAII type for it; each of them holds its context, so the context is released last.

pub(crate) mod api;
mod capture;
mod context;
mod event;
mod memory;
mod pin;
mod probe;
mod stream;

pub(crate) use context::{Attributes, Context};
pub(crate) use event::Event;
pub(crate) use memory::{DeviceMemory, check_device_range, copy_to_host, memory_info};
pub(crate) use pin::PinnedMemory;
pub(crate) use probe::driver;
pub(crate) use stream::{RawStream, Stream, is_captured};
