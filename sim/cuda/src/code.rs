//! `CUresult` as an integer newtype: a number CUDA does not know stays a number.

/// A driver API status other than success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Code(pub(crate) i32);

/// What the inner functions return; `Ok` becomes `CUDA_SUCCESS` at the C boundary.
pub(crate) type Result<T = (), E = Code> = std::result::Result<T, E>;

pub(crate) const INVALID_VALUE: Code = Code(1);
pub(crate) const OUT_OF_MEMORY: Code = Code(2);
pub(crate) const NOT_INITIALIZED: Code = Code(3);
pub(crate) const DEINITIALIZED: Code = Code(4);
pub(crate) const NO_DEVICE: Code = Code(100);
pub(crate) const INVALID_DEVICE: Code = Code(101);
pub(crate) const INVALID_CONTEXT: Code = Code(201);
pub(crate) const UNSUPPORTED_LIMIT: Code = Code(215);
pub(crate) const PEER_ACCESS_UNSUPPORTED: Code = Code(217);
pub(crate) const OPERATING_SYSTEM: Code = Code(304);
pub(crate) const INVALID_HANDLE: Code = Code(400);
pub(crate) const ILLEGAL_STATE: Code = Code(401);
pub(crate) const NOT_FOUND: Code = Code(500);
pub(crate) const NOT_READY: Code = Code(600);
pub(crate) const ILLEGAL_ADDRESS: Code = Code(700);
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Code = Code(704);
pub(crate) const PEER_ACCESS_NOT_ENABLED: Code = Code(705);
pub(crate) const CONTEXT_IS_DESTROYED: Code = Code(709);
pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: Code = Code(712);
pub(crate) const HOST_MEMORY_NOT_REGISTERED: Code = Code(713);
pub(crate) const NOT_PERMITTED: Code = Code(800);
pub(crate) const NOT_SUPPORTED: Code = Code(801);
pub(crate) const STREAM_CAPTURE_UNSUPPORTED: Code = Code(900);
pub(crate) const STREAM_CAPTURE_INVALIDATED: Code = Code(901);
pub(crate) const STREAM_CAPTURE_UNMATCHED: Code = Code(903);
pub(crate) const STREAM_CAPTURE_ISOLATION: Code = Code(905);
pub(crate) const STREAM_CAPTURE_IMPLICIT: Code = Code(906);
pub(crate) const CAPTURED_EVENT: Code = Code(907);
pub(crate) const UNKNOWN: Code = Code(999);

impl Code {
    /// Whether the real driver's context is unusable for good after this code.
    pub(crate) fn is_sticky(self) -> bool {
        matches!(self.0, 214 | 220 | 700 | 702 | 710 | 714..=719 | 721 | 999)
    }
}
