//! cuFile's codes: their names, what they mean in our words, and where they hide in results.
//!
//! A code is an integer that keeps its value whether it is known here or not: nearly every release has brought new ones.

use std::fmt;

use crate::bindings::*;

/// A code of cuFile: 0 for success, else above 5000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
#[must_use]
pub struct Status(pub i32);

/// What a code is about, for callers that decide by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// No failure.
    Success,
    /// What was asked for is so already: driver open, buffer or file registered.
    Already,
    /// The library's driver part: not open, closing, wrong version, broken set-up of nvidia-fs.
    Driver,
    /// GPUDirect Storage does not work on this platform, GPU or file, or its settings forbid it.
    Unsupported,
    /// A CUDA call, context or device pointer.
    Cuda,
    /// GPU memory cannot be mapped or pinned: size limits, BAR space.
    Mapping,
    /// The file or its descriptor: type, flags, permission, not registered.
    File,
    /// An argument is wrong.
    Argument,
    /// A batch of requests.
    Batch,
    /// The library ran out of something or failed inside; the same request may succeed by another way.
    Internal,
    /// Not known to these bindings.
    Unknown,
}

struct Entry {
    code: i32,
    name: &'static str,
    kind: Kind,
    description: &'static str,
}

macro_rules! entries {
    ($($kind:ident $name:ident $description:literal)*) => {
        /// In the order of the codes.
        const ENTRIES: &[Entry] = &[$(Entry {
            code: $name.0.cast_signed(),
            name: stringify!($name),
            kind: Kind::$kind,
            description: $description,
        }),*];
    };
}

entries! {
    Success CU_FILE_SUCCESS "done"
    Driver CU_FILE_DRIVER_NOT_INITIALIZED "no nvidia-fs driver to open, and compatibility mode is not allowed"
    Driver CU_FILE_DRIVER_INVALID_PROPS "a driver property is invalid"
    Driver CU_FILE_DRIVER_UNSUPPORTED_LIMIT "a driver property is outside of its limits"
    Driver CU_FILE_DRIVER_VERSION_MISMATCH "library and nvidia-fs driver do not fit each other"
    Driver CU_FILE_DRIVER_VERSION_READ_ERROR "the version of the nvidia-fs driver cannot be read"
    Driver CU_FILE_DRIVER_CLOSING "the driver is being closed"
    Unsupported CU_FILE_PLATFORM_NOT_SUPPORTED "no GPUDirect Storage on this platform"
    Unsupported CU_FILE_IO_NOT_SUPPORTED "no GPUDirect Storage for this file"
    Unsupported CU_FILE_DEVICE_NOT_SUPPORTED "no GPUDirect Storage on this GPU"
    Driver CU_FILE_NVFS_DRIVER_ERROR "a request to the nvidia-fs driver failed"
    Cuda CU_FILE_CUDA_DRIVER_ERROR "a call of the CUDA driver failed"
    Cuda CU_FILE_CUDA_POINTER_INVALID "not a device pointer"
    Cuda CU_FILE_CUDA_MEMORY_TYPE_INVALID "the pointer is to a kind of memory that does not serve here"
    Cuda CU_FILE_CUDA_POINTER_RANGE_ERROR "the range reaches beyond its device allocation"
    Cuda CU_FILE_CUDA_CONTEXT_MISMATCH "the memory belongs to another CUDA context"
    Mapping CU_FILE_INVALID_MAPPING_SIZE "more memory than may be pinned at once"
    Mapping CU_FILE_INVALID_MAPPING_RANGE "the range reaches beyond the registered buffer"
    File CU_FILE_INVALID_FILE_TYPE "not a kind of file that serves here"
    File CU_FILE_INVALID_FILE_OPEN_FLAG "the file is open with flags that do not serve here"
    File CU_FILE_DIO_NOT_SET "the file is not open for direct I/O (O_DIRECT)"
    Argument CU_FILE_INVALID_VALUE "an argument is invalid"
    Already CU_FILE_MEMORY_ALREADY_REGISTERED "the memory is registered already"
    Mapping CU_FILE_MEMORY_NOT_REGISTERED "the memory is not registered"
    File CU_FILE_PERMISSION_DENIED "access to the driver or the file is denied"
    Already CU_FILE_DRIVER_ALREADY_OPEN "the driver is open already"
    File CU_FILE_HANDLE_NOT_REGISTERED "the file is not registered, or cannot be"
    Already CU_FILE_HANDLE_ALREADY_REGISTERED "the file is registered already"
    Cuda CU_FILE_DEVICE_NOT_FOUND "no such GPU"
    Internal CU_FILE_INTERNAL_ERROR "failure inside of the library"
    File CU_FILE_GETNEWFD_FAILED "no new file descriptor to be had"
    Driver CU_FILE_NVFS_SETUP_ERROR "the nvidia-fs driver could not be set up"
    Unsupported CU_FILE_IO_DISABLED "GPUDirect Storage is switched off for this file by configuration"
    Batch CU_FILE_BATCH_SUBMIT_FAILED "the batch could not be submitted"
    Mapping CU_FILE_GPU_MEMORY_PINNING_FAILED "GPU memory could not be pinned"
    Batch CU_FILE_BATCH_FULL "the batch queue is full"
    Unsupported CU_FILE_ASYNC_NOT_SUPPORTED "no operations on streams here"
    Batch CU_FILE_INTERNAL_BATCH_SETUP_ERROR "setting up a batch failed inside of the library"
    Batch CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR "submitting a batch failed inside of the library"
    Batch CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR "asking for a batch's status failed inside of the library"
    Batch CU_FILE_INTERNAL_BATCH_CANCEL_ERROR "cancelling a batch failed inside of the library"
    Internal CU_FILE_NOMEM_ERROR "the library is out of memory"
    Internal CU_FILE_IO_ERROR "the library reports a failed read or write"
    Mapping CU_FILE_INTERNAL_BUF_REGISTER_ERROR "registering the buffer failed inside of the library"
    Internal CU_FILE_HASH_OPR_ERROR "the library's own tables failed"
    Cuda CU_FILE_INVALID_CONTEXT_ERROR "the CUDA context is invalid"
    Driver CU_FILE_NVFS_INTERNAL_DRIVER_ERROR "failure inside of the nvidia-fs driver"
    Batch CU_FILE_BATCH_NOCOMPAT_ERROR "this batch needs compatibility mode, which is off"
}

