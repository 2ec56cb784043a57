//! Statistics, in the layout of the version that is simulated.

use std::mem::{MaybeUninit, offset_of, size_of};

use cufile_sys::{CU_FILE_DRIVER_NOT_INITIALIZED, CUfileStatsLevel1, CUfileStatsLevel2, CUfileStatsLevel3};

use crate::call::api;
use crate::error::Result;
use crate::ffi::Out;
use crate::process::valid_settings;
use crate::state::{State, state};

/// Where level 1 ended before 1.19 counted vectored calls.
const OLD_LEVEL1: usize = offset_of!(CUfileStatsLevel1, readv_ops);

/// Writes what the program's `cufile.h` calls a level of statistics: the first `size` bytes of them all, without what the
/// version's level 1 does not have.
fn write(to: Out<u8>, level: i32, size: usize) -> Result {
    to.check()?;
    let counters = state().statistics_of(level)?;
    // Bytes, but between the fields there are some that have no value.
    let from = (&raw const counters).cast::<MaybeUninit<u8>>();
    let to = to.cast::<MaybeUninit<u8>>();
    let level1 = size_of::<CUfileStatsLevel1>();
    let old = valid_settings()?.version < (1, 19);
    let end_of_level1 = if old { OLD_LEVEL1 } else { level1 };
    for (index, source) in (0..end_of_level1).chain(level1..size).enumerate() {
        // SAFETY: within the counters.
        to.at(index).set(unsafe { from.add(source).read() })?;
    }
    Ok(())
}

/// The state, of an open driver.
fn open() -> Result<std::sync::MutexGuard<'static, State>> {
    let state = state();
    if state.driver.opened.is_some() { Ok(state) } else { Err(CU_FILE_DRIVER_NOT_INITIALIZED.into()) }
}

api! {
    fn cuFileSetStatsLevel(level: i32) {
        state().statistics.set_level(level)
    }

    fn cuFileGetStatsLevel(level: Out<i32>) {
        level.set(state().statistics.level())
    }

    fn cuFileStatsStart() {
        open()?.statistics.start()
    }

    fn cuFileStatsStop() {
        open()?.statistics.stop();
        Ok(())
    }

    fn cuFileStatsReset() {
        open()?.statistics.reset();
        Ok(())
    }

    fn cuFileGetStatsL1(statistics: Out<u8>) {
        write(statistics, 1, size_of::<CUfileStatsLevel1>())
    }

    fn cuFileGetStatsL2(statistics: Out<u8>) {
        write(statistics, 2, size_of::<CUfileStatsLevel2>())
    }

    fn cuFileGetStatsL3(statistics: Out<u8>) {
        write(statistics, 3, size_of::<CUfileStatsLevel3>())
    }
}
