//! The exported driver calls, one module per subject. Each is thin: arguments checked, then one call into the floors below.

mod capture;
mod context;
mod copy;
mod device;
mod driver;
mod event;
mod ipc;
mod memory;
mod peer;
mod pinned;
mod pointer;
mod pool;
mod primary;
mod stream;
