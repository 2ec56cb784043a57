//! What can go wrong with cuFile, by what a caller can do about it.
//!
//! cuFile's code, CUDA's and the system's stay three numbers: each has its own accessor, and a code that no table knows
//! is reported as it came. "Not available here" is a variant of its own, so that a fallback matches on type, never on
//! text.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use cufile_sys::{Failure, Kind, Since, Status, TransferError};

use super::driver::Mode;

/// A result of the cuFile module.
pub type CuFileResult<T, E = CuFileError> = std::result::Result<T, E>;

/// Whether bytes go from the file to memory or from memory to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// File to memory.
    Read,
    /// Memory to file.
    Write,
}

impl Direction {
    fn verb(self) -> &'static str {
        match self {
            Self::Read => "reading",
            Self::Write => "writing",
        }
    }
}

/// Why a cuFile operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CuFileError {
    /// cuFile, or the mode asked for, does not exist on this machine.
    #[error("cuFile is not available here: {reason}")]
    Unavailable {
        /// Why, and what to do about it.
        reason: String,
        /// What the library answered, where it came to that.
        failure: Option<Failure>,
    },
    /// The library is too old for this one function; everything else of it can be used.
    #[error("{} has no {function}, which came with {since}; install a newer libcufile", library.display())]
    Missing {
        /// The function.
        function: &'static str,
        /// The release that brought it.
        since: Since,
        /// The library.
        library: PathBuf,
    },
    /// The system had no thread or descriptor to spare. It may have one a moment later.
    #[error("{doing} failed: {source}; raise the limit (ulimit -n, ulimit -u), or try again")]
    Shortage {
        /// What was being done.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
    /// This process was forked from the one that opened cuFile.
    #[error(
        "cuFile was opened before this process was forked and cannot be used in the child; open it after forking"
    )]
    Forked,
    /// cuFile is open in this process, in another mode: it is fixed at the first opening.
    #[error(
        "cuFile is open in this process with {open} and cannot serve {asked} too; use one process for each mode"
    )]
    WrongMode {
        /// The mode it is open in.
        open: Mode,
        /// The mode that was asked for.
        asked: Mode,
    },
    /// cuFile did not answer in time. No second attempt is made in this process.
    #[error("{doing} did not end within {} s; cuFile is not tried again in this process", limit.as_secs_f64())]
    TimedOut {
        /// What was waited for.
        doing: String,
        /// How long.
        limit: Duration,
    },
    /// An operation in flight never ended: its memory and file are kept, and cuFile is not used any more.
    #[error("cuFile is unusable after an earlier failure: {first}; only a new process can use it again")]
    Poisoned {
        /// The first failure.
        first: String,
    },
    /// The driver was closed under our feet: by [`Driver::close`](super::Driver::close), or by another user of cuFile in
    /// this process.
    #[error("{doing}: another user of cuFile in this process closed the driver{}; open it again, and files and buffers with it",
        status.map_or_else(String::new, |status| format!(" ({status})")))]
    Closed {
        /// What was being done.
        doing: String,
        /// What the library answered, where it was asked.
        status: Option<Status>,
    },
    /// A control function was refused.
    #[error("{call} failed while {doing}: {failure}; {}", advice(failure.status))]
    Call {
        /// The function.
        call: &'static str,
        /// What was being done.
        doing: String,
        /// Both halves of the answer.
        failure: Failure,
    },
    /// A read or write failed.
    #[error(
        "{path}: {verb} {expected} bytes at offset {file_offset} by cuFile: {done} done, then: {cause}; {advice}",
        path = path.display(), verb = direction.verb(), advice = transfer_advice(*cause)
    )]
    Transfer {
        /// Which way.
        direction: Direction,
        /// The file.
        path: PathBuf,
        /// Offset in the file of the whole request, in bytes.
        file_offset: u64,
        /// Bytes of the request that were transferred before the failure.
        done: u64,
        /// Bytes of the request.
        expected: u64,
        /// What the library answered: a code of its own, or the system's.
        cause: TransferError,
    },
    /// The file, or the transfer, ended before the last byte asked for.
    #[error(
        "{path}: {verb} {expected} bytes at offset {file_offset} by cuFile ended after {done}; {advice}",
        path = path.display(), verb = direction.verb(), advice = match direction {
            Direction::Read => "the file is shorter than expected, or the transfer was cut short: read the rest",
            Direction::Write => "is the disk full? write the rest",
        }
    )]
    Short {
        /// Which way.
        direction: Direction,
        /// The file.
        path: PathBuf,
        /// Offset in the file of the whole request, in bytes.
        file_offset: u64,
        /// Bytes transferred.
        done: u64,
        /// Bytes of the request.
        expected: u64,
    },
    /// An operation of a batch ended in another state than complete.
    #[error(
        "{path}: {verb} {expected} bytes at offset {file_offset} in a batch ended as {state} with count {count}; \
         do it again by a plain read or write",
        path = path.display(), verb = direction.verb(), state = event_name(*state)
    )]
    BatchEvent {
        /// Which way.
        direction: Direction,
        /// The file.
        path: PathBuf,
        /// Offset in the file, in bytes.
        file_offset: u64,
        /// Bytes of the request.
        expected: u64,
        /// The event's state (`CUfileStatus_t`): 4 invalid, 8 cancelled, 32 timed out, 64 failed.
        state: u32,
        /// The event's count, signed: perhaps a negative code.
        count: isize,
    },
    /// The library reported something that cannot be.
    #[error("{doing}: cuFile reported {what}; this is a fault of the library")]
    Nonsense {
        /// What was being done.
        doing: String,
        /// What it reported.
        what: String,
    },
    /// The setting acts only before the driver is opened, and it is open with another value.
    #[error(
        "{setting} acts only before cuFile is opened: it is {found} and stays so, not {asked}; set it first of all"
    )]
    OnlyBeforeOpen {
        /// The setting.
        setting: String,
        /// The value asked for.
        asked: String,
        /// The value in force.
        found: String,
    },
    /// The library accepted a setting and did not take it.
    #[error("cuFile accepted {asked} for {setting} and has {found}; look at its cufile.json and environment")]
    NotTaken {
        /// The setting.
        setting: String,
        /// The value asked for.
        asked: String,
        /// The value read back.
        found: String,
    },
    /// The registration would exceed its budget.
    #[error(
        "registering {asked} bytes would exceed the budget of {limit}, of which {used} are in use; register less at once"
    )]
    OverBudget {
        /// Bytes asked for.
        asked: u64,
        /// Bytes registered within the budget now.
        used: u64,
        /// The budget, in bytes.
        limit: u64,
    },
    /// The driver cannot be closed while something uses it.
    #[error("cuFile is in use by {users} other handles, files, buffers, batches or streams; drop them first")]
    InUse {
        /// How many.
        users: usize,
    },
    /// The caller asked for something that cannot be.
    #[error("invalid request: {0}")]
    Usage(String),
    /// The operating system refused the file.
    #[error("{path}: {doing}: {source}", path = path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The CUDA device or its driver failed.
    #[error(transparent)]
    Device(#[from] cuda_staging::Error),
}

