//! The safetensors format: dtypes, headers, sharded indexes.

pub mod dtype;
pub mod header;
pub mod index;
