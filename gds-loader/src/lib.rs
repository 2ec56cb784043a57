//! Safetensors weights into device memory, exactly, by the best path each file has.
//!
//! [`Loader`] is the front door: a path in, a [`Model`] out, whose tensors are whole or not there at all.
//!
//! The floors below it, each using only those further down:
//!
//! - [`Loader`], [`Model`], [`Verifier`]: the public doors. [`manifest`]: what a checkpoint's bytes were.
//! - `pipeline`: moves pieces through slots; knows no path by name.
//! - `policy`: which path a file takes and which takes over; the one place that knows them all.
//! - `transport`: one file per path: `buffered`, `direct`, `mmap`, `gds`.
//! - [`check`]: the doctor: what GPUDirect Storage needs on a machine and what is missing.
//! - [`cufile`]: NVIDIA's cuFile, safe, usable without the loader.
//! - [`plan`]: where each tensor lands and what is read for it: pure. [`source`]: what a path means.
//! - [`format`](mod@format): headers, indexes, dtypes. [`facts`]: what file and machine are. Reports.
#![warn(missing_docs)]

pub mod bench;
mod bounded;
pub mod check;
pub mod cufile;
mod digest;
mod error;
pub mod facts;
pub mod format;
mod limits;
mod load;
pub mod manifest;
mod model;
mod pipeline;
pub mod plan;
mod policy;
mod process;
mod report;
mod save;
pub mod source;
mod sync;
mod threads;
mod transport;
mod verify;
mod workers;

pub use cufile_sys::HEADER_VERSION as CUFILE_HEADER_VERSION;

pub use error::{Error, ErrorKind, Result};
#[doc(hidden)]
pub use limits::{file_size_limit, raise_descriptor_limit, refuse_writes_beyond_the_limit};
pub use load::{Destination, Loader};
pub use model::{Model, Tensor};
pub use pipeline::{CancelToken, Measure, Progress};
pub use policy::Backend;
pub use report::{
    CacheReport, Choice, DeviceReport, EngineReport, Fallback, GdsProof, GdsReport, LoadReport, PathBytes,
    Stages,
};
pub use save::{
    Durability, PublishError, SAVING_DROP_LIMIT, SaveError, SaveReport, SaveStages, SaveTensor, Saver,
    Saving, Synced, TensorBytes,
};
#[doc(hidden)]
pub use threads::in_parallel;
pub use transport::{Engine, PathKind, ReadCause};
pub use verify::{Verifier, VerifyReport};
#[doc(hidden)]
pub use workers::share_out;
