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
}

/// What opening decides until the last close.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    /// Every byte goes through the host.
    pub(crate) bounces: bool,
    /// Compatibility mode was forced by a parameter or the environment.
    pub(crate) forced: bool,
    /// Opening was refused, and a registration opened the driver nevertheless, as NVIDIA's does: registering works,
    /// transfers do not.
    pub(crate) useless: bool,
}

/// Whether opening now would allow compatibility mode.
pub(crate) fn compat_allowed(state: &State) -> bool {
    state.parameters.flag(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE.0).unwrap_or(true)
}

impl State {
    /// `cuFileDriverOpen`.
    pub(crate) fn open(&mut self) -> Result {
        let settings = valid_settings()?;
        if self.driver.opened.is_none() {
            let opened = self.decide(settings)?;
            self.begin(opened);
        }
        self.driver.uses += 1;
        self.statistics.open(self.parameters.size(CUFILE_PARAM_PROFILE_STATS.0)?);
        Ok(())
    }

    /// What registering does first: opens the driver where nobody did.
    pub(crate) fn open_if_closed(&mut self) -> Result {
        let settings = valid_settings()?;
        if self.driver.opened.is_some() {
            return Ok(());
        }
        let refused = Opened { bounces: true, forced: false, useless: true };
        let opened = self.decide(settings).unwrap_or(refused);
        self.begin(opened);
        self.driver.uses = 1;
        Ok(())
    }

    fn begin(&mut self, opened: Opened) {
        self.parameters.take_effect();
        self.driver.opened = Some(opened);
    }

    fn decide(&self, settings: &Settings) -> Result<Opened> {
        let asked = self.parameters.flag(CUFILE_PARAM_FORCE_COMPAT_MODE.0).unwrap_or(settings.force_compat);
        if cuda::driver().is_none() {
            // From 1.15 on the library does without a driver.
            if settings.version < (1, 15) {
                return Err(CU_FILE_NVFS_SETUP_ERROR.into());
            }
            if settings.mode != Mode::Compat {
                return Err(CU_FILE_CUDA_DRIVER_ERROR.into());
            }
        }
        let real = settings.mode == Mode::Real && !asked;
        if settings.mode == Mode::Compat && !asked && !compat_allowed(self) {
            return Err(CU_FILE_DRIVER_NOT_INITIALIZED.into());
        }
        let forced = asked || cuda::driver().is_none();
        Ok(Opened { bounces: !real, forced, useless: false })
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
