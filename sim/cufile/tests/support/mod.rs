//! cuFile and the simulated GPU as a user sees them, within a child process that runs on the simulator.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::ffi::{CStr, c_int, c_void};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::ptr;

use cufile_sys::*;
use test_support::Segment;
use test_support::control::read_device_memory;

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;

/// The setting of a machine where GPUDirect Storage works.
pub(crate) const REAL: (&str, &str) = ("CUFILE_SIM_MODE", "real");

/// A byte that tells where it belongs.
pub(crate) fn byte_at(offset: usize) -> u8 {
    (offset.wrapping_mul(31) >> 3) as u8 ^ (offset >> 12) as u8
}

/// `len` bytes of a file made by [`file`], from `offset` on.
pub(crate) fn expected(offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(byte_at).collect()
}

/// Makes a file of `len` bytes, each of which tells where it belongs, and opens it to read and write.
pub(crate) fn file(path: &Path, len: usize, flags: c_int) -> File {
    std::fs::write(path, expected(0, len)).unwrap();
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// The library that the environment names.
pub(crate) fn load() -> Api {
    let path = std::env::var_os("GDS_CUFILE_LIBRARY").expect("a child on the simulator");
    // SAFETY: a libcufile, the simulated one or NVIDIA's.
    unsafe { Api::load_from(Path::new(&path)) }.unwrap_or_else(|error| panic!("{error}"))
}

/// The code of a status.
pub(crate) fn code(error: CUfileError) -> i32 {
    error.status().code()
}

/// What a transfer returned, and `errno` where that means something.
pub(crate) type Count = Result<usize, TransferError>;

fn count(count: isize) -> Count {
    transferred(count, std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// -1, with this in `errno`.
pub(crate) fn failed(code: i32) -> Count {
    Err(if code > CUFILEOP_BASE_ERR { TransferError::CuFile(Status(code)) } else { TransferError::Os(code) })
}

/// The calls in the form tests use: addresses are numbers, results are codes or counts.
pub(crate) trait Calls {
    fn open(&self) -> i32;
    fn close(&self) -> i32;
    fn register(&self, file: &File) -> Result<CUfileHandle_t, i32>;
    fn register_as(&self, kind: u32, fd: c_int) -> Result<CUfileHandle_t, i32>;
    fn register_buffer(&self, address: u64, len: usize) -> i32;
    fn deregister_buffer(&self, address: u64) -> i32;
    fn read(&self, file: CUfileHandle_t, base: u64, len: usize, file_offset: i64, base_offset: i64) -> Count;
    fn write(&self, file: CUfileHandle_t, base: u64, len: usize, file_offset: i64, base_offset: i64)
    -> Count;
    fn readv(&self, file: CUfileHandle_t, parts: &[(u64, usize)], file_offset: i64) -> Count;
    fn set_flag(&self, flag: CUFileBoolConfigParameter_t, value: bool) -> i32;
    fn flag(&self, flag: CUFileBoolConfigParameter_t) -> bool;
    fn set_size(&self, size: CUFileSizeTConfigParameter_t, value: usize) -> i32;
    fn size(&self, size: CUFileSizeTConfigParameter_t) -> usize;
    fn set_level(&self, level: c_int) -> i32;
    fn statistics(&self) -> Result<CUfileStatsLevel3, i32>;
    fn use_count(&self) -> i64;
    fn properties(&self) -> CUfileDrvProps_t;
}

impl Calls for Api {
    fn open(&self) -> i32 {
        // SAFETY: no arguments.
        code(unsafe { (self.cuFileDriverOpen)() })
    }

    fn close(&self) -> i32 {
        // SAFETY: no arguments.
        code(unsafe { (self.cuFileDriverClose)() })
    }

    fn register(&self, file: &File) -> Result<CUfileHandle_t, i32> {
        self.register_as(CU_FILE_HANDLE_TYPE_OPAQUE_FD.0, file.as_raw_fd())
    }

    fn register_as(&self, kind: u32, fd: c_int) -> Result<CUfileHandle_t, i32> {
        let mut handle = ptr::null_mut();
        let mut description = CUfileDescr_t {
            type_: CUfileFileHandleType(kind),
            handle: CUfileDescr_handle { fd },
            fs_ops: ptr::null(),
        };
        // SAFETY: both are valid for the call.
        match code(unsafe { (self.cuFileHandleRegister)(&mut handle, &mut description) }) {
            0 => Ok(handle),
            code => Err(code),
        }
    }

    fn register_buffer(&self, address: u64, len: usize) -> i32 {
        // SAFETY: the library checks the range, or the test gives one that it may use.
        code(unsafe { (self.cuFileBufRegister)(address as *const c_void, len, 0) })
    }

    fn deregister_buffer(&self, address: u64) -> i32 {
        // SAFETY: an address to be looked up.
        code(unsafe { (self.cuFileBufDeregister)(address as *const c_void) })
    }

    fn read(&self, file: CUfileHandle_t, base: u64, len: usize, file_offset: i64, base_offset: i64) -> Count {
        // SAFETY: the test gives memory that it may use.
        count(unsafe { (self.cuFileRead)(file, base as *mut c_void, len, file_offset, base_offset) })
    }

    fn write(
        &self,
        file: CUfileHandle_t,
        base: u64,
        len: usize,
        file_offset: i64,
        base_offset: i64,
    ) -> Count {
        // SAFETY: the test gives memory that it may use.
        count(unsafe { (self.cuFileWrite)(file, base as *const c_void, len, file_offset, base_offset) })
    }

    fn readv(&self, file: CUfileHandle_t, parts: &[(u64, usize)], file_offset: i64) -> Count {
        let part = |&(base, len): &(u64, usize)| CUfileIOVec_t { base: base as *mut c_void, len };
        let parts: Vec<_> = parts.iter().map(part).collect();
        let readv = self.cuFileReadv.expect("a library that has it");
        // SAFETY: the test gives memory that it may use.
        count(unsafe { readv(file, parts.as_ptr(), parts.len(), file_offset, 0) })
    }

    fn set_flag(&self, flag: CUFileBoolConfigParameter_t, value: bool) -> i32 {
        // SAFETY: values only.
        code(unsafe { (self.cuFileSetParameterBool.unwrap())(flag, value) })
    }

    fn flag(&self, flag: CUFileBoolConfigParameter_t) -> bool {
        let mut value = false;
        // SAFETY: the place is valid for the call.
        assert_eq!(code(unsafe { (self.cuFileGetParameterBool.unwrap())(flag, &mut value) }), 0);
        value
    }

    fn set_size(&self, size: CUFileSizeTConfigParameter_t, value: usize) -> i32 {
        // SAFETY: values only.
        code(unsafe { (self.cuFileSetParameterSizeT.unwrap())(size, value) })
    }

    fn size(&self, size: CUFileSizeTConfigParameter_t) -> usize {
        let mut value = 0;
        // SAFETY: the place is valid for the call.
        assert_eq!(code(unsafe { (self.cuFileGetParameterSizeT.unwrap())(size, &mut value) }), 0);
        value
    }

    fn set_level(&self, level: c_int) -> i32 {
        // SAFETY: a value only.
        code(unsafe { (self.cuFileSetStatsLevel.unwrap())(level) })
    }

    fn statistics(&self) -> Result<CUfileStatsLevel3, i32> {
        let mut buffer = StatisticsBuffer::new();
        // SAFETY: the buffer has room for every version's.
        match code(unsafe { (self.cuFileGetStatsL3.unwrap())(buffer.level3_mut()) }) {
            0 => Ok(buffer.read(StatisticsLayout::of(version(self)).unwrap())),
            code => Err(code),
        }
    }

    fn use_count(&self) -> i64 {
        // SAFETY: no arguments.
        unsafe { (self.cuFileUseCount.unwrap())() }
    }

    fn properties(&self) -> CUfileDrvProps_t {
        let mut properties = CUfileDrvProps_t::default();
        // SAFETY: the place is valid for the call.
        assert_eq!(code(unsafe { (self.cuFileDriverGetProperties)(&mut properties) }), 0);
        properties
    }
}

/// What `cuFileGetVersion` says.
pub(crate) fn version(api: &Api) -> c_int {
    let mut version = 0;
    // SAFETY: the place is valid for the call.
    assert_eq!(code(unsafe { (api.cuFileGetVersion.unwrap())(&mut version) }), 0);
    version
}

/// A function of the preloaded driver.
macro_rules! cuda {
    ($name:ident($($argument:expr => $type:ty),*)) => {{
        let name: &CStr = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()).unwrap();
        // SAFETY: a C string; RTLD_DEFAULT looks through what is loaded.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?}: this process does not run on the simulator");
        // SAFETY: the driver's function of this name has this type.
        let function = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn($($type),*) -> c_int>(address) };
        let status = function($($argument),*);
        assert_eq!(status, 0, "{}", stringify!($name));
    }};
}

/// The first simulated GPU, current in this thread; released at the end.
pub(crate) struct Gpu {
    context: u64,
}

/// Device memory.
pub(crate) struct Memory {
    pub(crate) address: u64,
    pub(crate) len: usize,
}

/// A stream.
pub(crate) struct Stream(pub u64);

impl Gpu {
    pub(crate) fn new() -> Self {
        let mut context = 0_u64;
        cuda!(cuInit(0 => u32));
        cuda!(cuDevicePrimaryCtxRetain(&mut context => &mut u64, 0 => c_int));
        let gpu = Self { context };
        gpu.make_current();
        gpu
    }

    pub(crate) fn make_current(&self) {
        cuda!(cuCtxSetCurrent(self.context => u64));
    }

    pub(crate) fn allocate(&self, len: usize) -> Memory {
        let mut address = 0_u64;
        cuda!(cuMemAlloc_v2(&mut address => &mut u64, len => usize));
        Memory { address, len }
    }

    pub(crate) fn stream(&self) -> Stream {
        let mut stream = 0_u64;
        cuda!(cuStreamCreate(&mut stream => &mut u64, 1 => u32));
        Stream(stream)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // Either library leaves its statistics where the driver is open in the end.
        if let Some(left) = Segment::of(std::process::id()) {
            left.remove();
        }
        cuda!(cuDevicePrimaryCtxRelease_v2(0 => c_int));
    }
}

impl Memory {
    /// What is in it.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        read_device_memory(self.address + offset as u64, len)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        cuda!(cuMemFree_v2(self.address => u64));
    }
}

impl Stream {
    pub(crate) fn synchronize(&self) {
        cuda!(cuStreamSynchronize(self.0 => u64));
    }
}

impl Stream {
    /// Copies all of `from` to `to`, in order.
    pub(crate) fn copy(&self, from: &Memory, to: &Memory) {
        cuda!(cuMemcpyDtoDAsync_v2(to.address => u64, from.address => u64, from.len => usize, self.0 => u64));
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        cuda!(cuStreamDestroy_v2(self.0 => u64));
    }
}

/// Device memory as host code fills it.
pub(crate) fn fill(memory: &Memory, bytes: &[u8]) {
    test_support::control::write_device_memory(memory.address, bytes);
}