/// The classes of failure that callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CuFileErrorKind {
    /// cuFile, its mode or one of its functions does not exist here.
    Unavailable,
    /// cuFile cannot serve this file, buffer or request; another way to the same bytes may.
    Environment,
    /// The bytes could not be had: the disk failed, or the file is too short.
    Data,
    /// The request makes no sense, or comes at the wrong time.
    Usage,
    /// CUDA or the GPU failed.
    Device,
    /// cuFile cannot be used in this process any more.
    Broken,
}

impl CuFileError {
    /// Whether this says "not available here": the whole library, a mode, or one function.
    pub fn is_unavailable(&self) -> bool {
        self.kind() == CuFileErrorKind::Unavailable
    }

    /// Whether less memory might be registered where this much was not: mapping and pinning limits (5016, 5036, 5045),
    /// the library out of memory (5043), CUDA out of memory, or our own budget.
    pub fn is_registration_limit(&self) -> bool {
        const OUT_OF_MEMORY: u32 = 2;
        match self {
            Self::OverBudget { .. } => true,
            Self::Device(error) => error.is_out_of_memory(),
            Self::Call { call: "cuFileBufRegister", failure, .. } => {
                matches!(failure.status.code(), 5016 | 5036 | 5043 | 5045)
                    || failure.cuda == Some(OUT_OF_MEMORY)
            }
            _ => false,
        }
    }

