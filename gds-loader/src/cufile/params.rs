//! The library's parameters, by name: what `cufile.json` and the environment set, and a program may before opening.
//!
//! All of them are fixed when the driver opens. Later calls are refused by the library (5026) or, worse, answered with
//! success and ignored; so they can be read here, and set only through [`DriverSettings`](super::DriverSettings).

use std::ffi::{CStr, c_char};

use cufile_sys as sys;

use super::error::{CuFileError, CuFileResult};
use super::library::{Library, check, need};

macro_rules! parameters {
    ($(#[$about:meta])* $kind:ident($raw:ident) { $($name:ident = $constant:ident $words:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $kind {
            $(#[doc = concat!($words, " (`", stringify!($constant), "`).")] $name,)*
        }

        impl $kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The constant's name in `cufile.h`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($constant),)* }
            }

            pub(super) fn raw(self) -> sys::$raw {
                match self { $(Self::$name => sys::$constant,)* }
            }
        }
    };
}

parameters! {
    /// A parameter that is a number. Sizes are in KiB, where the name says so, and times in milliseconds.
    SizeParameter(CUFileSizeTConfigParameter_t) {
        ProfileStats = CUFILE_PARAM_PROFILE_STATS "Level of statistics to gather",
        MaxIoQueueDepth = CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH "Requests queued for the library's threads",
        MaxIoThreads = CUFILE_PARAM_EXECUTION_MAX_IO_THREADS "The library's own threads",
        MinIoThresholdSizeKib = CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB "Size from which requests are split",
        MaxRequestParallelism = CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM "Parts of one request at a time",
        MaxDirectIoSizeKib = CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB "Largest single transfer",
        MaxDeviceCacheSizeKib = CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB "Device memory for bounce buffers",
        PerBufferCacheSizeKib = CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB "Size of one bounce buffer",
        MaxDevicePinnedMemSizeKib = CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB "Registered device memory at most",
        IoBatchSize = CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE "Operations in a batch at most",
        PollThresholdSizeKib = CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB "Size up to which completion is polled for",
        BatchIoTimeoutMs = CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS "How long a batch may take",
    }
}

parameters! {
    /// A parameter that is on or off.
    BoolParameter(CUFileBoolConfigParameter_t) {
        UsePollMode = CUFILE_PARAM_PROPERTIES_USE_POLL_MODE "Poll for completion",
        AllowCompatMode = CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE "Let bytes bounce through the host where GDS cannot serve",
        ForceCompatMode = CUFILE_PARAM_FORCE_COMPAT_MODE "Always let bytes bounce through the host",
        FsMiscApiCheckAggressive = CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE "Check file systems more closely",
        ParallelIo = CUFILE_PARAM_EXECUTION_PARALLEL_IO "Split requests over the library's threads",
        ProfileNvtx = CUFILE_PARAM_PROFILE_NVTX "Emit NVTX ranges",
        AllowSystemMemory = CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY "Accept host memory",
        UsePciP2pdma = CUFILE_PARAM_USE_PCIP2PDMA "Use the kernel's peer-to-peer DMA",
        PreferIoUring = CUFILE_PARAM_PREFER_IO_URING "Use io_uring rather than libaio",
        ForceODirectMode = CUFILE_PARAM_FORCE_ODIRECT_MODE "Treat every file as open for direct I/O",
        SkipTopologyDetection = CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION "Do not look at the PCIe topology",
        StreamMemopsBypass = CUFILE_PARAM_STREAM_MEMOPS_BYPASS "Do without memory operations on streams",
        PosixIoMode = CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE "Read and write by POSIX calls",
        GdsFallbackIo = CUFILE_PARAM_GDS_FALLBACK_IO "Fall back to POSIX calls where a direct transfer fails",
    }
}

parameters! {
    /// A parameter that is a text. The logging ones are accepted and change nothing (seen on 1.14 and 1.20): only the
    /// environment variable `CUFILE_LOGFILE_PATH` moves the log.
    StringParameter(CUFileStringConfigParameter_t) {
        LoggingLevel = CUFILE_PARAM_LOGGING_LEVEL "How much is logged",
        LogfilePath = CUFILE_PARAM_ENV_LOGFILE_PATH "The log file",
        LogDirectory = CUFILE_PARAM_LOG_DIR "The folder of the log file",
        RdmaTransport = CUFILE_PARAM_RDMA_TRANSPORT "The RDMA transport",
    }
}

/// One kind of buffer in a pool of the library's: how large, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slab {
    /// Size of each buffer, in KiB.
    pub size_kib: usize,
    /// How many.
    pub count: usize,
}

/// The pools of bounce buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlabPool {
    /// Host memory, for compatibility mode. Since cuFile 1.15.
    Posix,
    /// Device memory. Since cuFile 1.17.
    GpuBounceBuffer,
}

