//! The pipeline reversed: from memory through slots to files.

mod extent;
