//! What the library knows: everything behind one lock, which is never held while bytes move.

mod batch;
mod buffers;
mod driver;
mod files;
mod parameters;
mod segment;
mod statistics;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

pub(crate) use batch::{Batch, Entry};
pub(crate) use buffers::Buffers;
pub(crate) use driver::{Driver, compat_allowed};
pub(crate) use files::{File, Files};
pub(crate) use parameters::{Parameters, Slabs};
pub(crate) use statistics::{Kind, Statistics, Transferred, count};

use crate::ffi::Handle;
use crate::lock;

/// Everything that calls share.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) driver: Driver,
    pub(crate) parameters: Parameters,
    pub(crate) files: Files,
    pub(crate) buffers: Buffers,
    pub(crate) batches: HashMap<Handle, Arc<Batch>>,
    /// Registered streams and their flags.
    pub(crate) streams: HashMap<Handle, u32>,
    pub(crate) statistics: Statistics,
    last_handle: Handle,
}

/// The process's state.
pub(crate) fn state() -> MutexGuard<'static, State> {
    static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
    lock(&STATE)
}

impl State {
    /// A handle that was never given before, so that one of something gone stays wrong for ever. It is no address.
    pub(crate) fn new_handle(&mut self) -> Handle {
        self.last_handle += 1;
        0x6375_6669_0000_0000 + self.last_handle
    }
}