impl SlabPool {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Posix => "the POSIX pool's slabs",
            Self::GpuBounceBuffer => "the GPU bounce buffer's slabs",
        }
    }
}

impl Library {
    /// The value of a number.
    ///
    /// # Errors
    /// [`CuFileError::Missing`] before cuFile 1.14; [`CuFileError::Call`] where the library knows no such parameter.
    pub fn size(self, parameter: SizeParameter) -> CuFileResult<usize> {
        let library = self.enter()?;
        let function = need!(library, cuFileGetParameterSizeT)?;
        let mut value = 0;
        // SAFETY: `value` is writable for the call.
        let answer = unsafe { function(parameter.raw(), &mut value) };
        check("cuFileGetParameterSizeT", answer, || format!("reading {}", parameter.name()))?;
        Ok(value)
    }

    /// The least and greatest value of a number.
    ///
    /// # Errors
    /// [`CuFileError::Missing`] before cuFile 1.15; [`CuFileError::Call`] where the library knows no such parameter.
    pub fn size_limits(self, parameter: SizeParameter) -> CuFileResult<(usize, usize)> {
        let library = self.enter()?;
        let function = need!(library, cuFileGetParameterMinMaxValue)?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both are writable for the call.
        let answer = unsafe { function(parameter.raw(), &mut least, &mut greatest) };
        check("cuFileGetParameterMinMaxValue", answer, || {
            format!("reading the limits of {}", parameter.name())
        })?;
        Ok((least, greatest))
    }

    /// Whether a switch is on.
    ///
    /// # Errors
    /// As for [`Library::size`].
    pub fn switch(self, parameter: BoolParameter) -> CuFileResult<bool> {
        let library = self.enter()?;
        let function = need!(library, cuFileGetParameterBool)?;
        // A byte, since a C library may leave anything in it.
        let mut value: u8 = 0;
        // SAFETY: `value` is one writable byte, the size of a C bool.
        let answer = unsafe { function(parameter.raw(), (&raw mut value).cast()) };
        check("cuFileGetParameterBool", answer, || format!("reading {}", parameter.name()))?;
        Ok(value != 0)
    }

    /// The value of a text.
    ///
    /// # Errors
    /// As for [`Library::size`].
    pub fn text(self, parameter: StringParameter) -> CuFileResult<String> {
        let library = self.enter()?;
        let function = need!(library, cuFileGetParameterString)?;
        let mut buffer = [0_u8; 4096];
        let room = buffer.len() as i32 - 1;
        // SAFETY: the buffer is writable for the length given, and its last byte stays 0.
        let answer = unsafe { function(parameter.raw(), buffer.as_mut_ptr().cast::<c_char>(), room) };
        check("cuFileGetParameterString", answer, || format!("reading {}", parameter.name()))?;
        let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    /// The first `len` slabs of a pool.
    ///
    /// # Errors
    /// [`CuFileError::Missing`] where the library is too old; [`CuFileError::Call`] where the pool has not `len` slabs.
    pub fn slabs(self, pool: SlabPool, len: usize) -> CuFileResult<Vec<Slab>> {
        let library = self.enter()?;
        let (call, function) = match pool {
            SlabPool::Posix => (
                "cuFileGetParameterPosixPoolSlabArray",
                need!(library, cuFileGetParameterPosixPoolSlabArray)?,
            ),
            SlabPool::GpuBounceBuffer => (
                "cuFileGetParameterGpuBounceBufferSlabArray",
                need!(library, cuFileGetParameterGpuBounceBufferSlabArray)?,
            ),
        };
        let count = i32::try_from(len).map_err(|_| CuFileError::usage(format!("{len} slabs")))?;
        let (mut sizes, mut counts) = (vec![0_usize; len], vec![0_usize; len]);
        // SAFETY: both arrays are writable for `len` elements.
        let answer = unsafe { function(sizes.as_mut_ptr(), counts.as_mut_ptr(), count) };
        check(call, answer, || format!("reading {len} of {}", pool.name()))?;
        Ok(sizes.into_iter().zip(counts).map(|(size_kib, count)| Slab { size_kib, count }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_of_the_header_is_there() {
        let header = include_str!("../../../cufile-sys/src/bindings.rs");
        let names = SizeParameter::ALL.iter().map(|parameter| parameter.name());
        let names = names.chain(BoolParameter::ALL.iter().map(|parameter| parameter.name()));
        let names: Vec<&str> =
            names.chain(StringParameter::ALL.iter().map(|parameter| parameter.name())).collect();
        let declared = header
            .lines()
            .filter_map(|line| line.strip_prefix("pub const CUFILE_PARAM_")?.split_once(':'))
            .filter(|(name, _)| !name.contains("SLAB"))
            .map(|(name, _)| format!("CUFILE_PARAM_{name}"))
            .collect::<Vec<_>>();
        assert_eq!(names.len(), declared.len());
        for name in declared {
            assert!(names.contains(&name.as_str()), "{name}");
        }
    }
}
