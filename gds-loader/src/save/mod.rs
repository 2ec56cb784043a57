//! The way back: tensors from memory to files.

mod durable;
mod error;
mod layout;
mod tensors;
mod write;

pub use error::SaveError;
pub use tensors::{SaveTensor, TensorBytes};
