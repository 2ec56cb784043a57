//! Finding and opening the library.
//!
//! A library once opened stays for ever (`RTLD_NODELETE`, and its handle is never closed): libcufile has threads of its
//! own and has crashed programs that unloaded it. Symbols are bound at once, so that a broken library fails here and not
//! in the middle of a read, and stay local, so that they cannot stand in for those of another copy.

use std::ffi::{CStr, OsStr, OsString, c_char, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

use libc::{RTLD_LOCAL, RTLD_NODELETE, RTLD_NOLOAD, RTLD_NOW};
use libloading::os::unix::Library;

use crate::api::Api;
use crate::elf::cut_short;
use crate::search::{self, Candidate, LIBRARY_VARIABLE, Surroundings};

/// A name that was tried, and why it did not serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The name or path.
    pub name: String,
    /// What went wrong, in the dynamic linker's words where it was asked.
    pub reason: String,
}

/// Why there is no [`Api`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// No library could be opened.
    NotFound {
        /// Every name tried, in order.
        attempts: Vec<Attempt>,
    },
    /// A library was opened that lacks a function every libcufile has.
    MissingSymbol {
        /// The library.
        library: PathBuf,
        /// The first function it lacks.
        symbol: &'static str,
    },
    /// The path given is relative, and so would depend on the working directory.
    RelativePath {
        /// The path.
        path: PathBuf,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::NotFound { attempts } => {
                f.write_str("libcufile could not be loaded; tried")?;
                for Attempt { name, reason } in attempts {
                    write!(f, "\n  {name}: {reason}")?;
                }
                write!(
                    f,
                    "\n  install it (CUDA toolkit, or nvidia-cufile from PyPI) or name it in {LIBRARY_VARIABLE}"
                )
            }
            LoadError::MissingSymbol { library, symbol } => {
                write!(f, "{} is no libcufile: it has no function {symbol}", library.display())
            }
            LoadError::RelativePath { path } => write!(
                f,
                "{} is a relative path: name libcufile by an absolute one (in {LIBRARY_VARIABLE} or the call), so that \
                 the working directory does not decide what is loaded",
                path.display()
            ),
        }
    }
}

impl std::error::Error for LoadError {}

impl Api {
    /// The process's libcufile: searched for at the first call, with [`Api::load`], then kept, found or not.
    ///
    /// # Errors
    /// As for [`Api::load`].
    pub fn get() -> Result<&'static Api, &'static LoadError> {
        static API: OnceLock<Result<Api, LoadError>> = OnceLock::new();
        API.get_or_init(Api::load).as_ref()
    }

    /// Searches for libcufile and loads the first one that opens.
    ///
    /// Where the environment variable `GDS_CUFILE_LIBRARY` is set and not empty, it names the library by an absolute
    /// path, and no other is tried. Else these are tried in turn: the names `libcufile.so.0`, `libcufile.so.1` and
    /// `libcufile.so`, as the dynamic linker finds them; the CUDA toolkit's and the system's library folders; NVIDIA's
    /// packages (`nvidia/cu13/lib`, `nvidia/cufile/lib`) in the active Python environment and the usual site-packages. The
    /// working directory is never looked in, nor is a folder of stubs.
    ///
    /// Opening a library runs its code. Like every program's, the environment of this one decides which that is, and is
    /// trusted to name a libcufile; unless the program runs with more rights than its caller has (set-user-ID, file
    /// capabilities): then no variable is heeded, as by the dynamic linker.
    ///
    /// # Errors
    /// [`LoadError::NotFound`] lists every name tried and why it failed; [`LoadError::MissingSymbol`] where the only
    /// libraries found lack functions that all have; [`LoadError::RelativePath`] where the variable holds a relative path.
    pub fn load() -> Result<Api, LoadError> {
        // What runs with more rights than whoever started it has, must not load what that one names.
        let trusted = !search::has_more_rights();
        let variable = |name: &str| std::env::var_os(name).filter(|_| trusted);
        if let Some(path) = variable(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
            // SAFETY: the environment is trusted to name a libcufile.
            return unsafe { Api::load_from(Path::new(&path)) };
        }
        let linker_path = if trusted { search::linker_path() } else { OsString::new() };
        let surroundings = Surroundings { variable: &variable, linker_path, root: Path::new("/") };
        let (mut attempts, mut no_libcufile) = (Vec::new(), None);
        for candidate in surroundings.candidates() {
            let (name, flags) = match &candidate {
                Candidate::Name(name) => (OsStr::new(name), FLAGS),
                Candidate::Loaded(name) => (OsStr::new(name), FLAGS | RTLD_NOLOAD),
                Candidate::File(path) => match cut_short(path) {
                    None => (path.as_os_str(), FLAGS),
                    Some(reason) => {
                        attempts.push(Attempt { name: path.to_string_lossy().into_owned(), reason });
                        continue;
                    }
                },
                Candidate::Nothing(name, reason) => {
                    attempts.push(Attempt { name: name.clone(), reason: (*reason).into() });
                    continue;
                }
            };
            // SAFETY: the system's folders and the environment are trusted to hold a libcufile under its name.
            match unsafe { open(name, flags) } {
                // SAFETY: as above.
                Ok(library) => match unsafe { resolve(library, Path::new(name)) } {
                    Ok(api) => return Ok(api),
                    Err(error) => {
                        let (name, reason) = (name.to_string_lossy().into_owned(), error.to_string());
                        attempts.push(Attempt { name, reason });
                        no_libcufile.get_or_insert(error);
                    }
                },
                Err(error) if flags == FLAGS => attempts.push(attempt(name, &error)),
                Err(_) => attempts.push(Attempt {
                    name: name.to_string_lossy().into_owned(),
                    reason:
                        "not looked up by name, since LD_LIBRARY_PATH has an empty or relative entry, which \
                             means the working directory, or one of stubs, or a file of that name is cut short; and not \
                             loaded already"
                            .into(),
                }),
            }
        }
        Err(no_libcufile.unwrap_or(LoadError::NotFound { attempts }))
    }

