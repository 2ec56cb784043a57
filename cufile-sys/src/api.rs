//! The table of functions: which must be there, which may, and since when.
//!
//! The first release's functions are required, so that callers need not ask for what every library has. All later ones
//! are `Option`: an older library then costs a feature, not the whole of cuFile. The versions were read off the exports
//! of NVIDIA's libraries (1.11 to 1.20) and, below, off the headers of the CUDA toolkits.

use std::fmt;
use std::path::{Path, PathBuf};

use libloading::os::unix::Library;

use crate::bindings::functions;

/// The release that brought a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Since {
    /// The version of libcufile (major, minor).
    pub cufile: (u16, u16),
    /// The CUDA toolkit it came with (major, minor).
    pub cuda: (u16, u16),
}

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Since { cufile, cuda } = self;
        write!(f, "cuFile {}.{} (CUDA {}.{})", cufile.0, cufile.1, cuda.0, cuda.1)
    }
}

/// A function of the C API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// Its C name.
    pub name: &'static str,
    /// The release that brought it.
    pub since: Since,
    /// Whether a library without it is refused.
    pub required: bool,
}

macro_rules! api {
    (
        required $base_cufile:tt cuda $base_cuda:tt { $($required:ident)* }
        $(since $cufile:tt cuda $cuda:tt { $($optional:ident)* })*
    ) => {
        /// The functions of a loaded libcufile, under their C names.
        ///
        /// All of them are `unsafe`: nothing is checked on the way. What each needs is said in NVIDIA's cuFile API
        /// reference.
        #[allow(non_snake_case, reason = "the names are C's")]
        pub struct Api {
            $(#[doc = concat!("`", stringify!($required), "`, in every library.")]
            pub $required: functions::$required,)*
            $($(#[doc = concat!("`", stringify!($optional), "`, since cuFile ", stringify!($cufile), ".")]
            pub $optional: Option<functions::$optional>,)*)*
            library: PathBuf,
        }

        /// Every function of the header, with the release that brought it.
        pub const FUNCTIONS: &[Function] = &[
            $(Function {
                name: stringify!($required),
                since: Since { cufile: $base_cufile, cuda: $base_cuda },
                required: true,
            },)*
            $($(Function {
                name: stringify!($optional),
                since: Since { cufile: $cufile, cuda: $cuda },
                required: false,
            },)*)*
        ];

        impl Api {
            /// Looks every function up. The error is the name of a required one that is missing.
            ///
            /// # Safety
            /// - `library` stays loaded for the rest of the process.
            /// - Its functions of these names have the signatures of `cufile.h`.
            pub(crate) unsafe fn resolve(library: &Library) -> Result<Api, &'static str> {
                // SAFETY: each pointer type is the one of that function in `cufile.h`, by the caller's promise.
                unsafe {
                    Ok(Api {
                        $($required: symbol(library, stringify!($required)).ok_or(stringify!($required))?,)*
                        $($($optional: symbol(library, stringify!($optional)),)*)*
                        library: PathBuf::new(),
                    })
                }
            }

            /// The functions this library lacks, with the release that brought each.
            pub fn absent(&self) -> Vec<(&'static str, Since)> {
                let mut absent = Vec::new();
                $($(if self.$optional.is_none() {
                    absent.push((stringify!($optional), Since { cufile: $cufile, cuda: $cuda }));
                })*)*
                absent
            }
        }
    };
}

api! {
    required (1, 0) cuda (11, 4) {
        cuFileDriverOpen
        cuFileDriverClose
        cuFileDriverGetProperties
        cuFileDriverSetPollMode
        cuFileDriverSetMaxDirectIOSize
        cuFileDriverSetMaxCacheSize
        cuFileDriverSetMaxPinnedMemSize
        cuFileHandleRegister
        cuFileHandleDeregister
        cuFileBufRegister
        cuFileBufDeregister
        cuFileRead
        cuFileWrite
    }
    since (1, 2) cuda (11, 6) {
        cuFileBatchIOSetUp
        cuFileBatchIOSubmit
        cuFileBatchIOGetStatus
        cuFileBatchIOCancel
        cuFileBatchIODestroy
    }
    since (1, 4) cuda (11, 8) {
        cuFileDriverClose_v2
        cuFileUseCount
    }
    since (1, 7) cuda (12, 2) {
        cuFileStreamRegister
        cuFileStreamDeregister
        cuFileReadAsync
        cuFileWriteAsync
    }
    since (1, 8) cuda (12, 3) {
        cuFileGetVersion
    }
    since (1, 14) cuda (12, 9) {
        cuFileGetParameterSizeT
        cuFileGetParameterBool
        cuFileGetParameterString
        cuFileSetParameterSizeT
        cuFileSetParameterBool
        cuFileSetParameterString
    }
    since (1, 15) cuda (13, 0) {
        cuFileGetParameterMinMaxValue
        cuFileSetStatsLevel
        cuFileGetStatsLevel
        cuFileStatsStart
        cuFileStatsStop
        cuFileStatsReset
        cuFileGetStatsL1
        cuFileGetStatsL2
        cuFileGetStatsL3
        cuFileGetBARSizeInKB
        cuFileSetParameterPosixPoolSlabArray
        cuFileGetParameterPosixPoolSlabArray
    }
    since (1, 16) cuda (13, 1) {
        cuFileDriverGetP2PFlags
        cuFileDriverSetP2PFlags
    }
    since (1, 17) cuda (13, 2) {
        cuFileExportPCIeTopology
        cuFileSetParameterGpuBounceBufferSlabArray
        cuFileGetParameterGpuBounceBufferSlabArray
    }
    since (1, 19) cuda (13, 4) {
        cuFileReadv
        cuFileWritev
    }
}

impl Api {
    /// The file the functions come from, as the dynamic linker names it.
    pub fn library(&self) -> &Path {
        &self.library
    }

    pub(crate) fn with_library(self, library: PathBuf) -> Api {
        Api { library, ..self }
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let absent: Vec<&str> = self.absent().into_iter().map(|(name, _)| name).collect();
        f.debug_struct("Api").field("library", &self.library).field("absent", &absent).finish_non_exhaustive()
    }
}

/// The function called `name`, if the library has it.
///
/// # Safety
/// - `F` is a function pointer type, and the one of that function.
/// - `library` stays loaded for the rest of the process.
unsafe fn symbol<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: an address of 0 becomes `None`; any other is a function of type `F`, by the caller's promise.
    unsafe { library.get::<Option<F>>(name).ok().and_then(|symbol| *symbol) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_is_the_header() {
        let table: BTreeSet<&str> = FUNCTIONS.iter().map(|function| function.name).collect();
        assert_eq!(table, BTreeSet::from(functions::NAMES));
        assert_eq!(table.len(), FUNCTIONS.len(), "a name twice");
        assert_eq!(FUNCTIONS.iter().filter(|function| function.required).count(), 13);
        assert!(FUNCTIONS.is_sorted_by_key(|function| function.since));
    }

    #[test]
    fn since_reads_well() {
        let since = Since { cufile: (1, 15), cuda: (13, 0) };
        assert_eq!(since.to_string(), "cuFile 1.15 (CUDA 13.0)");
    }
}
