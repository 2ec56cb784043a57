//! What the driver knows: devices, contexts, memory, pins, streams, events, pools.

pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod memory;
pub(crate) mod pins;
pub(crate) mod pool;
pub(crate) mod registry;
pub(crate) mod resident;
pub(crate) mod stream;
pub(crate) mod thread;
pub(crate) mod vram;

use std::sync::OnceLock;

use crate::code::{Code, NOT_INITIALIZED, Result};
use crate::settings::Settings;
use context::Context;
use device::Device;
use event::Event;
use memory::Memory;
use pins::Pins;
use pool::Pool;
use registry::Registry;
use stream::Stream;

/// Everything there is.
pub(crate) struct Driver {
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: Registry<Context>,
    pub(crate) streams: Registry<Stream>,
    pub(crate) events: Registry<Event>,
    pub(crate) pools: Registry<Pool>,
    pub(crate) memory: Memory,
    pub(crate) pins: Pins,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

/// Makes the devices.
pub(crate) fn start(settings: &Settings) -> Result {
    DRIVER.get_or_init(|| Driver {
        devices: settings
            .devices
            .iter()
            .enumerate()
            .map(|(index, &physical)| Device::new(index, physical, settings))
            .collect(),
        contexts: Registry::new(1),
        streams: Registry::new(2),
        events: Registry::new(3),
        pools: Registry::new(4),
        memory: Memory::default(),
        pins: Pins::default(),
    });
    Ok(())
}

/// The driver, once it is initialised.
pub(crate) fn driver() -> Result<&'static Driver> {
    DRIVER.get().ok_or(NOT_INITIALIZED)
}

/// Breaks the current context for good.
pub(crate) fn poison_current(code: Code) {
    if let Ok(context) = context::current_whatever_its_state() {
        context.health.poison(code);
    }
}
