//! Pointers handed in by C programs.
//!
//! The exported functions take these wrappers instead of raw pointers, so that reading and writing the program's memory,
//! and the null checks, are fenced in this module. Beyond null, the caller's promise is that of every C API: a
//! pointer argument is valid for what the function's documentation says it reads or writes.

use std::ffi::{CStr, c_char, c_void};

use crate::code::{INVALID_VALUE, Result};

/// An address in device memory (or any other, under unified addressing).
pub(crate) type Address = u64;

/// A context, stream, event or pool, as the program holds it: a pointer that nobody follows.
pub(crate) type Handle = u64;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the driver's handles and device addresses are 64 bits wide here");

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

impl<T> Out<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Refuses null before the call has any effect.
    pub(crate) fn check(self) -> Result {
        if self.0.is_null() { Err(INVALID_VALUE) } else { Ok(()) }
    }

    /// Writes the result; null is an invalid value.
    pub(crate) fn set(self, value: T) -> Result {
        self.check()?;
        // SAFETY: not null, and by the C contract valid for writing a T (unaligned is allowed for).
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the result where the program wants it (the argument may be null).
    pub(crate) fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            let _ = self.set(value);
        }
    }

    /// The same place as a place for another type, for the functions whose attribute decides the type.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// The `index`-th place of an array.
    pub(crate) fn at(self, index: usize) -> Self {
        Out(self.0.wrapping_add(index))
    }
}

impl<T: Copy> Out<T> {
    /// What is there already, of an argument that goes both ways.
    pub(crate) fn get(self) -> Result<T> {
        In(self.0.cast_const()).get()
    }
}

impl Out<c_char> {
    /// Writes `text` and its terminator into a buffer of `capacity` bytes, cut where it is too short.
    pub(crate) fn set_text(self, text: &str, capacity: i32) -> Result {
        self.check()?;
        let capacity = usize::try_from(capacity).ok().filter(|&c| c > 0).ok_or(INVALID_VALUE)?;
        let length = text.len().min(capacity - 1);
        for (index, byte) in text.bytes().take(length).chain([0]).enumerate() {
            self.at(index).cast::<u8>().set(byte)?;
        }
        Ok(())
    }
}

/// An argument read through a pointer: one value, or the first of several.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> In<T> {
    /// The same place as a place of another type, for the functions whose attribute decides the type.
    pub(crate) fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }
}

impl<T: Copy> In<T> {
    pub(crate) fn get(self) -> Result<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and by the C contract valid for reading a T (unaligned is allowed for).
        Ok(unsafe { self.0.read_unaligned() })
    }

    pub(crate) fn at(self, index: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        In(self.0.wrapping_add(index)).get()
    }
}

impl In<c_char> {
    /// A C string.
    pub(crate) fn text(self) -> Result<String> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and by the C contract terminated.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// A function of the program with its argument, to be called later on a stream's thread.
pub(crate) struct HostFunction {
    function: extern "C" fn(*mut c_void),
    argument: *mut c_void,
}

// SAFETY: calling it from a driver thread is what the program asked for; the simulator itself never follows `argument`.
unsafe impl Send for HostFunction {}

impl HostFunction {
    pub(crate) fn new(function: Option<extern "C" fn(*mut c_void)>, argument: *mut c_void) -> Result<Self> {
        function.map(|function| Self { function, argument }).ok_or(INVALID_VALUE)
    }

    pub(crate) fn call(self) {
        (self.function)(self.argument);
    }
}
