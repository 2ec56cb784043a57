//! The devices and their primary contexts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::context::{self, Context};
use super::driver;
use super::vram::Vram;
use crate::code::{INVALID_CONTEXT, INVALID_DEVICE, OUT_OF_MEMORY, Result};
use crate::engine::Link;
use crate::ledger::{Entry, Kind};
use crate::settings::{Settings, uuid_of};
use crate::sync::lock;

/// A simulated GPU.
pub(crate) struct Device {
    pub(crate) index: usize,
    /// Which one of the machine it is, whatever its index for the program.
    physical: usize,
    pub(crate) memory: Vram,
    pub(crate) link: Link,
    pub(crate) primary: Mutex<Primary>,
    bar1_size: u64,
    bar1_used: AtomicU64,
}

/// The state of a device's primary context.
#[derive(Default)]
pub(crate) struct Primary {
    pub(crate) context: Option<Arc<Context>>,
    /// One entry per retain.
    retains: Vec<Entry>,
    pub(crate) flags: u32,
    /// The handle of the default pool, made when first asked for.
    pub(crate) default_pool: Option<u64>,
    /// The handle of the pool the program chose.
    pub(crate) chosen_pool: Option<u64>,
}

impl Device {
    pub(crate) fn new(index: usize, physical: usize, settings: &Settings) -> Self {
        Self {
            index,
            physical,
            memory: Vram::new(settings.memory_of(physical), settings.resident),
            link: Link::new(settings),
            primary: Mutex::default(),
            bar1_size: settings.bar1,
            bar1_used: AtomicU64::new(0),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        "Simulated GPU"
    }

    pub(crate) fn uuid(&self) -> [u8; 16] {
        uuid_of(self.physical)
    }

    /// The bus number; each device has a bus of its own.
    pub(crate) fn pci_bus(&self) -> u8 {
        0xA0 + self.physical as u8
    }

    pub(crate) fn pci_bus_id(&self) -> String {
        format!("0000:{:02X}:00.0", self.pci_bus())
    }

    /// Adds a user to the primary context, making it if there is none.
    pub(crate) fn retain_primary(&self) -> Result<Arc<Context>> {
        let mut primary = lock(&self.primary);
        let context = match &primary.context {
            Some(context) => Arc::clone(context),
            None => {
                let context = Context::create(self.index, primary.flags, None)?;
                primary.context = Some(Arc::clone(&context));
                context
            }
        };
        primary.retains.push(Entry::open(Kind::Retain, 0));
        Ok(context)
    }

    /// Takes a user away; with the last one the context ends.
    pub(crate) fn release_primary(&self) -> Result {
        let mut primary = lock(&self.primary);
        // The caller's own retain if it has one.
        let caller = crate::caller::library();
        let own = primary.retains.iter().rposition(|entry| entry.library() == caller);
        let last = primary.retains.len().checked_sub(1).ok_or(INVALID_CONTEXT)?;
        primary.retains.swap_remove(own.unwrap_or(last)).release();
        let ended = if primary.retains.is_empty() { primary.context.take() } else { None };
        drop(primary);
        ended.map_or(Ok(()), |context| context.destroy())
    }

    /// `cuDevicePrimaryCtxReset`: ends the context whatever the number of users.
    pub(crate) fn reset_primary(&self) -> Result {
        let mut primary = lock(&self.primary);
        let ended = primary.context.take();
        for entry in primary.retains.drain(..) {
            entry.drop_with_context();
        }
        drop(primary);
        ended.map_or(Ok(()), |context| context.destroy())
    }

    /// Bytes of BAR1, and of them in use.
    pub(crate) fn bar1(&self) -> (u64, u64) {
        (self.bar1_size, self.bar1_used.load(Ordering::Relaxed))
    }

    /// Takes `bytes` of BAR1, as registering device memory for DMA does.
    pub(crate) fn reserve_bar1(&self, bytes: u64) -> Result {
        let take = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.bar1_size);
        let taken = self.bar1_used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(drop).map_err(|_| OUT_OF_MEMORY)
    }

    /// Gives `bytes` of BAR1 back.
    pub(crate) fn release_bar1(&self, bytes: u64) {
        let _ = self
            .bar1_used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_sub(bytes)));
    }
}

/// The device of that index.
pub(crate) fn find(index: usize) -> Result<&'static Device> {
    driver()?.devices.get(index).ok_or(INVALID_DEVICE)
}

/// The device of that ordinal, as the program gave it.
pub(crate) fn by_ordinal(ordinal: i32) -> Result<&'static Device> {
    find(usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?)
}

/// The device of the current context.
pub(crate) fn current() -> Result<&'static Device> {
    find(context::current()?.device)
}
