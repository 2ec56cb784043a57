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
//! api, control, interpose     the exported C functions
//! call, ffi, report           what every exported call shares; pointers of the program; the report
//! copy                        one copy, however it was asked for
//! state                       devices, contexts, memory, pins, streams, events, pools
//! engine                      queues, completions, the link: what runs later
//! ledger, caller              who made what
//! process, settings, faults   the driver's life in this process and what the environment asks of it
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
