//! Checkpoints made up on the spot: shaped like Llama, filled with words that say where they belong.
//!
//! A benchmark or a test on a real model proves that bytes arrived somewhere. Here every word is a function of seed, tensor name
//! and position ([`payload`]), so a wrong offset, a swapped tensor or a missing piece is seen by anyone who knows the seed, without
//! reading the file a second time.

mod existing;
mod layout;
pub(crate) mod payload;
mod shape;
mod stage;
mod write;

pub(crate) use layout::Layout;
use shape::{Architecture, LARGEST_BYTES, SMALLEST_BYTES};
pub(crate) use write::write;

use gds_loader::format::Dtype;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    /// Tensor bytes wanted, met within two percent.
    pub(crate) bytes: u64,
    /// The type of every tensor.
    pub(crate) dtype: Dtype,
    /// The same seed gives the same bytes, on any machine and in any number of shards.
    pub(crate) seed: u64,
    /// Number of files.
    pub(crate) shards: usize,
}

/// The metadata key by which a synthetic checkpoint is recognised; its value is the version of the payload's rule.
pub(crate) const GENERATOR_KEY: &str = "gds.synth";
/// The metadata key of the seed.
pub(crate) const SEED_KEY: &str = "gds.synth.seed";
/// The version of [`payload`]'s rule. Another rule is another version.
pub(crate) const PAYLOAD_VERSION: &str = "1";
