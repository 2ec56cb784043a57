//! The loaded library: what can be asked and done without opening the driver.

use std::fmt;
use std::ops::Deref;
use std::path::Path;

use cufile_sys::{Api, CUfileError_t, FUNCTIONS, Since};

use super::driver;
use super::ending::{Calling, calling};
use super::error::{CuFileError, CuFileResult};

/// The process's libcufile. Loading it opens nothing.
#[derive(Clone, Copy)]
pub struct Library {
    api: &'static Api,
}

/// A version of libcufile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(i32);

impl Version {
    /// The number as the library gives it: 1000 × major + 10 × minor.
    pub fn number(self) -> i32 {
        self.0
    }

    /// The major number.
    pub fn major(self) -> i32 {
        self.0 / 1000
    }

    /// The minor number.
    pub fn minor(self) -> i32 {
        self.0 % 1000 / 10
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

impl Library {
    /// Finds and loads libcufile, once per process; see `cufile_sys::Api::load` for where it is looked for.
    ///
    /// # Errors
    /// [`CuFileError::Unavailable`] with every name tried.
    pub fn load() -> CuFileResult<Self> {
        match Api::get() {
            Ok(api) => Ok(Self { api }),
            Err(error) => Err(CuFileError::unavailable(error.to_string())),
        }
    }

    /// The file it was loaded from.
    pub fn path(self) -> &'static Path {
        self.api.library()
    }

    /// Its version; `None` before 1.8, which cannot say, and in the child of a fork.
    pub fn version(self) -> Option<Version> {
        let library = self.enter().ok()?;
        let function = library.cuFileGetVersion?;
        let mut version = 0;
        // SAFETY: `version` is writable for the call.
        unsafe { function(&mut version) }.result().ok()?;
        Some(Version(version))
    }

    /// The functions it lacks, with the release that brought each.
    pub fn missing(self) -> Vec<(&'static str, Since)> {
        self.api.absent()
    }

    /// How many users in this process have the driver open; `None` before 1.4, which cannot say, and in the child of a fork.
    pub fn use_count(self) -> Option<u64> {
        let library = self.enter().ok()?;
        let function = library.cuFileUseCount?;
        // SAFETY: takes nothing and returns a number.
        u64::try_from(unsafe { function() }).ok()
    }

    /// What it has, to look at; to call it, [`Library::enter`].
    pub(super) fn api(self) -> &'static Api {
        self.api
    }

    /// The functions, for calls. Does not return where the process is ending.
    ///
    /// # Errors
    /// [`CuFileError::Forked`] where it was opened before this process was forked.
    pub(super) fn enter(self) -> CuFileResult<Entered> {
        if driver::is_a_parents() {
            return Err(CuFileError::Forked);
        }
        Ok(Entered { library: self, _calling: calling() })
    }

    /// The error for a function that this library lacks.
    fn lacks(self, function: &'static str) -> CuFileError {
        let found = FUNCTIONS.iter().find(|entry| entry.name == function);
        let since = found.map_or(Since { cufile: (1, 0), cuda: (11, 4) }, |entry| entry.since);
        CuFileError::Missing { function, since, library: self.path().to_path_buf() }
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("path", &self.path()).field("version", &self.version()).finish()
    }
}

/// The functions of the library, held while they are called: the end of the process waits for it.
#[must_use = "a function is to be called while this is held"]
pub(super) struct Entered {
    library: Library,
    _calling: Calling,
}

impl Entered {
    /// The error for a function that this library lacks.
    pub(super) fn lacks(&self, function: &'static str) -> CuFileError {
        self.library.lacks(function)
    }
}

impl Deref for Entered {
    type Target = Api;

    fn deref(&self) -> &Api {
        self.library.api
    }
}

/// `need!(library, cuFileGetStatsL1)`: a newer function of an [`Entered`] library, or [`CuFileError::Missing`].
macro_rules! need {
    ($library:expr, $function:ident) => {{
        let library: &$crate::cufile::library::Entered = &$library;
        library.$function.ok_or_else(|| library.lacks(stringify!($function)))
    }};
}
pub(super) use need;

/// The error of a control function's answer, if it is one.
pub(super) fn check(
    call: &'static str,
    answer: CUfileError_t,
    doing: impl FnOnce() -> String,
) -> CuFileResult<()> {
    answer.result().map_err(|failure| CuFileError::Call { call, doing: doing(), failure })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_nvidia_writes_them() {
        for (number, text) in [(1200, "1.20"), (1141, "1.14"), (1080, "1.8"), (2000, "2.0")] {
            assert_eq!(Version(number).to_string(), text);
        }
    }
}
