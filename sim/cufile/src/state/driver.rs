//! Opening and closing, and what that decides.

use cufile_sys::{
    CU_FILE_CUDA_DRIVER_ERROR, CU_FILE_DRIVER_NOT_INITIALIZED, CU_FILE_NVFS_SETUP_ERROR,
    CUFILE_PARAM_FORCE_COMPAT_MODE, CUFILE_PARAM_PROFILE_STATS, CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE,
};

use super::State;
use crate::cuda;
use crate::error::Result;
use crate::process::valid_settings;
use crate::settings::{Mode, Settings};

/// The driver's state; closed by default.
#[derive(Default)]
pub(crate) struct Driver {
    /// Opens that were not closed again.
    pub(crate) uses: u64,
    /// What the first of them decided.
    pub(crate) opened: Option<Opened>,
    /// Opening was refused because compatibility mode was not allowed. NVIDIA's then forgets that it is not: the next
    /// call that opens, be it a registration, opens in that very mode.
    refused: bool,
}

/// What opening decides until the last close.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    /// Every byte goes through the host.
    pub(crate) bounces: bool,
    /// Registered device memory is pinned for DMA, or said to be.
    pub(crate) pins: bool,
    /// Compatibility mode was forced by a parameter or the environment.
    pub(crate) forced: bool,
}

/// Whether opening now would allow compatibility mode.
pub(crate) fn compat_allowed(state: &State) -> bool {
    state.driver.refused || state.parameters.flag(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE.0).unwrap_or(true)
}

impl State {
    /// `cuFileDriverOpen`.
    pub(crate) fn open(&mut self) -> Result {
        self.open_first()?;
        self.driver.uses += 1;
        Ok(())
    }

    /// What registering, reading and writing do first: they open the driver where nobody did.
    pub(crate) fn open_if_closed(&mut self) -> Result<Opened> {
        if let Some(opened) = self.driver.opened {
            return Ok(opened);
        }
        let opened = self.open_first()?;
        self.driver.uses = 1;
        Ok(opened)
    }

    /// Decides, unless that was done.
    fn open_first(&mut self) -> Result<Opened> {
        let settings = valid_settings()?;
        if let Some(opened) = self.driver.opened {
            return Ok(opened);
        }
        let opened = self.decide(settings)?;
        if std::mem::take(&mut self.driver.refused) {
            self.set_flag(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE.0, true)?;
        }
        self.parameters.take_effect();
        self.statistics.open(self.parameters.size(CUFILE_PARAM_PROFILE_STATS.0)?);
        self.driver.opened = Some(opened);
        Ok(opened)
    }

    fn decide(&mut self, settings: &Settings) -> Result<Opened> {
        let asked = self.parameters.flag(CUFILE_PARAM_FORCE_COMPAT_MODE.0).unwrap_or(settings.force_compat);
        let alone = cuda::driver().is_none();
        // From 1.15 on the library does without a driver.
        if alone && settings.version < (1, 15) {
            return Err(CU_FILE_NVFS_SETUP_ERROR.into());
        }
        if alone && settings.mode != Mode::Compat {
            return Err(CU_FILE_CUDA_DRIVER_ERROR.into());
        }
        if settings.mode == Mode::Compat && !asked && !compat_allowed(self) {
            self.driver.refused = true;
            return Err(CU_FILE_DRIVER_NOT_INITIALIZED.into());
        }
        let forced = asked || alone;
        let real = settings.mode == Mode::Real && !forced;
        Ok(Opened { bounces: !real, pins: settings.mode != Mode::Compat && !forced, forced })
    }

    /// `cuFileDriverClose`: the last one ends every registration.
    pub(crate) fn close(&mut self) -> Result {
        if self.driver.uses == 0 {
            return Err(CU_FILE_DRIVER_NOT_INITIALIZED.into());
        }
        self.driver.uses -= 1;
        if self.driver.uses == 0 {
            self.driver.opened = None;
            self.files.clear();
            self.buffers.clear();
            self.streams.clear();
            for (_, batch) in self.batches.drain() {
                batch.abandon();
            }
            self.parameters.close();
            self.statistics.close();
        }
        Ok(())
    }
}
