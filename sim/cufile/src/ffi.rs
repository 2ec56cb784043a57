//! Pointers handed in by C programs.
//!
//! The exported functions take these wrappers instead of raw pointers, so that reading and writing the program's memory, and
//! the null checks, are fenced in this module. Beyond null, the caller's promise is that of every C API: a pointer
//! argument is valid for what the function's documentation says it reads or writes, for as long as it says so.

use std::ffi::{CStr, c_char};

use cufile_sys::CU_FILE_INVALID_VALUE;

use crate::error::Result;

/// An address in device or host memory.
pub(crate) type Address = u64;

/// A file, a batch or a stream as the program holds it: a pointer that nobody follows.
pub(crate) type Handle = u64;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("handles and device addresses are 64 bits wide here");

/// Where a result goes.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

// By hand, since a derive would ask the same of T.
impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

// SAFETY: a place of the program's, which it promised to keep for the operation, on whatever thread that runs.
unsafe impl<T: Send> Send for Out<T> {}

impl<T> Out<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Refuses null before the call has any effect.
    pub(crate) fn check(self) -> Result {
        if self.0.is_null() { Err(CU_FILE_INVALID_VALUE.into()) } else { Ok(()) }
    }

    /// Writes the result; null is an invalid value.
    pub(crate) fn set(self, value: T) -> Result {
        self.check()?;
        // SAFETY: not null, and by the C contract valid for writing a T (unaligned is allowed for).
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// The `index`-th place of an array.
    pub(crate) fn at(self, index: usize) -> Self {
        Out(self.0.wrapping_add(index))
    }

    /// The same place, to read what the program left there.
    pub(crate) fn as_in(self) -> In<T> {
        In(self.0)
    }

    /// The same place as one for another type.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl Out<c_char> {
    /// Writes `text` and its terminator, cut to `capacity` bytes.
    pub(crate) fn set_text(self, text: &str, capacity: usize) -> Result {
        for (index, byte) in text.bytes().take(capacity.saturating_sub(1)).chain([0]).enumerate() {
            self.at(index).cast::<u8>().set(byte)?;
        }
        Ok(())
    }
}

/// An argument read through a pointer: one value, or the first of several.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

// By hand, since a derive would ask the same of T.
impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

// SAFETY: as for `Out`.
unsafe impl<T: Send> Send for In<T> {}

impl<T: Copy> In<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn get(self) -> Result<T> {
        if self.0.is_null() {
            return Err(CU_FILE_INVALID_VALUE.into());
        }
        // SAFETY: not null, and by the C contract valid for reading a T (unaligned is allowed for).
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The first `count` values.
    pub(crate) fn list(self, count: usize) -> Result<Vec<T>> {
        (0..count)
            .map(|index| if self.0.is_null() { self.get() } else { In(self.0.wrapping_add(index)).get() })
            .collect()
    }
}

impl In<c_char> {
    /// A C string.
    pub(crate) fn text(self) -> Result<String> {
        if self.0.is_null() {
            return Err(CU_FILE_INVALID_VALUE.into());
        }
        // SAFETY: not null, and by the C contract terminated.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}
