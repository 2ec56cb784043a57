//! A tensor's dimensions and the checked arithmetic on them.
//!
//! Nearly every weight has one or two dimensions, so two are kept inline: a table of 100,000 tensors then costs one
//! allocation a tensor (its name) instead of two.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::dtype::Dtype;

/// The dimensions of a tensor, outermost first, counted in elements (also where elements are smaller than a byte).
///
/// Reads as a slice: `shape.len()` is the rank. No dimensions is a scalar, which holds one element.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(SmallVec<[u64; 2]>);

/// Why a shape and a dtype have no size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizeFault {
    /// The count of elements, or of their bits, does not fit 64 bits.
    #[error("its size overflows 64 bits")]
    Overflow,
    /// Elements smaller than a byte end inside a byte.
    #[error("its {bits} bits are no whole number of bytes")]
    PartialByte {
        /// Bits of the whole tensor.
        bits: u64,
    },
}

impl Shape {
    /// The product of the dimensions; 1 for a scalar, 0 where a dimension is 0.
    ///
    /// `None` where the product of the dimensions *other than 0* does not fit 64 bits, so that the verdict does not depend on
    /// their order: `[0, 2^63, 2^63]` is refused as `[2^63, 2^63, 0]` is. (The reference accepts the first of the two.) Strides
    /// computed from an accepted shape never overflow either.
    pub fn elements(&self) -> Option<u64> {
        let product = self
            .iter()
            .filter(|&&dimension| dimension != 0)
            .try_fold(1u64, |product, &d| product.checked_mul(d))?;
        Some(if self.contains(&0) { 0 } else { product })
    }

    /// Bytes of a tensor of this shape and `dtype`.
    ///
    /// # Errors
    /// [`SizeFault::Overflow`] and [`SizeFault::PartialByte`], as the reference's checks of the same names.
    pub fn byte_len(&self, dtype: Dtype) -> Result<u64, SizeFault> {
        let elements = self.elements().ok_or(SizeFault::Overflow)?;
        let bits = elements.checked_mul(dtype.bits()).ok_or(SizeFault::Overflow)?;
        if bits % 8 == 0 { Ok(bits / 8) } else { Err(SizeFault::PartialByte { bits }) }
    }
}

impl Deref for Shape {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.0
    }
}

impl From<&[u64]> for Shape {
    fn from(dimensions: &[u64]) -> Self {
        Shape(SmallVec::from_slice(dimensions))
    }
}

impl<const N: usize> From<[u64; N]> for Shape {
    fn from(dimensions: [u64; N]) -> Self {
        Shape::from(dimensions.as_slice())
    }
}

impl From<Vec<u64>> for Shape {
    fn from(dimensions: Vec<u64>) -> Self {
        Shape::from(dimensions.as_slice())
    }
}

impl FromIterator<u64> for Shape {
    fn from_iter<I: IntoIterator<Item = u64>>(dimensions: I) -> Self {
        Shape(dimensions.into_iter().collect())
    }
}

/// As in JSON: `[4096, 128]`, `[]` for a scalar.
impl fmt::Display for Shape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

/// Shows a shape in a message, or its first dimensions: whoever wrote a file may have given a tensor millions.
pub(crate) struct Brief<'a>(pub(crate) &'a Shape);

impl fmt::Display for Brief<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 32;
        match self.0.split_at_checked(MOST) {
            Some((first, rest)) if !rest.is_empty() => {
                formatter.write_str("[")?;
                first.iter().try_for_each(|dimension| write!(formatter, "{dimension}, "))?;
                write!(formatter, "and {} more]", rest.len())
            }
            _ => self.0.fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_hold_one_element_and_empty_tensors_none() {
        let bytes = |shape: Shape| shape.byte_len(Dtype::F32).unwrap();
        assert_eq!(bytes([].into()), 4);
        assert_eq!(bytes([0].into()), 0);
        assert_eq!(bytes([1].into()), 4);
        assert_eq!(bytes([1, 1].into()), 4);
        assert_eq!(bytes([2, 0].into()), 0);
    }

    #[test]
    fn sub_byte_elements_fill_whole_bytes() {
        let bytes = |shape: Shape, dtype| shape.byte_len(dtype);
        assert_eq!(bytes([2, 8].into(), Dtype::F4), Ok(8));
        assert_eq!(bytes([1, 1, 2].into(), Dtype::F4), Ok(1));
        assert_eq!(bytes([0].into(), Dtype::F4), Ok(0));
        assert_eq!(bytes([4].into(), Dtype::F6_E2M3), Ok(3));
        assert_eq!(bytes([3].into(), Dtype::F4), Err(SizeFault::PartialByte { bits: 12 }));
        assert_eq!(bytes([1].into(), Dtype::F6_E2M3), Err(SizeFault::PartialByte { bits: 6 }));
    }

    #[test]
    fn overflow_is_found_whatever_the_order_of_the_dimensions() {
        const HUGE: u64 = 1 << 63;
        for shape in [[0, HUGE, HUGE], [HUGE, 0, HUGE], [HUGE, HUGE, 0], [HUGE, HUGE, 1]] {
            assert_eq!(Shape::from(shape).byte_len(Dtype::U8), Err(SizeFault::Overflow), "{shape:?}");
        }
        assert_eq!(Shape::from([HUGE + 2, 2]).byte_len(Dtype::F32), Err(SizeFault::Overflow));
        assert_eq!(Shape::from([1 << 62]).byte_len(Dtype::F32), Err(SizeFault::Overflow));
        assert_eq!(Shape::from([1 << 62, 0]).byte_len(Dtype::F32), Ok(0));
    }

    #[test]
    fn shown_as_json() {
        assert_eq!(Shape::from([4096, 128]).to_string(), "[4096, 128]");
        assert_eq!(Shape::default().to_string(), "[]");
        assert_eq!(serde_json::to_string(&Shape::from([1, 2, 3])).unwrap(), "[1,2,3]");
    }

    #[test]
    fn of_a_long_one_the_first_dimensions_are_shown() {
        assert_eq!(Brief(&[4096, 128].into()).to_string(), "[4096, 128]");
        let most: Shape = vec![1; 32].into();
        assert_eq!(Brief(&most).to_string(), most.to_string());
        let shown = Brief(&vec![7; 10_000_000].into()).to_string();
        assert!(shown.starts_with("[7, 7, ") && shown.ends_with(" 7, and 9999968 more]"), "{shown}");
    }
}
