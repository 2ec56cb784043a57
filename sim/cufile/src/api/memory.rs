//! Registering files and memory.

use std::ffi::c_int;

use cufile_sys::{
    CU_FILE_DRIVER_CLOSING, CU_FILE_HANDLE_TYPE_OPAQUE_FD, CU_FILE_INVALID_VALUE, CU_FILE_IO_NOT_SUPPORTED,
    CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB, CUfileDescr_t, CUfileError,
};

use crate::call::{Call, api};
use crate::cuda;
use crate::error::Result;
use crate::faults::Subject;
use crate::ffi::{Address, Handle, In, Out};
use crate::process::valid_settings;
use crate::state::{File, count, state};

/// The descriptor in a description of a file.
fn descriptor(description: In<CUfileDescr_t>) -> Result<c_int> {
    let description = description.get()?;
    if description.type_ != CU_FILE_HANDLE_TYPE_OPAQUE_FD {
        return Err(CU_FILE_IO_NOT_SUPPORTED.into());
    }
    // SAFETY: the type says that this field of the union is the one in use.
    Ok(unsafe { description.handle.fd })
}

fn file(description: In<CUfileDescr_t>) -> Result<File> {
    File::from_fd(descriptor(description)?, valid_settings()?)
}

#[unsafe(no_mangle)]
extern "C" fn cuFileHandleRegister(handle: Out<Handle>, description: In<CUfileDescr_t>) -> CUfileError {
    static CALL: Call = Call::new("cuFileHandleRegister");
    let subject = || Subject { bytes: 0, file: file(description).ok().map(|file| file.path) };
    let result = CALL.status(subject, || {
        handle.check()?;
        let mut state = state();
        state.open_if_closed()?;
        let registered = state.register_file(file(description)?)?;
        handle.set(registered)
    });
    count_unless_forked(|basic, ok| count(&mut basic.hdl_register_ops, ok), result);
    result
}

#[unsafe(no_mangle)]
extern "C" fn cuFileHandleDeregister(handle: Handle) {
    static CALL: Call = Call::new("cuFileHandleDeregister");
    CALL.infallible((), || {
        let mut state = state();
        let known = state.files.remove(&handle).is_some();
        state.statistics.update(|counters| count(&mut counters.detailed.basic.hdl_deregister_ops, known));
    });
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBufRegister(base: Address, len: usize, _flags: c_int) -> CUfileError {
    static CALL: Call = Call::new("cuFileBufRegister");
    let result = CALL.status(
        || Subject::bytes(len),
        || {
            if base == 0 || len == 0 {
                return Err(CU_FILE_INVALID_VALUE.into());
            }
            let opened = state().open_if_closed()?;
            let place = cuda::place(base, len)?;
            let mut state = state();
            let limit = state.parameters.size(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB.0)?;
            let limit = opened.pins.then_some((limit as u64).saturating_mul(1024));
            state.buffers.register(base, len, place, limit)
        },
    );
    count_unless_forked(|basic, ok| count(&mut basic.buf_register_ops, ok), result);
    result
}

/// Counts how a registration ended, a fault's end included.
fn count_unless_forked(change: fn(&mut cufile_sys::CUfileStatsLevel1, bool), result: CUfileError) {
    if !crate::process::is_forked() {
        let ok = result.status().is_success();
        state().statistics.update(|counters| change(&mut counters.detailed.basic, ok));
    }
}

api! {
    fn cuFileBufDeregister(base: Address) {
        let mut state = state();
        if state.driver.opened.is_none() {
            return Err(CU_FILE_DRIVER_CLOSING.into());
        }
        let result = state.buffers.deregister(base);
        let ok = result.is_ok();
        state.statistics.update(|counters| count(&mut counters.detailed.basic.buf_deregister_ops, ok));
        result
    }
}
