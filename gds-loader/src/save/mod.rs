//! The way back: tensors from memory to files.

mod layout;
