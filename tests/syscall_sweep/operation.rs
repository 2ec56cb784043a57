//! What is swept: something to do, and what must hold afterwards.

use std::path::PathBuf;

use gds_loader::{Error, ErrorKind, SaveError};
use test_support::fixture::Tensor;

/// How one run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With the right bytes, which it has checked; by which paths and engine, so that a later run can be held against an earlier one.
    Right(String),
    /// With an error.
    Failed(ErrorKind, String),
}

impl Ended {
    /// How a load or a verification ended.
    pub(crate) fn of(load: impl FnOnce() -> Result<String, Error>) -> Self {
        load().map_or_else(|error| Self::Failed(error.kind(), error.to_string()), Self::Right)
    }

    /// How a save ended.
    pub(crate) fn of_save(save: impl FnOnce() -> Result<String, SaveError>) -> Self {
        save().map_or_else(|error| Self::Failed(error.kind(), error.to_string()), Self::Right)
    }
}

/// Judges what a run left.
type Judge = dyn Fn(&Ended) -> Result<(), String>;

/// Something to do with a checkpoint, again and again.
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    /// Only calls about files below this folder are counted, where there is one.
    pub(crate) within: Option<PathBuf>,
    /// Puts everything back to where it was before a run.
    pub(crate) reset: Box<dyn Fn()>,
    /// Does it. What it returns holds nothing of it any more.
    pub(crate) run: Box<dyn Fn() -> Ended>,
    /// Says what is wrong with what a run left, given how it ended.
    pub(crate) left: Box<Judge>,
}

impl Operation {
    /// One that changes nothing.
    pub(crate) fn reading(name: &'static str, run: impl Fn() -> Ended + 'static) -> Self {
        Self { name, within: None, reset: Box::new(|| ()), run: Box::new(run), left: Box::new(|_| Ok(())) }
    }
}

/// Passes where the tensors of a model are exactly these.
#[track_caller]
pub(crate) fn assert_holds(
    model: &gds_loader::Model,
    expected: &[Tensor],
    bytes: impl Fn(&gds_loader::Tensor) -> Vec<u8>,
) {
    assert_eq!(model.tensors().count(), expected.len());
    for tensor in expected {
        let found = model.get(&tensor.name).unwrap_or_else(|| panic!("{} is missing", tensor.name));
        assert!(bytes(&found) == tensor.bytes(), "wrong bytes in {}", tensor.name);
    }
}
