//! Files, open and registered with the library.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cufile_sys as sys;
use rustix::fs::OFlags;

use super::driver::{Driver, Release};
use super::error::{CuFileError, CuFileResult};

/// A file that cuFile reads and writes. Cheap to clone, and shared by threads; deregistered and closed with the last
/// clone. Operations in flight hold one.
#[derive(Clone)]
pub struct CuFile {
    inner: Arc<Inner>,
}

struct Inner {
    driver: Driver,
    /// Stays open where the library may still use it.
    file: ManuallyDrop<File>,
    path: PathBuf,
    direct: bool,
    handle: sys::CUfileHandle_t,
}

// SAFETY: the handle is a token of the library, which any thread may use; it is never dereferenced here.
unsafe impl Send for Inner {}
// SAFETY: as above; the library's reads and writes of one handle may run at the same time.
unsafe impl Sync for Inner {}

impl CuFile {
    /// Opens a file for reading: with `O_DIRECT`, or without where the file system refuses that and the library is new
    /// enough (1.7) for plain files. [`CuFile::is_direct`] says which.
    ///
    /// # Errors
    /// [`CuFileError::File`] where it cannot be opened; [`CuFileError::Call`] where the library does not take it: with
    /// code 5027 or 5030 where the file system does not serve, or its disk has no udev record.
    pub fn open(driver: &Driver, path: impl AsRef<Path>) -> CuFileResult<Self> {
        Self::open_with(driver, path, OpenOptions::new().read(true))
    }

    /// Opens a file by `options`, whose custom flags are replaced by `O_DIRECT`, where possible.
    ///
    /// # Errors
    /// As for [`CuFile::open`].
    pub fn open_with(driver: &Driver, path: impl AsRef<Path>, options: &OpenOptions) -> CuFileResult<Self> {
        driver.health()?;
        let path = path.as_ref();
        let failed = |source| CuFileError::File { doing: "opening it for cuFile", path: path.into(), source };
        let direct = options.clone().custom_flags(libc::O_DIRECT).open(path);
        let file = match direct {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && serves_plain_files(driver) => {
                options.clone().custom_flags(0).open(path).map_err(failed)?
            }
            file => file.map_err(failed)?,
        };
        Self::register(driver, file, path)
    }

    /// Registers an open file. `path` is for messages.
    ///
    /// # Errors
    /// As for [`CuFile::open`]; [`CuFileError::Usage`] for a file without `O_DIRECT` where the library is too old for it.
    pub fn register(driver: &Driver, file: File, path: impl Into<PathBuf>) -> CuFileResult<Self> {
        const CALL: &str = "cuFileHandleRegister";
        let path = path.into();
        let flags = rustix::fs::fcntl_getfl(&file).map_err(|errno| CuFileError::File {
            doing: "reading its flags",
            path: path.clone(),
            source: errno.into(),
        })?;
        let direct = flags.contains(OFlags::DIRECT);
        if !direct && !serves_plain_files(driver) {
            return Err(CuFileError::usage(format!(
                "{} must be open with O_DIRECT for a libcufile before 1.7",
                path.display()
            )));
        }
        let library = driver.enter()?;
        let mut handle: sys::CUfileHandle_t = std::ptr::null_mut();
        let mut description = sys::CUfileDescr_t {
            type_: sys::CU_FILE_HANDLE_TYPE_OPAQUE_FD,
            handle: sys::CUfileDescr_handle { fd: file.as_raw_fd() },
            ..Default::default()
        };
        // SAFETY: both are writable for the call, and the descriptor is open; it stays so until the handle is
        // deregistered, since this value owns the file.
        let answer = unsafe { (library.cuFileHandleRegister)(&mut handle, &mut description) };
        answer
            .result()
            .map_err(|failure| driver.refused(CALL, failure, format!("registering {}", path.display())))?;
        let (driver, file) = (driver.clone(), ManuallyDrop::new(file));
        Ok(Self { inner: Arc::new(Inner { driver, file, path, direct, handle }) })
    }

    /// The driver it is registered with.
    pub fn driver(&self) -> &Driver {
        &self.inner.driver
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.inner.file
    }

    /// Whether it is open with `O_DIRECT`. A file that is not is read through the page cache, unless the request is
    /// aligned and the library opens it anew for that.
    pub fn is_direct(&self) -> bool {
        self.inner.direct
    }

    pub(super) fn handle(&self) -> sys::CUfileHandle_t {
        self.inner.handle
    }
}

/// Since 1.7 (CUDA 12.2) files need not be open with `O_DIRECT`. The functions of that release tell, since releases
/// before 1.8 have no version.
fn serves_plain_files(driver: &Driver) -> bool {
    driver.library().api().cuFileReadAsync.is_some()
}

impl Drop for Inner {
    fn drop(&mut self) {
        match self.driver.enter_to_release() {
            // SAFETY: registered once, and deregistered once, here; operations in flight would hold a clone.
            Release::By(library) => unsafe { (library.cuFileHandleDeregister)(self.handle) },
            Release::Released => {}
            Release::Leak => return,
        }
        // SAFETY: not used again, since this is the destructor.
        unsafe { ManuallyDrop::drop(&mut self.file) }
    }
}

impl fmt::Debug for CuFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CuFile").field("path", &self.inner.path).field("direct", &self.inner.direct).finish()
    }
}
