//! The C API of NVIDIA's cuFile (GPUDirect Storage), found and loaded at run time.
//!
//! - [`Api`] holds the functions: the first release's as plain function pointers, newer ones as `Option`.
//! - [`Api::get`] loads the library once per process; [`LoadError`] says what was tried and why it failed.
//! - [`Status`] gives cuFile's codes names and meanings; [`transferred`] reads the counts of its data calls.
//! - [`StatisticsBuffer`] bridges the two layouts that the statistics have had.
//! - The types and constants of `cufile.h` keep their C names. C enums are integers in a newtype, because newer
//!   libraries return codes that no older header knows.
//!
//! The bindings are committed (`cargo xtask bindgen` makes them from NVIDIA's header), so a build needs neither CUDA
//! nor clang, and nothing is linked: a program that uses this crate starts on machines without the library. No call is
//! checked here; the safe interface lives in the crates above.
//!
//! ```
//! match cufile_sys::Api::get() {
//!     Ok(api) => println!("{}, lacks {:?}", api.library().display(), api.absent()),
//!     Err(error) => println!("{error}"),
//! }
//! ```

#![warn(missing_docs)]

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    clippy::undocumented_unsafe_blocks,
    missing_debug_implementations,
    reason = "generated from the C header, which has its own names and no words of ours"
)]
#[rustfmt::skip]
mod bindings;

mod api;
mod elf;
mod load;
mod search;
mod statistics;
mod status;

pub use api::{Api, FUNCTIONS, Function, Since};
pub use bindings::*;
pub use load::{Attempt, LoadError};
pub use search::LIBRARY_VARIABLE;
pub use statistics::{StatisticsBuffer, StatisticsLayout};
pub use status::{Failure, Kind, Status, TransferError, transferred};

/// The version of the header that the bindings describe.
pub const HEADER_VERSION: &str = "1.20";

// The header defines these by a cast, which bindgen does not translate.

/// For `cuFileDriverSetP2PFlags`: peer-to-peer DMA by the kernel's PCI P2PDMA.
pub const CU_FILE_P2P_FLAG_PCI_P2PDMA: CUfileP2PFlags_t = CUfileP2PFlags(1 << CUFILE_P2PDMA.0);
/// For `cuFileDriverSetP2PFlags`: peer-to-peer DMA by the nvidia-fs kernel module.
pub const CU_FILE_P2P_FLAG_NVFS: CUfileP2PFlags_t = CUfileP2PFlags(1 << CUFILE_NVFS.0);
/// For `cuFileDriverSetP2PFlags`: DMA buffers shared between drivers.
pub const CU_FILE_P2P_FLAG_DMABUF: CUfileP2PFlags_t = CUfileP2PFlags(1 << CUFILE_DMABUF.0);
/// For `cuFileDriverSetP2PFlags`: the chip-to-chip link of Grace systems.
pub const CU_FILE_P2P_FLAG_C2C: CUfileP2PFlags_t = CUfileP2PFlags(1 << CUFILE_C2C.0);