    /// cuFile's code, where it gave one.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Unavailable { failure, .. } => failure.map(|failure| failure.status),
            Self::Call { failure, .. } => Some(failure.status),
            Self::Closed { status, .. } => *status,
            Self::Transfer { cause: TransferError::CuFile(status), .. } => Some(*status),
            Self::BatchEvent { count, .. } => match cufile_sys::transferred(*count, 0) {
                Err(TransferError::CuFile(status)) => Some(status),
                _ => None,
            },
            _ => None,
        }
    }

    /// The CUDA driver's code (`CUresult`), where there was one.
    pub fn cuda_code(&self) -> Option<i64> {
        match self {
            Self::Unavailable { failure: Some(failure), .. } | Self::Call { failure, .. } => {
                failure.cuda.map(i64::from)
            }
            Self::Device(cuda_staging::Error::Driver { code, .. }) => Some((*code).into()),
            _ => None,
        }
    }

    /// The operating system's `errno`, where that was the answer.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Transfer { cause: TransferError::Os(errno), .. } => Some(*errno),
            Self::File { source, .. } | Self::Shortage { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Bytes of the request that were transferred before it failed.
    pub fn done(&self) -> u64 {
        match self {
            Self::Transfer { done, .. } | Self::Short { done, .. } => *done,
            _ => 0,
        }
    }

    /// The class of this failure.
    pub fn kind(&self) -> CuFileErrorKind {
        use CuFileErrorKind::*;
        match self {
            Self::Unavailable { .. } | Self::Missing { .. } | Self::WrongMode { .. } => Unavailable,
            Self::Forked | Self::TimedOut { .. } | Self::Poisoned { .. } => Broken,
            Self::Closed { .. } | Self::OverBudget { .. } | Self::Nonsense { .. } => Environment,
            Self::BatchEvent { .. } | Self::Shortage { .. } => Environment,
            Self::Call { failure, .. } => of_status(failure.status),
            Self::Transfer { cause: TransferError::CuFile(status), .. } => of_status(*status),
            Self::Transfer { cause: TransferError::Os(errno), .. } => of_errno(*errno),
            Self::Short { .. } => Data,
            Self::OnlyBeforeOpen { .. } | Self::NotTaken { .. } | Self::InUse { .. } | Self::Usage(_) => {
                Usage
            }
            Self::File { source, .. } => source.raw_os_error().map_or(Data, of_errno),
            Self::Device(error) if error.is_unavailable() => Unavailable,
            Self::Device(_) => Device,
        }
    }

    /// What to do about it, in a few words.
    pub fn action(&self) -> &'static str {
        if let Some(status) = self.status() {
            return advice(status);
        }
        match self.kind() {
            CuFileErrorKind::Unavailable => "load by another path; `gds check` says what is missing",
            CuFileErrorKind::Environment => "use another path for these bytes",
            CuFileErrorKind::Data => "check the file and its disk",
            CuFileErrorKind::Usage => "change the request",
            CuFileErrorKind::Device => "look at nvidia-smi and at the kernel's log",
            CuFileErrorKind::Broken => "start a new process",
        }
    }

    pub(super) fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable { reason: reason.into(), failure: None }
    }

    pub(super) fn usage(what: impl Into<String>) -> Self {
        Self::Usage(what.into())
    }
}

fn of_status(status: Status) -> CuFileErrorKind {
    const IO_ERROR: i32 = 5044;
    match status.kind() {
        Kind::Cuda => CuFileErrorKind::Device,
        Kind::Internal if status.code() == IO_ERROR => CuFileErrorKind::Data,
        _ => CuFileErrorKind::Environment,
    }
}

fn of_errno(errno: i32) -> CuFileErrorKind {
    match errno {
        libc::EIO | libc::ENODATA | libc::EBADMSG | libc::EUCLEAN | libc::ESTALE | libc::ENOENT => {
            CuFileErrorKind::Data
        }
        _ => CuFileErrorKind::Environment,
    }
}