impl Status {
    /// The number itself.
    pub fn code(self) -> i32 {
        self.0
    }

    /// Whether this is `CU_FILE_SUCCESS`.
    pub fn is_success(self) -> bool {
        self.0 == 0
    }

    /// The constant's name in `cufile.h`; `None` for a code these bindings do not know.
    pub fn name(self) -> Option<&'static str> {
        self.entry().map(|entry| entry.name)
    }

    /// What it means, in a few words.
    pub fn description(self) -> &'static str {
        self.entry().map_or("not known to these bindings", |entry| entry.description)
    }

    /// What it is about.
    pub fn kind(self) -> Kind {
        self.entry().map_or(Kind::Unknown, |entry| entry.kind)
    }

    fn entry(self) -> Option<&'static Entry> {
        let place = ENTRIES.binary_search_by_key(&self.0, |entry| entry.code).ok()?;
        ENTRIES.get(place)
    }
}

impl From<CUfileOpError> for Status {
    fn from(error: CUfileOpError) -> Status {
        Status(error.0.cast_signed())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            Some(entry) => write!(f, "{} ({}): {}", entry.name, entry.code, entry.description),
            None => write!(f, "cuFile code {}, which these bindings do not know", self.0),
        }
    }
}

/// Both halves of a `CUfileError_t` that is not a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// cuFile's code.
    pub status: Status,
    /// The CUDA driver's code (`CUresult`), which only means something beside `CU_FILE_CUDA_DRIVER_ERROR`.
    pub cuda: Option<CUresult>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status.fmt(f)?;
        self.cuda.map_or(Ok(()), |code| write!(f, " with CUDA error {code}"))
    }
}

impl std::error::Error for Failure {}

impl CUfileError {
    /// cuFile's half.
    pub fn status(self) -> Status {
        self.err.into()
    }

    /// `Ok` for success, else both halves.
    ///
    /// # Errors
    /// Every status but `CU_FILE_SUCCESS`.
    pub fn result(self) -> Result<(), Failure> {
        if self.status().is_success() {
            return Ok(());
        }
        let cuda = (self.err == CU_FILE_CUDA_DRIVER_ERROR).then_some(self.cu_err);
        Err(Failure { status: self.status(), cuda })
    }
}

/// Why a data call transferred nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferError {
    /// An `errno` of the operating system; 0 where the library left none.
    Os(i32),
    /// A code of cuFile.
    CuFile(Status),
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransferError::Os(0) => f.write_str("failed without an error number"),
            TransferError::Os(errno) => std::io::Error::from_raw_os_error(*errno).fmt(f),
            TransferError::CuFile(status) => status.fmt(f),
        }
    }
}

impl std::error::Error for TransferError {}

