//! The table of driver functions, looked up in the driver's library.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUstream, CUuuid};
use libloading::Library;

/// A code other than 0 that a driver function returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    pub(crate) code: i32,
}

/// The codes this crate acts on. Any other is carried as a number.
pub(crate) mod code {
    pub(crate) const INVALID_VALUE: i32 = 1;
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    pub(crate) const STUB_LIBRARY: i32 = 34;
    pub(crate) const NO_DEVICE: i32 = 100;
    pub(crate) const INVALID_DEVICE: i32 = 101;
    pub(crate) const INVALID_HANDLE: i32 = 400;
    pub(crate) const NOT_FOUND: i32 = 500;
    pub(crate) const NOT_READY: i32 = 600;
    pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: i32 = 712;
    pub(crate) const HOST_MEMORY_NOT_REGISTERED: i32 = 713;
    pub(crate) const NOT_PERMITTED: i32 = 800;
    pub(crate) const NOT_SUPPORTED: i32 = 801;
    pub(crate) const SYSTEM_DRIVER_MISMATCH: i32 = 803;
    pub(crate) const STREAM_CAPTURE_UNSUPPORTED: i32 = 900;
    pub(crate) const STREAM_CAPTURE_IMPLICIT: i32 = 906;
    pub(crate) const STREAM_CAPTURE_WRONG_THREAD: i32 = 908;
}

impl Failure {
    /// Whether the call was refused and the context is as good as before. Anything else, unknown codes included, may
    /// be the late report of a fault that broke the context for good (700, 719, 999 and their like).
    pub(crate) fn leaves_the_context_sound(self) -> bool {
        matches!(
            self.code,
            code::INVALID_VALUE
                | code::OUT_OF_MEMORY
                | code::NO_DEVICE
                | code::INVALID_DEVICE
                | code::INVALID_HANDLE
                | code::NOT_FOUND
                | code::HOST_MEMORY_ALREADY_REGISTERED
                | code::HOST_MEMORY_NOT_REGISTERED
                | code::NOT_PERMITTED
                | code::NOT_SUPPORTED
                // All of the codes that a capture of a graph gives.
                | code::STREAM_CAPTURE_UNSUPPORTED..=code::STREAM_CAPTURE_WRONG_THREAD
        )
    }
}

pub(crate) fn outcome(call: &'static str, code: i32) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure { call, code }) }
}

/// `call!(api, cuInit(0))`: calls a function of the table; its name is in the failure. Needs an `unsafe` block.
macro_rules! call {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $crate::cuda::api::outcome(stringify!($function), ($api.$function)($($argument),*))
    };
}
pub(crate) use call;

macro_rules! functions {
    ($($name:ident($($argument:ty),*);)+) => {
        /// The driver's functions by their exported names. A `CUresult` comes back as the integer it is in C.
        #[allow(non_snake_case, reason = "the driver's own names, so that they can be searched for")]
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> c_int,)+
        }

        impl Api {
            /// Looks every function up; the name of the first that is missing is the error.
            pub(super) fn look_up(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is the function's documented C signature, `CUresult` being a C int.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> c_int>(stringify!($name))
                        };
                        // The copied pointer outlives the symbol because the library is never closed.
                        *symbol.map_err(|_| stringify!($name))?
                    },)+
                })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuGetErrorName(c_int, *mut *const c_char);

    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuCtxSetCurrent(CUcontext);
    cuThreadExchangeStreamCaptureMode(*mut c_int);

    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    cuPointerGetAttribute(*mut c_void, c_uint, CUdeviceptr);
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);

    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuMemcpyDtoH_v2(*mut c_void, CUdeviceptr, usize);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);

    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamIsCapturing(CUstream, *mut c_int);

    cuEventCreate(*mut CUevent, c_uint);
    cuEventRecord(CUevent, CUstream);
    cuEventQuery(CUevent);
    cuEventElapsedTime(*mut f32, CUevent, CUevent);
    cuEventDestroy_v2(CUevent);
}
