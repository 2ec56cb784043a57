//! Contexts: what a thread works in.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use super::stream::Stream;
use super::{device, driver, thread};
use crate::code::{CONTEXT_IS_DESTROYED, INVALID_CONTEXT, Result};
use crate::engine::Health;
use crate::ledger::Entry;
use crate::sync::lock;

/// The key of the legacy default stream among a context's default streams; the others are thread numbers.
const LEGACY: u64 = 0;

/// A context.
pub(crate) struct Context {
    pub(crate) handle: u64,
    /// The device's index.
    pub(crate) device: usize,
    pub(crate) flags: AtomicU32,
    pub(crate) health: Arc<Health>,
    /// The contexts' handles whose memory it may access (`cuCtxEnablePeerAccess`).
    pub(crate) peers: Mutex<BTreeSet<u64>>,
    default_streams: Mutex<HashMap<u64, Arc<Stream>>>,
    /// `None` for primary contexts, whose retains are counted instead.
    entry: Option<Entry>,
}

impl Context {
    pub(crate) fn create(device: usize, flags: u32, entry: Option<Entry>) -> Result<Arc<Self>> {
        // Every allocation needs a context, and making one is in nobody's figures.
        device::find(device)?.memory.make_resident();
        Ok(driver()?.contexts.insert(|handle| Self {
            handle,
            device,
            flags: AtomicU32::new(flags),
            health: Arc::default(),
            peers: Mutex::default(),
            default_streams: Mutex::default(),
            entry,
        }))
    }

    pub(crate) fn is_primary(&self) -> bool {
        self.entry.is_none()
    }

    /// The legacy default stream.
    pub(crate) fn legacy_stream(self: &Arc<Self>) -> Arc<Stream> {
        self.default_stream(LEGACY)
    }

    /// The calling thread's own default stream.
    pub(crate) fn thread_stream(self: &Arc<Self>) -> Arc<Stream> {
        self.default_stream(thread::number())
    }

    fn default_stream(self: &Arc<Self>, key: u64) -> Arc<Stream> {
        let mut streams = lock(&self.default_streams);
        let make = || Arc::new(Stream::default_of(self, key == LEGACY));
        Arc::clone(streams.entry(key).or_insert_with(make))
    }

    /// Every stream of the context that exists.
    pub(crate) fn streams(&self) -> Result<Vec<Arc<Stream>>> {
        let mut streams = driver()?.streams.find(|stream| stream.context.handle == self.handle);
        streams.extend(lock(&self.default_streams).values().cloned());
        Ok(streams)
    }

    /// Waits for all work of the context.
    pub(crate) fn synchronize(&self) -> Result {
        self.streams()?.iter().try_for_each(|stream| stream.queue.drain())?;
        self.health.check()
    }

    /// Ends the context: its work is finished, its memory, pins, streams and events are gone.
    pub(crate) fn destroy(&self) -> Result {
        let driver = driver()?;
        driver.contexts.remove(self.handle);
        for stream in self.streams()? {
            stream.queue.drain()?;
        }
        self.health.destroy();
        for stream in driver.streams.remove_all(|stream| stream.context.handle == self.handle) {
            stream.drop_with_context();
        }
        for event in driver.events.remove_all(|event| event.context == self.handle) {
            event.entry.drop_with_context();
        }
        // They refer to this context, which refers to them.
        lock(&self.default_streams).clear();
        driver.memory.drop_context(self.handle);
        driver.pins.drop_context(self.handle);
        if let Some(entry) = &self.entry {
            entry.release();
        }
        Ok(())
    }
}

/// The current context, however it is.
pub(crate) fn current_whatever_its_state() -> Result<Arc<Context>> {
    match thread::current() {
        0 => Err(INVALID_CONTEXT),
        handle => driver()?.contexts.get(handle).ok_or(CONTEXT_IS_DESTROYED),
    }
}

/// The current context, if it can be used.
pub(crate) fn current() -> Result<Arc<Context>> {
    let context = current_whatever_its_state()?;
    context.health.check()?;
    Ok(context)
}

/// The context of that handle.
pub(crate) fn find(handle: u64) -> Result<Arc<Context>> {
    driver()?.contexts.get(handle).ok_or(INVALID_CONTEXT)
}
