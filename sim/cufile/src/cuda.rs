//! What is asked of the simulated CUDA driver: a few calls, and its control symbols.
//!
//! It is found as any driver is, by the name `libcuda.so.1`, and must be the simulator: device memory of a real GPU has no back
//! door. Without it the library serves host memory, as NVIDIA's does without a driver.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;
use std::{mem, ptr};

use cufile_sys::{CU_FILE_CUDA_DRIVER_ERROR, CU_FILE_CUDA_POINTER_RANGE_ERROR};

use crate::error::{Failure, Result};
use crate::ffi::{Address, Handle};

/// A function to be run on a stream, with its argument.
pub(crate) type HostFunction = extern "C" fn(*mut c_void);

macro_rules! table {
    ($($name:ident($($type:ty),*) -> $result:ty;)*) => {
        struct Table {
            $($name: extern "C" fn($($type),*) -> $result,)*
        }

        impl Table {
            /// The functions of an open library; the error is the name of one it lacks.
            ///
            /// # Safety
            /// - `library` is an open handle, never closed.
            /// - Its functions of these names have these types.
            unsafe fn load(library: *mut c_void) -> Result<Self, &'static str> {
                let find = |name: &'static CStr| {
                    // SAFETY: the handle by the caller's promise; the name is terminated.
                    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
                    if address.is_null() { Err(name.to_str().unwrap_or_default()) } else { Ok(address) }
                };
                Ok(Self {$(
                    $name: {
                        const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => c"",
                        };
                        let address = find(NAME)?;
                        // SAFETY: not null, and of this type by the caller's promise.
                        unsafe { mem::transmute::<*mut c_void, extern "C" fn($($type),*) -> $result>(address) }
                    },
                )*})
            }
        }
    };
}

table! {
    cuInit(u32) -> c_int;
    cuDeviceGetCount(*mut c_int) -> c_int;
    cuDeviceGetUuid_v2(*mut [u8; 16], c_int) -> c_int;
    cuPointerGetAttributes(u32, *const c_int, *const *mut c_void, Address) -> c_int;
    cuLaunchHostFunc(Handle, HostFunction, *mut c_void) -> c_int;
    cuda_sim_device_memory(Address, usize) -> *mut c_void;
    cuda_sim_write_device_memory(Address, *const u8, usize) -> c_int;
    cuda_sim_read_device_memory(*mut u8, Address, usize) -> c_int;
    cuda_sim_bar1(c_int, *mut usize, *mut usize) -> c_int;
    cuda_sim_reserve_bar1(c_int, usize) -> c_int;
    cuda_sim_release_bar1(c_int, usize) -> c_int;
}

/// The simulated driver, initialised.
pub(crate) struct Cuda {
    table: Table,
}

/// The process's driver; `None` where there is none.
pub(crate) fn driver() -> Option<&'static Cuda> {
    static DRIVER: OnceLock<Option<Cuda>> = OnceLock::new();
    DRIVER.get_or_init(Cuda::load).as_ref()
}

/// Whose memory an address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Device memory, of the device of this number.
    Device(u32),
    /// Host memory, pinned or not.
    Host,
}

fn check(code: c_int) -> Result {
    if code == 0 { Ok(()) } else { Err(Failure::cuda(code)) }
}

