//! NVIDIA's cuFile, safe and whole, usable without the loader.
//!
//! - [`Library`]: what is installed, and its parameters. [`Driver`]: open in one [`Mode`], with [`DriverSettings`] set
//!   before; its properties and statistics.
//! - [`CuFile`]: a registered file, with reads and writes that loop to the exact count, of host or device memory, whole or
//!   in part, plain or vectored ([`IoSliceMut`]).
//! - [`RegisteredBuffer`], [`RegisteredWindow`]: registered memory within a [`RegistrationBudget`].
//! - [`Batch`] and [`CuFileStream`]: operations in flight, which own their files, memory and arguments.
//!
//! # What holds
//!
//! - Memory a file is read into is unique to the read. What is in flight is freed only once it is over; where that is
//!   never known, it is kept for ever and the driver is poisoned. `mem::forget` is safe everywhere.
//! - In the child of a fork every call answers [`CuFileError::Forked`], and dropping does nothing.
//! - Nothing reports success but on an exact count, each event's state included. A negative count is an error with its
//!   code, wherever it hides.
//! - cuFile is not ordered with CUDA streams, except [`CuFileStream`]: a kernel's output is written to a file only after
//!   waiting for the kernel.
//!
//! # The log
//!
//! The library writes `cufile.log` into the working directory unless the environment variable `CUFILE_LOGFILE_PATH` is
//! set (`/dev/null` will do) before the program starts; no call changes that, and a library must not change the
//! environment of its program.
//!
//! # Example
//!
//! ```no_run
//! use cuda_staging::Device;
//! use gds_loader::cufile::{CuFile, Driver, Mode, RegisteredBuffer};
//!
//! let driver = Driver::open(Mode::Direct)?;
//! let file = CuFile::open(&driver, "/data/model.safetensors")?;
//! let memory = Device::cuda(0)?.allocate(16 << 20, 4096)?;
//! let mut buffer = RegisteredBuffer::register(&driver, memory).map_err(|(_, error)| error)?;
//! file.read_exact(&mut buffer, 0)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::time::Duration;

mod batch;
mod buffer;
mod driver;
mod ending;
mod error;
mod file;
mod io;
mod library;
mod memory;
mod operation;
mod params;
mod properties;
mod settings;
mod stats;
mod stream;
mod vectored;
mod window;

pub use cufile_sys::{Failure, Kind as StatusKind, Since, Status, TransferError};

pub use batch::{Batch, SubmitError};
pub use buffer::{RegisteredBuffer, RegistrationBudget};
pub use driver::{Driver, Mode};
pub use error::{CuFileError, CuFileErrorKind, CuFileResult, Direction};
pub use file::CuFile;
pub use library::{Library, Version};
pub use memory::{Buffer, ReadBuffer, WriteBuffer};
pub use operation::{Completion, Operation, Ticket};
pub use params::{BoolParameter, SizeParameter, Slab, SlabPool, StringParameter};
pub use properties::{DriverProperties, P2pFlags, StorageKind};
pub use settings::{DriverSettings, OPEN_LIMIT_VARIABLE};
pub use stats::{BatchStatistics, GpuStatistics, Level1, Level2, Level3, Operations, Routes, Transfers};
pub use stream::{CuFileStream, StreamFlags, StreamOperation};
pub use vectored::{IoSlice, IoSliceMut};
pub use window::RegisteredWindow;

/// How long the end of an operation in flight is waited for when it is dropped.
pub const DROP_LIMIT: Duration = Duration::from_secs(10);
