//! How calls fail: those that return a `CUfileError_t`, and those that return a count.

use cufile_sys::{CU_FILE_CUDA_DRIVER_ERROR, CUfileError, CUfileOpError};

/// Both halves of a `CUfileError_t` that is no success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub(crate) code: CUfileOpError,
    pub(crate) cuda: u32,
}

/// What the calls that return a `CUfileError_t` return inside.
pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure of the CUDA driver.
    pub(crate) fn cuda(cuda: i32) -> Self {
        Self { code: CU_FILE_CUDA_DRIVER_ERROR, cuda: cuda.cast_unsigned() }
    }
}

impl From<CUfileOpError> for Failure {
    fn from(code: CUfileOpError) -> Self {
        Self { code, cuda: 0 }
    }
}

impl From<Failure> for CUfileError {
    fn from(failure: Failure) -> Self {
        Self { err: failure.code, cu_err: failure.cuda }
    }
}

/// Why a transfer returns -1: what it leaves in `errno`, a number of the operating system or a code of cuFile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    /// What the operating system said last.
    pub(crate) fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// As the batch and stream operations report it, in a count.
    pub(crate) fn as_count(self) -> isize {
        -(self.0 as isize)
    }
}

impl From<CUfileOpError> for Errno {
    fn from(code: CUfileOpError) -> Self {
        Self(code.0.cast_signed())
    }
}

impl From<Failure> for Errno {
    fn from(failure: Failure) -> Self {
        failure.code.into()
    }
}
