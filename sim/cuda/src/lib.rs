//! A simulated `libcuda.so.1`: the CUDA driver API on a machine with no GPU.
//!
//! cudarc, NVIDIA's libcufile and kvikio load it as if it were the driver. It is honest about what goes wrong in real life:
//! device memory cannot be touched by host code, copies run later and in order on their stream's own thread, every
//! handle and allocation is accounted for by the library that made it, and any call can be made to fail. Kernels,
//! graphs, modules and textures are not there: those functions do not exist in it.
//!
//! `README.md` of this package lists the settings, the control symbols and the honesty rules. The floors, each using only
//! those below it:
//!
//! ```text
//! api, control        the exported C functions
//! call                what every exported call shares: counting, faults, panics, forks
//! copy                one copy, however it was asked for
//! state               devices, contexts, memory, pins, pools
//! engine              streams, events: what runs later
//! ledger, caller      who made what                 faults, settings, names        interpose  files that libcufile misses
//! ```

#![warn(missing_docs)]
#![allow(non_snake_case, reason = "the exported functions have the driver's names")]

mod api;
mod call;
mod caller;
mod code;
mod control;
mod copy;
mod engine;
mod faults;
mod ffi;
mod interpose;
mod ledger;
mod names;
mod process;
mod report;
mod settings;
mod state;
mod sync;
