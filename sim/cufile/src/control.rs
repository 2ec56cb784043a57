//! What tests ask of the loaded library, by exported C symbols.
//!
//! These are no calls of cuFile: they are not counted, and no fault hits them.

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cufile_sys::CU_FILE_INVALID_VALUE;

use crate::ffi::{In, Out};
use crate::{call, faults, gate, process, report};

/// The version of this interface.
const VERSION: c_int = 1;

/// A control function: no panic leaves it.
fn control<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// `int cufile_sim_version(void)`: the version of the control symbols. Its presence tells the simulator from NVIDIA's library.
#[unsafe(no_mangle)]
extern "C" fn cufile_sim_version() -> c_int {
    VERSION
}

/// `size_t cufile_sim_report(char *buffer, size_t capacity)`: writes the report as of now, terminated and cut to fit; returns
/// the bytes the whole report needs, terminator included.
#[unsafe(no_mangle)]
extern "C" fn cufile_sim_report(buffer: Out<c_char>, capacity: usize) -> usize {
    control(0, || {
        let report = report::json();
        if capacity > 0 && !buffer.is_null() {
            let _ = buffer.set_text(&report, capacity);
        }
        report.len() + 1
    })
}

/// `int cufile_sim_set_script(const char *script)`: replaces the faults in force (the form is that of `CUFILE_SIM_SCRIPT`; empty
/// for none), whose counts begin anew. 0, or 5022 where it is no script.
#[unsafe(no_mangle)]
extern "C" fn cufile_sim_set_script(script: In<c_char>) -> c_int {
    let refused = CU_FILE_INVALID_VALUE.0.cast_signed();
    control(refused, || {
        let _ = process::settings();
        let Ok(text) = script.text() else { return refused };
        match faults::parse(&text) {
            Ok(script) => {
                faults::set(script);
                0
            }
            Err(reason) => {
                eprintln!("cufile-sim: cufile_sim_set_script: {reason}");
                refused
            }
        }
    })
}

/// `void cufile_sim_reset_counters(void)`: uses of calls and faults count from 0 again.
#[unsafe(no_mangle)]
extern "C" fn cufile_sim_reset_counters() {
    control((), || {
        call::reset();
        faults::reset();
    });
}

/// `void cufile_sim_pause_transfers(void)`: from now on no transfer starts; calls that wait for one wait.
#[unsafe(no_mangle)]
extern "C" fn cufile_sim_pause_transfers() {
    control((), gate::shut);
}

/// `void cufile_sim_resume_transfers(void)`: those held back go on.
#[unsafe(no_mangle)]
extern "C" fn cufile_sim_resume_transfers() {
    control((), gate::open);
}
