//! Safetensors into device memory. Under construction.
#![warn(missing_docs)]

pub mod facts;
pub mod format;
pub mod plan;
pub mod source;
mod transport;
