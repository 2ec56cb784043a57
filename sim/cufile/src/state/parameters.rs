//! The parameters, by their numbers in the header.
//!
//! Before opening they read as what was set, or 0; opening fills in the defaults, also for sizes outside of their bounds,
//! which the setters accept. Seen on NVIDIA's 1.20, as are the defaults and bounds.

use cufile_sys::{
    CU_FILE_DRIVER_ALREADY_OPEN, CU_FILE_INVALID_VALUE, CUFILE_PARAM_ENV_LOGFILE_PATH,
    CUFILE_PARAM_EXECUTION_PARALLEL_IO, CUFILE_PARAM_PROFILE_NVTX, CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE,
    CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY, CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS,
    CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, CUFILE_PARAM_RDMA_TRANSPORT,
};

use super::State;
use crate::error::Result;

/// One size: what it is before opening, by default, and its bounds as `cuFileGetParameterMinMaxValue` tells them.
struct Size {
    before: usize,
    default: usize,
    bounds: Option<(usize, usize)>,
}

const fn size(before: usize, default: usize, min: usize, max: usize) -> Size {
    Size { before, default, bounds: Some((min, max)) }
}

/// As many KiB as fit into 64 bits of bytes, on a page's boundary.
const UNLIMITED_KIB: usize = 18_014_398_509_481_980;

/// In the order of `CUFileSizeTConfigParameter_t`.
const SIZES: [Size; 12] = [
    Size { before: 0, default: 0, bounds: None },
    size(128, 128, 1, 256),
    size(8, 8, 0, 128),
    size(1024, 1024, 4, 0xffff_ffff),
    size(4, 4, 0, 8),
    size(0, 16384, 64, 16384),
    size(0, 131_072, 0, 0),
    size(0, 1024, 64, 16384),
    size(0, UNLIMITED_KIB, 64, 0),
    size(0, 128, 1, 256),
    size(0, 4, 4, UNLIMITED_KIB),
    size(0, 5, 1, 1000),
];

const FLAGS: usize = 14;

/// A size and a count per slab.
#[derive(Clone, Debug)]
pub(crate) struct Slabs {
    pub(crate) sizes_kib: Vec<usize>,
    pub(crate) counts: Vec<usize>,
}

/// The parameters' values; what nobody set is `None`.
#[derive(Default)]
pub(crate) struct Parameters {
    sizes: [Option<usize>; SIZES.len()],
    flags: [Option<bool>; FLAGS],
    texts: [Option<String>; 4],
    pub(crate) posix_slabs: Option<Slabs>,
    pub(crate) gpu_slabs: Option<Slabs>,
    open: bool,
}

/// The value as the program sees it, and the place where it is kept.
fn at<T>(values: &[T], index: u32) -> Result<&T> {
    values.get(index as usize).ok_or(CU_FILE_INVALID_VALUE.into())
}

impl Parameters {
    pub(crate) fn size(&self, index: u32) -> Result<usize> {
        let known = at(&SIZES, index)?;
        let otherwise = if self.open { known.default } else { known.before };
        Ok(at(&self.sizes, index)?.unwrap_or(otherwise))
    }

    /// The least and the most a size may be.
    pub(crate) fn bounds(index: u32) -> Result<(usize, usize)> {
        at(&SIZES, index)?.bounds.ok_or(CU_FILE_INVALID_VALUE.into())
    }

    /// What a flag was set to.
    pub(crate) fn flag(&self, index: u32) -> Option<bool> {
        self.flags.get(index as usize).copied().flatten()
    }

    /// A flag as the program sees it.
    pub(crate) fn visible_flag(&self, index: u32) -> Result<bool> {
        let set = at(&self.flags, index)?;
        if index == CUFILE_PARAM_PROFILE_NVTX.0 {
            return Err(CU_FILE_INVALID_VALUE.into());
        }
        let default_of_open =
            [CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE.0, CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY.0];
        let otherwise =
            index == CUFILE_PARAM_EXECUTION_PARALLEL_IO.0 || (self.open && default_of_open.contains(&index));
        Ok(set.unwrap_or(otherwise))
    }

    /// `cuFileDriverSetPollMode` works at any time.
    pub(crate) fn set_poll(&mut self, poll: bool) {
        if let Some(flag) = self.flags.get_mut(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE.0 as usize) {
            *flag = Some(poll);
        }
    }

    pub(crate) fn text(&self, index: u32) -> Result<String> {
        let otherwise = if index == CUFILE_PARAM_ENV_LOGFILE_PATH.0 {
            std::env::var("CUFILE_LOGFILE_PATH").unwrap_or_default()
        } else if index == CUFILE_PARAM_RDMA_TRANSPORT.0 {
            "DC_V1".to_owned()
        } else {
            String::new()
        };
        Ok(at(&self.texts, index)?.clone().unwrap_or(otherwise))
    }

    /// Entries of one batch at most.
    pub(crate) fn batch_size(&self) -> usize {
        self.sizes.get(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE.0 as usize).copied().flatten().unwrap_or(128)
    }

    /// The time a batch may take, in milliseconds.
    pub(crate) fn batch_timeout(&self) -> usize {
        self.size(CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS.0).unwrap_or_default()
    }

    /// What opening does: sizes outside of their bounds become the defaults.
    pub(super) fn take_effect(&mut self) {
        self.open = true;
        for (value, known) in self.sizes.iter_mut().zip(&SIZES) {
            let (min, max) = known.bounds.unwrap_or((0, 0));
            let max = if max == 0 { usize::MAX } else { max };
            if let Some(wrong) = value.filter(|value| !(min..=max).contains(value)) {
                eprintln!("cufile-sim: invalid size parameter specified: {wrong} min: {min} max: {max}");
                *value = None;
            }
        }
    }

    pub(super) fn close(&mut self) {
        self.open = false;
    }
}

impl State {
    /// Whether parameters may be set: before opening, and, to no effect, after one in forced compatibility mode.
    fn check_settable(&self) -> Result {
        if self.driver.opened.is_none_or(|opened| opened.forced) {
            return Ok(());
        }
        Err(CU_FILE_DRIVER_ALREADY_OPEN.into())
    }

    pub(crate) fn set_size(&mut self, index: u32, value: usize) -> Result {
        at(&SIZES, index)?;
        self.check_settable()?;
        if let Some(size) = self.parameters.sizes.get_mut(index as usize) {
            *size = Some(value);
        }
        Ok(())
    }

    pub(crate) fn set_flag(&mut self, index: u32, value: bool) -> Result {
        at(&self.parameters.flags, index)?;
        self.check_settable()?;
        if let Some(flag) = self.parameters.flags.get_mut(index as usize) {
            *flag = Some(value);
        }
        Ok(())
    }

    pub(crate) fn set_text(&mut self, index: u32, value: String) -> Result {
        at(&self.parameters.texts, index)?;
        self.check_settable()?;
        if let Some(text) = self.parameters.texts.get_mut(index as usize) {
            *text = Some(value);
        }
        Ok(())
    }

    /// One of the two pairs of arrays.
    pub(crate) fn set_slabs(
        &mut self,
        slabs: Slabs,
        choose: fn(&mut Parameters) -> &mut Option<Slabs>,
    ) -> Result {
        self.check_settable()?;
        *choose(&mut self.parameters) = Some(slabs);
        Ok(())
    }
}
