//! Does a source hold what a model needs? Asked before any byte of data moves.

use std::collections::HashSet;

use super::error::{Mismatch, SourceError};
use super::{Source, TensorRef};
use crate::format::{Dtype, Shape};

/// A tensor that a caller needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Its name.
    pub name: String,
    /// Its dtype, where that matters.
    pub dtype: Option<Dtype>,
    /// Its shape, where that matters.
    pub shape: Option<Shape>,
}

impl Source {
    /// Checks that every expected tensor is there, with the dtype and shape expected; returns the tensors nobody expected.
    ///
    /// # Errors
    /// [`SourceError::Unexpected`], which lists every missing and every mismatched tensor.
    pub fn check_expected(&self, expected: &[Expected]) -> Result<Vec<TensorRef>, SourceError> {
        let (mut missing, mut mismatched) = (Vec::new(), Vec::new());
        for wanted in expected {
            let Some((_, entry)) = self.get(&wanted.name) else {
                missing.push(wanted.name.clone());
                continue;
            };
            let same_dtype = wanted.dtype.is_none_or(|dtype| dtype == entry.dtype);
            let same_shape = wanted.shape.as_ref().is_none_or(|shape| *shape == entry.shape);
            if !(same_dtype && same_shape) {
                mismatched.push(Mismatch {
                    tensor: wanted.name.clone(),
                    expected_dtype: wanted.dtype,
                    expected_shape: wanted.shape.clone(),
                    dtype: entry.dtype,
                    shape: entry.shape.clone(),
                });
            }
        }
        if !(missing.is_empty() && mismatched.is_empty()) {
            return Err(SourceError::Unexpected { path: self.path.clone(), missing, mismatched });
        }
        let names = expected.iter().map(|wanted| wanted.name.as_str()).collect::<HashSet<_>>();
        let nobodys = |tensor: &TensorRef| !names.contains(&*self.entry(*tensor).name);
        Ok(self.tensors.iter().copied().filter(nobodys).collect())
    }
}
