//! What is saved: a name, a type, a shape, and bytes that nobody can change meanwhile.
//!
//! The bytes of a tensor are those of its elements in row-major order, without gaps: there is no way to say a stride, so a view
//! of a larger tensor must be packed first, and a length that is not what shape and dtype need is refused.
//!
//! That the bytes hold still is the borrow checker's business. They come as a [`Region`], which is frozen; as a `&[u8]`, which is
//! borrowed for the length of the save; or as a [`RegionMut`], the only access to its bytes, which is moved in and handed back
//! ([`Saving::wait_staged`](super::Saving::wait_staged)).

use std::fmt;

use cuda_staging::{Region, RegionMut};

use super::error::SaveError;
use crate::format::{Brief, Dtype, Shape};
use crate::model::Tensor;

/// A tensor to be saved.
#[derive(Debug)]
pub struct SaveTensor<'a> {
    pub(super) name: Box<str>,
    pub(super) dtype: Dtype,
    pub(super) shape: Shape,
    pub(super) bytes: TensorBytes<'a>,
}

impl<'a> SaveTensor<'a> {
    /// A tensor of this shape whose bytes these are.
    ///
    /// # Errors
    /// [`SaveError::Tensor`] where the bytes are not as many as shape and dtype need.
    pub fn new(
        name: impl Into<Box<str>>,
        dtype: Dtype,
        shape: impl Into<Shape>,
        bytes: impl Into<TensorBytes<'a>>,
    ) -> Result<Self, SaveError> {
        let (name, shape, bytes) = (name.into(), shape.into(), bytes.into());
        let refused = |reason| SaveError::Tensor { name: name.to_string(), reason };
        let expected =
            shape.byte_len(dtype).map_err(|fault| refused(format!("{dtype} {}: {fault}", Brief(&shape))))?;
        let given = bytes.len();
        if given != expected {
            return Err(refused(format!(
                "{dtype} {} has {expected} bytes and {given} were given; pack a view of a larger tensor first",
                Brief(&shape)
            )));
        }
        Ok(Self { name, dtype, shape, bytes })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.bytes.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<&Tensor> for SaveTensor<'_> {
    fn from(tensor: &Tensor) -> Self {
        Self {
            name: tensor.name().into(),
            dtype: tensor.dtype(),
            shape: tensor.shape().into(),
            bytes: tensor.region().clone().into(),
        }
    }
}

impl From<Tensor> for SaveTensor<'_> {
    fn from(tensor: Tensor) -> Self {
        Self::from(&tensor)
    }
}

/// The bytes of a tensor: of a device, or the host's; shared, lent or borrowed.
pub struct TensorBytes<'a>(pub(super) Origin<'a>);

/// Where they are.
pub(super) enum Origin<'a> {
    Shared(Region),
    Lent(RegionMut),
    Borrowed(&'a [u8]),
}

impl TensorBytes<'_> {
    pub(super) fn len(&self) -> u64 {
        match &self.0 {
            Origin::Shared(region) => region.len(),
            Origin::Lent(region) => region.len(),
            Origin::Borrowed(bytes) => bytes.len() as u64,
        }
    }
}

/// Frozen: nobody writes it any more.
impl From<Region> for TensorBytes<'_> {
    fn from(region: Region) -> Self {
        Self(Origin::Shared(region))
    }
}

/// Lent: nobody else can write it, and it is handed back once its bytes are no longer needed.
impl From<RegionMut> for TensorBytes<'_> {
    fn from(region: RegionMut) -> Self {
        Self(Origin::Lent(region))
    }
}

/// Borrowed for the length of the save.
impl<'a> From<&'a [u8]> for TensorBytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Origin::Borrowed(bytes))
    }
}

/// Given away.
impl From<Vec<u8>> for TensorBytes<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        RegionMut::from_vec(bytes).freeze().into()
    }
}

impl fmt::Debug for TensorBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Origin::Shared(region) => region.fmt(f),
            Origin::Lent(region) => region.fmt(f),
            Origin::Borrowed(bytes) => write!(f, "{} bytes of the host", bytes.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_shape_and_dtype_do_not_need_are_refused_either_way() {
        for (given, ok) in [(15, false), (16, true), (17, false), (0, false)] {
            let bytes = vec![0; given];
            let outcome = SaveTensor::new("w", Dtype::F32, [2, 2], bytes.as_slice());
            assert_eq!(outcome.is_ok(), ok, "{given}");
            let outcome = SaveTensor::new("w", Dtype::F32, [2, 2], RegionMut::from_vec(bytes));
            assert_eq!(outcome.is_ok(), ok, "{given}");
        }
        assert!(SaveTensor::new("w", Dtype::F4, [3], vec![0, 0]).is_err());
        assert!(SaveTensor::new("w", Dtype::F32, [u64::MAX, 2], Vec::new()).is_err());
        assert!(SaveTensor::new("w", Dtype::F32, [0, 2], Vec::new()).is_ok());
    }
}