/// Reads the count of a data call: bytes, or one of three kinds of failure.
///
/// - -1 means `errno`, which holds either the system's number or one of cuFile's codes;
/// - any other negative number is a code with its sign changed: cuFile's above 5000, the system's below.
///
/// `errno` is the calling thread's, read before anything else may set it; after a success it is stale. Counts that
/// were stored by another thread (stream and batch operations) have none: pass 0.
///
/// # Errors
/// Every negative count.
pub fn transferred(count: isize, errno: i32) -> Result<usize, TransferError> {
    if let Ok(bytes) = usize::try_from(count) {
        return Ok(bytes);
    }
    let code = if count == -1 { errno } else { i32::try_from(count.unsigned_abs()).unwrap_or(i32::MAX) };
    if code > CUFILEOP_BASE_ERR {
        return Err(TransferError::CuFile(Status(code)));
    }
    Err(TransferError::Os(code))
}

impl CUfileIOEvents {
    /// The event's count with its sign, to be given to [`transferred`] once `status` is `CUFILE_COMPLETE`: the header
    /// declares it unsigned though it may be a negative code.
    pub fn count(&self) -> isize {
        self.ret.cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_in_order_and_complete() {
        assert!(ENTRIES.is_sorted_by(|a, b| a.code < b.code), "binary search needs order");
        let bindings = include_str!("bindings.rs");
        let declared: Vec<&str> = bindings
            .lines()
            .filter_map(|line| line.strip_prefix("pub const ")?.split_once(": CUfileOpError ="))
            .map(|(name, _)| name)
            .filter(|name| *name != "CU_FILE_IO_MAX_ERROR")
            .collect();
        let named: Vec<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
        assert_eq!(named, declared);
        assert_eq!(named.len(), 48);
    }

    #[test]
    fn known_codes_have_names_and_meanings() {
        let status = Status(5027);
        assert_eq!(status.name(), Some("CU_FILE_HANDLE_NOT_REGISTERED"));
        assert_eq!(status.kind(), Kind::File);
        assert!(status.to_string().contains("5027"), "{status}");
        assert_eq!(Status(5026).kind(), Kind::Already);
        assert_eq!(Status(0).kind(), Kind::Success);
        for entry in ENTRIES {
            assert!(!entry.description.is_empty());
            assert_eq!(Status(entry.code).name(), Some(entry.name));
        }
    }

    #[test]
    fn holes_and_unknown_codes_survive_as_numbers() {
        for code in [5000, 5021, 5032, 5050, 5999, 1, -1, i32::MIN, i32::MAX] {
            let status = Status(code);
            assert_eq!((status.code(), status.name(), status.kind()), (code, None, Kind::Unknown));
            assert!(status.to_string().contains(&code.to_string()), "{status}");
        }
        let error = CUfileError { err: CUfileOpError(u32::MAX), cu_err: 0 };
        assert_eq!(error.result(), Err(Failure { status: Status(-1), cuda: None }));
    }

    #[test]
    fn an_error_has_two_halves() {
        assert_eq!(CUfileError { err: CU_FILE_SUCCESS, cu_err: 999 }.result(), Ok(()));
        let cuda = CUfileError { err: CU_FILE_CUDA_DRIVER_ERROR, cu_err: 719 }.result().unwrap_err();
        assert_eq!((cuda.status.code(), cuda.cuda), (5011, Some(719)));
        assert!(cuda.to_string().contains("719"), "{cuda}");
        let file = CUfileError { err: CU_FILE_DIO_NOT_SET, cu_err: 719 }.result().unwrap_err();
        assert_eq!((file.status.code(), file.cuda), (5020, None));
    }

    #[test]
    fn counts_are_bytes_or_failures() {
        assert_eq!(transferred(0, 5), Ok(0), "errno is stale after success");
        assert_eq!(transferred(isize::MAX, 0), Ok(isize::MAX.cast_unsigned()));
        assert_eq!(transferred(-1, 5), Err(TransferError::Os(5)));
        assert_eq!(transferred(-1, 5017), Err(TransferError::CuFile(Status(5017))));
        assert_eq!(transferred(-1, 0), Err(TransferError::Os(0)));
        assert_eq!(transferred(-5, 0), Err(TransferError::Os(5)));
        assert_eq!(transferred(-5027, 2), Err(TransferError::CuFile(Status(5027))));
        assert_eq!(transferred(isize::MIN, 0), Err(TransferError::CuFile(Status(i32::MAX))));
        let event = CUfileIOEvents { ret: 5022_usize.wrapping_neg(), ..Default::default() };
        assert_eq!(transferred(event.count(), 0), Err(TransferError::CuFile(Status(5022))));
    }
}
