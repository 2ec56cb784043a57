//! Parameters, by kind.

use std::ffi::{c_char, c_int};

use cufile_sys::CU_FILE_INVALID_VALUE;

use crate::call::api;
use crate::error::Result;
use crate::ffi::{In, Out};
use crate::state::{Parameters, Slabs, state};

/// The number of slabs an array may have, from the C `int`.
fn length(len: c_int) -> Result<usize> {
    usize::try_from(len).ok().filter(|&len| len > 0).ok_or(CU_FILE_INVALID_VALUE.into())
}

fn set_slabs(
    sizes: In<usize>,
    counts: In<usize>,
    len: c_int,
    choose: fn(&mut Parameters) -> &mut Option<Slabs>,
) -> Result {
    let len = length(len)?;
    let slabs = Slabs { sizes_kib: sizes.list(len)?, counts: counts.list(len)? };
    state().set_slabs(slabs, choose)
}

/// Only arrays of exactly the length that was set can be read.
fn get_slabs(slabs: Option<&Slabs>, sizes: Out<usize>, counts: Out<usize>, len: c_int) -> Result {
    let len = length(len)?;
    let slabs = slabs.filter(|slabs| slabs.counts.len() == len).ok_or(CU_FILE_INVALID_VALUE)?;
    for (index, (size, count)) in slabs.sizes_kib.iter().zip(&slabs.counts).enumerate() {
        sizes.at(index).set(*size)?;
        counts.at(index).set(*count)?;
    }
    Ok(())
}

api! {
    fn cuFileGetParameterSizeT(parameter: u32, value: Out<usize>) {
        value.set(state().parameters.size(parameter)?)
    }

    fn cuFileGetParameterBool(parameter: u32, value: Out<bool>) {
        value.set(state().parameters.visible_flag(parameter)?)
    }

    /// The buffer must hold the text and its terminator.
    fn cuFileGetParameterString(parameter: u32, text: Out<c_char>, capacity: c_int) {
        let value = state().parameters.text(parameter)?;
        let capacity = usize::try_from(capacity).ok().filter(|&capacity| capacity > value.len());
        text.set_text(&value, capacity.ok_or(CU_FILE_INVALID_VALUE)?)
    }

    fn cuFileGetParameterMinMaxValue(parameter: u32, min: Out<usize>, max: Out<usize>) {
        let (least, most) = Parameters::bounds(parameter)?;
        min.set(least)?;
        max.set(most)
    }

    fn cuFileSetParameterSizeT(parameter: u32, value: usize) {
        state().set_size(parameter, value)
    }

    fn cuFileSetParameterBool(parameter: u32, value: bool) {
        state().set_flag(parameter, value)
    }

    fn cuFileSetParameterString(parameter: u32, text: In<c_char>) {
        let text = text.text()?;
        state().set_text(parameter, text)
    }

    fn cuFileSetParameterPosixPoolSlabArray(sizes: In<usize>, counts: In<usize>, len: c_int) {
        set_slabs(sizes, counts, len, |parameters| &mut parameters.posix_slabs)
    }

    fn cuFileGetParameterPosixPoolSlabArray(sizes: Out<usize>, counts: Out<usize>, len: c_int) {
        get_slabs(state().parameters.posix_slabs.as_ref(), sizes, counts, len)
    }

    fn cuFileSetParameterGpuBounceBufferSlabArray(sizes: In<usize>, counts: In<usize>, len: c_int) {
        set_slabs(sizes, counts, len, |parameters| &mut parameters.gpu_slabs)
    }

    fn cuFileGetParameterGpuBounceBufferSlabArray(sizes: Out<usize>, counts: Out<usize>, len: c_int) {
        get_slabs(state().parameters.gpu_slabs.as_ref(), sizes, counts, len)
    }
}