/// What to do about a code of cuFile.
fn advice(status: Status) -> &'static str {
    match (status.code(), status.kind()) {
        (5001, _) => "load nvidia-fs or enable P2PDMA, or allow compatibility mode",
        (5016 | 5036 | 5045, _) => "register less memory at once; `gds check` shows the GPU's BAR1",
        (5027, _) => {
            "check that the file's disk has a udev record and that no other user of cuFile in this process closed \
             the driver, or use another path"
        }
        (5020, _) => "open the file with O_DIRECT",
        (5025, _) => "check the rights on the file and on /dev/nvidia-fs*",
        (5034, _) => "look at the deny list in cufile.json",
        (_, Kind::Driver | Kind::Unsupported) => "`gds check` says what GPUDirect Storage needs here",
        (_, Kind::Cuda) => "look at nvidia-smi and at the kernel's log",
        (_, Kind::Argument) => "check offsets and lengths",
        (_, Kind::Batch) => "use plain reads and writes, or smaller batches",
        _ => "use another path; cuFile's log (CUFILE_LOGFILE_PATH) may say more",
    }
}

fn transfer_advice(cause: TransferError) -> &'static str {
    match cause {
        TransferError::CuFile(status) => advice(status),
        TransferError::Os(errno) if of_errno(errno) == CuFileErrorKind::Data => "check the file and its disk",
        TransferError::Os(_) => "use another path for these bytes",
    }
}

fn event_name(state: u32) -> String {
    let name = match state {
        1 => "waiting",
        2 => "pending",
        4 => "invalid",
        8 => "cancelled",
        16 => "complete",
        32 => "timed out",
        64 => "failed",
        _ => return format!("unknown state {state}"),
    };
    format!("{name} ({state})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(code: i32, cuda: Option<u32>) -> CuFileError {
        let failure = Failure { status: Status(code), cuda };
        CuFileError::Call { call: "cuFileBufRegister", doing: "registering 7 bytes".into(), failure }
    }

    fn transfer(cause: TransferError) -> CuFileError {
        let (path, direction) = (PathBuf::from("/data/x"), Direction::Read);
        CuFileError::Transfer { direction, path, file_offset: 8, done: 3, expected: 9, cause }
    }

    #[test]
    fn the_three_codes_are_kept_apart() {
        let cuda = call(5011, Some(719));
        assert_eq!((cuda.status(), cuda.cuda_code(), cuda.errno()), (Some(Status(5011)), Some(719), None));
        let errno = transfer(TransferError::Os(libc::EIO));
        assert_eq!((errno.status(), errno.cuda_code(), errno.errno()), (None, None, Some(libc::EIO)));
        assert_eq!(errno.done(), 3);
    }

    #[test]
    fn unknown_codes_survive_in_value_and_text() {
        for error in [call(5999, None), transfer(TransferError::CuFile(Status(5999)))] {
            assert_eq!(error.status(), Some(Status(5999)));
            assert_eq!(error.kind(), CuFileErrorKind::Environment);
            assert!(error.to_string().contains("5999"), "{error}");
        }
    }

    #[test]
    fn failures_are_sorted_by_what_to_do() {
        assert_eq!(transfer(TransferError::Os(libc::EIO)).kind(), CuFileErrorKind::Data);
        assert_eq!(transfer(TransferError::CuFile(Status(5044))).kind(), CuFileErrorKind::Data);
        assert_eq!(transfer(TransferError::Os(libc::EINVAL)).kind(), CuFileErrorKind::Environment);
        assert_eq!(transfer(TransferError::CuFile(Status(5027))).kind(), CuFileErrorKind::Environment);
        assert_eq!(call(5011, Some(700)).kind(), CuFileErrorKind::Device);
        assert_eq!(CuFileError::Forked.kind(), CuFileErrorKind::Broken);
    }

    #[test]
    fn registration_limits_are_told_apart() {
        for code in [5016, 5036, 5043, 5045] {
            assert!(call(code, None).is_registration_limit(), "{code}");
        }
        assert!(call(5011, Some(2)).is_registration_limit());
        assert!(CuFileError::OverBudget { asked: 2, used: 1, limit: 2 }.is_registration_limit());
        for other in [call(5008, None), call(5999, None), transfer(TransferError::CuFile(Status(5016)))] {
            assert!(!other.is_registration_limit(), "{other}");
        }
    }
}
