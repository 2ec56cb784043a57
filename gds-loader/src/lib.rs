//! Safetensors into device memory. Under construction.
#![warn(missing_docs)]

pub mod format;
pub mod plan;
pub mod source;