    /// Loads the library at `path`, an absolute path, and no other.
    ///
    /// # Errors
    /// As for [`Api::load`].
    ///
    /// # Safety
    /// - The file's initialisers may run in this process.
    /// - Where it has functions of cuFile's names, they have the signatures of `cufile.h`.
    pub unsafe fn load_from(path: &Path) -> Result<Api, LoadError> {
        if !path.is_absolute() {
            return Err(LoadError::RelativePath { path: path.into() });
        }
        if let Some(reason) = cut_short(path) {
            let name = path.to_string_lossy().into_owned();
            return Err(LoadError::NotFound { attempts: vec![Attempt { name, reason }] });
        }
        // SAFETY: by the caller's first promise.
        let library = unsafe { open(path.as_os_str(), FLAGS) }
            .map_err(|error| LoadError::NotFound { attempts: vec![attempt(path.as_os_str(), &error)] })?;
        // SAFETY: by the caller's second promise.
        unsafe { resolve(library, path) }
    }
}

const FLAGS: i32 = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;

/// # Safety
/// - The library's initialisers may run in this process.
unsafe fn open(name: &OsStr, flags: i32) -> Result<Library, libloading::Error> {
    // SAFETY: by the caller's promise.
    unsafe { Library::open(Some(name), flags) }
}

fn attempt(name: &OsStr, error: &libloading::Error) -> Attempt {
    // The source holds the dynamic linker's words.
    let reason = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    Attempt { name: name.to_string_lossy().into_owned(), reason }
}

/// The table of an opened library. `opened_as` names it where the dynamic linker does not.
///
/// # Safety
/// - Where the library has functions of cuFile's names, they have the signatures of `cufile.h`.
unsafe fn resolve(library: Library, opened_as: &Path) -> Result<Api, LoadError> {
    // Never closed: nor may the count of its users fall to 0, since that runs its finalisers.
    let handle = library.into_raw();
    let path = path_of(handle).unwrap_or_else(|| opened_as.into());
    // SAFETY: the handle was this library's a moment ago, and nothing closes it.
    let library = ManuallyDrop::new(unsafe { Library::from_raw(handle) });
    // SAFETY: the library stays loaded, as above; the rest is the caller's promise.
    match unsafe { Api::resolve(&library) } {
        Ok(api) => Ok(api.with_library(path)),
        Err(symbol) => Err(LoadError::MissingSymbol { library: path, symbol }),
    }
}

/// The beginning of glibc's `struct link_map`, which is all of it that is public.
#[repr(C)]
struct LinkMap {
    load_address: usize,
    name: *const c_char,
}

/// The file that the library behind `handle` was loaded from.
fn path_of(handle: *mut c_void) -> Option<PathBuf> {
    let mut map: *const LinkMap = ptr::null();
    // SAFETY: the handle is open; for this request dlinfo stores one pointer, to the library's link map.
    let failed = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) } != 0;
    if failed || map.is_null() {
        return None;
    }
    // SAFETY: the map and its name live as long as the library, which is never closed.
    let name = unsafe { (*map).name };
    if name.is_null() {
        return None;
    }
    // SAFETY: as above; it is a C string.
    let name = unsafe { CStr::from_ptr(name) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes()))).filter(|path| path.is_absolute())
}
