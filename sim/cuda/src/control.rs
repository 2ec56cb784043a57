//! What tests and the simulated cuFile ask of the loaded library, by exported C symbols.
//!
//! These are no driver calls: they are not counted, no fault hits them, and they work in host functions. Functions that return a
//! status return a `CUresult`.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::code::{INVALID_VALUE, Result, UNKNOWN};
use crate::engine::{open_gate, shut_gate};
use crate::faults::{self, Faults};
use crate::ffi::{Address, In, Out};
use crate::state::{device, memory};
use crate::{call, copy, process, report};

/// The version of this interface.
const VERSION: i32 = 1;

/// A control function: no panic leaves it.
fn control(body: impl FnOnce() -> Result) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => UNKNOWN.0,
    }
}

/// `int cuda_sim_version(void)`: the version of the control symbols. Its presence tells the simulator from a real driver.
#[unsafe(no_mangle)]
extern "C" fn cuda_sim_version() -> i32 {
    VERSION
}

/// `size_t cuda_sim_report(char *buffer, size_t capacity)`: writes the report as of now, terminated and cut to fit; returns
/// the bytes the whole report needs, terminator included.
#[unsafe(no_mangle)]
extern "C" fn cuda_sim_report(buffer: Out<c_char>, capacity: usize) -> usize {
    let mut needed = 0;
    control(|| {
        let report = report::json();
        needed = report.len() + 1;
        if capacity > 0 && !buffer.is_null() {
            buffer.set_text(&report, i32::try_from(capacity).unwrap_or(i32::MAX))?;
        }
        Ok(())
    });
    needed
}

/// `CUresult cuda_sim_set_fault(const char *faults)`: replaces the faults in force (the form is that of `CUDA_SIM_FAULT`; empty
/// for none) and starts their counts anew.
#[unsafe(no_mangle)]
extern "C" fn cuda_sim_set_fault(text: In<c_char>) -> i32 {
    control(|| {
        let _ = process::settings();
        let parsed = Faults::parse(&text.text()?).map_err(|reason| {
            eprintln!("cuda-sim: cuda_sim_set_fault: {reason}");
            INVALID_VALUE
        })?;
        faults::set(parsed);
        Ok(())
    })
}

/// `void cuda_sim_reset_counters(void)`: calls, faults fired and copies count from 0 again.
#[unsafe(no_mangle)]
extern "C" fn cuda_sim_reset_counters() {
    call::reset();
    copy::reset_counts();
}

/// `void cuda_sim_pause_copies(void)`: from now on no copy starts; calls that wait for one wait.
#[unsafe(no_mangle)]
extern "C" fn cuda_sim_pause_copies() {
    shut_gate();
}

/// `void cuda_sim_resume_copies(void)`: the copies held back go on.
#[unsafe(no_mangle)]
extern "C" fn cuda_sim_resume_copies() {
    open_gate();
}

/// `void *cuda_sim_device_memory(CUdeviceptr address, size_t len)`: where host code may read and write this device memory, as
/// DMA does, unordered with every stream; null where the range is not inside one allocation. Valid until the memory is freed.
#[unsafe(no_mangle)]
extern "C" fn cuda_sim_device_memory(address: Address, len: usize) -> *mut c_void {
    let mut alias = std::ptr::null_mut();
    control(|| {
        let allocation = memory::find(address).ok_or(INVALID_VALUE)?;
        let end = address.checked_add(len as u64).ok_or(INVALID_VALUE)?;
        if end <= allocation.address + allocation.len {
            alias = allocation.alias(address)?.cast();
        }
        Ok(())
    });
    alias
}

/// `CUresult cuda_sim_write_device_memory(CUdeviceptr to, const void *from, size_t len)`: writes device memory as DMA does,
/// unordered with every stream. Safe against a free at the same time.
#[unsafe(no_mangle)]
extern "C" fn cuda_sim_write_device_memory(to: Address, from: Address, len: usize) -> i32 {
    control(|| {
        // SAFETY: `from` is the caller's promise.
        unsafe { copy::write_unordered(to, from as *const u8, len) }
    })
}

/// `CUresult cuda_sim_read_device_memory(void *to, CUdeviceptr from, size_t len)`: the way back.
#[unsafe(no_mangle)]
extern "C" fn cuda_sim_read_device_memory(to: Address, from: Address, len: usize) -> i32 {
    control(|| {
        // SAFETY: `to` is the caller's promise.
        unsafe { copy::read_unordered(to as *mut u8, from, len) }
    })
}

/// `CUresult cuda_sim_bar1(int device, size_t *size, size_t *used)`: the device's BAR1 in bytes.
#[unsafe(no_mangle)]
extern "C" fn cuda_sim_bar1(device: i32, size: Out<usize>, used: Out<usize>) -> i32 {
    control(|| {
        let (bar1, bar1_used) = device::by_ordinal(device)?.bar1();
        size.set_if_wanted(bar1 as usize);
        used.set_if_wanted(bar1_used as usize);
        Ok(())
    })
}

/// `CUresult cuda_sim_reserve_bar1(int device, size_t bytes)`: takes BAR1, as registering device memory for DMA does; out of
/// memory where there is not enough left.
#[unsafe(no_mangle)]
extern "C" fn cuda_sim_reserve_bar1(device: i32, bytes: usize) -> i32 {
    control(|| device::by_ordinal(device)?.reserve_bar1(bytes as u64))
}

/// `CUresult cuda_sim_release_bar1(int device, size_t bytes)`: gives it back.
#[unsafe(no_mangle)]
extern "C" fn cuda_sim_release_bar1(device: i32, bytes: usize) -> i32 {
    control(|| {
        device::by_ordinal(device)?.release_bar1(bytes as u64);
        Ok(())
    })
}
