//! Does the tensor table agree with itself and with the length of the file?
//!
//! Three sources must: shape and dtype, the offsets, and the file. The tensors must cover the data exactly, from its first byte to
//! the file's last, without holes or overlaps, as the reference demands.

use super::fault::HeaderFault;
use super::header::TensorEntry;

/// Bytes of the length field that a file begins with.
pub(super) const LENGTH_FIELD: u64 = 8;

/// Brings `tensors` into the order of their bytes, checks them, and turns their offsets, relative to the data on entry, into
/// offsets in the file. Returns where the data begins.
pub(super) fn settle(
    tensors: &mut [TensorEntry],
    header_len: u64,
    file_len: u64,
) -> Result<u64, HeaderFault> {
    // Stable: empty tensors that share an offset keep the order of the header.
    tensors.sort_by_key(|tensor| (tensor.offset, tensor.len));
    let mut end = 0u64;
    for tensor in tensors.iter() {
        check_place(tensor, end)?;
        check_size(tensor)?;
        // Offset plus length is the end that the file gave, so it cannot overflow.
        end = tensor.offset + tensor.len;
    }
    let overflow = HeaderFault::LengthOverflow { data_len: end };
    let Some(data_offset) = LENGTH_FIELD.checked_add(header_len) else { return Err(overflow) };
    let Some(expected) = data_offset.checked_add(end) else { return Err(overflow) };
    if expected > file_len {
        return Err(HeaderFault::Truncated { expected, found: file_len });
    }
    if expected < file_len {
        return Err(HeaderFault::TrailingBytes { expected, found: file_len });
    }
    for tensor in tensors {
        tensor.offset += data_offset;
    }
    Ok(data_offset)
}

fn check_place(tensor: &TensorEntry, expected: u64) -> Result<(), HeaderFault> {
    let found = tensor.offset;
    let name = || tensor.name.to_string();
    match found.cmp(&expected) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(HeaderFault::Hole { tensor: name(), expected, found }),
        std::cmp::Ordering::Less => Err(HeaderFault::Overlap { tensor: name(), expected, found }),
    }
}

fn check_size(tensor: &TensorEntry) -> Result<(), HeaderFault> {
    let TensorEntry { dtype, ref shape, len, .. } = *tensor;
    match shape.byte_len(dtype) {
        Ok(expected) if expected == len => Ok(()),
        Ok(expected) => Err(HeaderFault::SizeMismatch {
            tensor: tensor.name.to_string(),
            dtype,
            shape: shape.clone(),
            expected,
            found: len,
        }),
        Err(fault) => {
            Err(HeaderFault::Size { tensor: tensor.name.to_string(), dtype, shape: shape.clone(), fault })
        }
    }
}