impl Cuda {
    fn load() -> Option<Self> {
        // SAFETY: the name is terminated; what goes by the driver's name is trusted to be one.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return None;
        }
        // SAFETY: opened just now and never closed; the driver's functions have the types of its header, the simulator's
        // those of its README.
        let table = match unsafe { Table::load(library) } {
            Ok(table) => table,
            Err(name) => {
                eprintln!(
                    "cufile-sim: libcuda.so.1 is not the simulated driver: it lacks {name}; only host memory works"
                );
                return None;
            }
        };
        ((table.cuInit)(0) == 0).then_some(Self { table })
    }

    /// The number of devices.
    pub(crate) fn devices(&self) -> u32 {
        let mut count = 0;
        let code = (self.table.cuDeviceGetCount)(&mut count);
        if code == 0 { u32::try_from(count).unwrap_or(0) } else { 0 }
    }

    pub(crate) fn uuid(&self, device: u32) -> [u8; 16] {
        let mut uuid = [0; 16];
        (self.table.cuDeviceGetUuid_v2)(&mut uuid, device.cast_signed());
        uuid
    }

    /// Whose memory `address` is, and how many bytes its allocation has from there.
    fn find(&self, address: Address) -> Result<(Place, u64)> {
        let in_device_memory = !(self.table.cuda_sim_device_memory)(address, 1).is_null();
        // CU_POINTER_ATTRIBUTE_MEMORY_TYPE, _DEVICE_ORDINAL, _RANGE_START_ADDR, _RANGE_SIZE
        let (mut kind, mut device, mut start, mut len) = (0_u32, 0_i32, 0_u64, 0_u64);
        let data = [
            (&raw mut kind).cast::<c_void>(),
            (&raw mut device).cast(),
            (&raw mut start).cast(),
            (&raw mut len).cast(),
        ];
        match (self.table.cuPointerGetAttributes)(4, [2, 9, 11, 12].as_ptr(), data.as_ptr(), address) {
            0 if in_device_memory => {
                Ok((Place::Device(device.cast_unsigned()), (start + len).saturating_sub(address)))
            }
            // Device memory, and no way to ask about it: no current context, say.
            code if in_device_memory => Err(Failure::cuda(code)),
            _ => Ok((Place::Host, u64::MAX)),
        }
    }

    /// Runs `function` on the stream, in its order.
    pub(crate) fn launch(&self, stream: Handle, function: HostFunction, argument: *mut c_void) -> Result {
        check((self.table.cuLaunchHostFunc)(stream, function, argument))
    }

    /// Bytes of the device's BAR1.
    pub(crate) fn bar1(&self, device: u32) -> Result<usize> {
        let mut size = 0;
        check((self.table.cuda_sim_bar1)(device.cast_signed(), &mut size, ptr::null_mut()))?;
        Ok(size)
    }

    pub(crate) fn reserve_bar1(&self, device: u32, bytes: usize) -> Result {
        check((self.table.cuda_sim_reserve_bar1)(device.cast_signed(), bytes))
    }

    pub(crate) fn release_bar1(&self, device: u32, bytes: usize) {
        (self.table.cuda_sim_release_bar1)(device.cast_signed(), bytes);
    }
}

/// Whose memory the `len` bytes at `address` are; those of a device must lie in one allocation.
pub(crate) fn place(address: Address, len: usize) -> Result<Place> {
    let Some(driver) = driver() else { return Ok(Place::Host) };
    match driver.find(address)? {
        (Place::Device(_), available) if available < len as u64 => {
            Err(CU_FILE_CUDA_POINTER_RANGE_ERROR.into())
        }
        (place, _) => Ok(place),
    }
}

/// Whether the range is device memory of one allocation.
pub(crate) fn is_one_allocation(address: Address, len: usize) -> bool {
    driver().is_some_and(|driver| !(driver.table.cuda_sim_device_memory)(address, len).is_null())
}

/// Memory that a transfer reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) place: Place,
    pub(crate) address: Address,
}

impl Memory {
    /// Writes `bytes` into it, from `offset` on: device memory as DMA does, unordered with every stream.
    ///
    /// # Safety
    /// - Host memory is valid for that, and nobody else uses these bytes.
    pub(crate) unsafe fn write(self, offset: usize, bytes: &[u8]) -> Result {
        let address = self.address.wrapping_add(offset as u64);
        match (self.place, driver()) {
            (Place::Device(_), Some(driver)) => {
                check((driver.table.cuda_sim_write_device_memory)(address, bytes.as_ptr(), bytes.len()))
            }
            (Place::Device(_), None) => Err(CU_FILE_CUDA_DRIVER_ERROR.into()),
            // SAFETY: handed on; `bytes` is memory of this library's own.
            (Place::Host, _) => unsafe {
                ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len());
                Ok(())
            },
        }
    }

    /// Reads it into `bytes`, from `offset` on.
    ///
    /// # Safety
    /// - Host memory is valid for that, and nobody else writes these bytes.
    pub(crate) unsafe fn read(self, offset: usize, bytes: &mut [u8]) -> Result {
        let address = self.address.wrapping_add(offset as u64);
        match (self.place, driver()) {
            (Place::Device(_), Some(driver)) => {
                check((driver.table.cuda_sim_read_device_memory)(bytes.as_mut_ptr(), address, bytes.len()))
            }
            (Place::Device(_), None) => Err(CU_FILE_CUDA_DRIVER_ERROR.into()),
            // SAFETY: handed on; `bytes` is memory of this library's own.
            (Place::Host, _) => unsafe {
                ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len());
                Ok(())
            },
        }
    }
}
