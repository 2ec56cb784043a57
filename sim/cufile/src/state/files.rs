//! Registered files. The descriptor stays the program's: who closes it too early gets what that number is then.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;

use cufile_sys::{
    CU_FILE_DIO_NOT_SET, CU_FILE_HANDLE_ALREADY_REGISTERED, CU_FILE_INVALID_FILE_OPEN_FLAG,
    CU_FILE_INVALID_FILE_TYPE, CU_FILE_INVALID_VALUE,
};

use super::State;
use crate::error::Result;
use crate::ffi::Handle;
use crate::settings::Settings;

/// A registered file.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) fd: RawFd,
    /// Open with `O_DIRECT`.
    pub(crate) direct: bool,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) path: Arc<str>,
}

pub(crate) type Files = HashMap<Handle, File>;

impl File {
    /// Checks what a descriptor refers to.
    pub(crate) fn from_fd(fd: RawFd, settings: &Settings) -> Result<Self> {
        // SAFETY: a call without pointers.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        // SAFETY: an all-zero stat is a valid value of that C struct.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is valid for writing.
        if flags < 0 || unsafe { libc::fstat(fd, &mut stat) } != 0 {
            return Err(CU_FILE_INVALID_VALUE.into());
        }
        if !matches!(stat.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK) {
            return Err(CU_FILE_INVALID_FILE_TYPE.into());
        }
        if flags & (libc::O_APPEND | libc::O_PATH) != 0 {
            return Err(CU_FILE_INVALID_FILE_OPEN_FLAG.into());
        }
        let direct = flags & libc::O_DIRECT != 0;
        // Since 1.7 other descriptors serve as well.
        if !direct && settings.version < (1, 7) {
            return Err(CU_FILE_DIO_NOT_SET.into());
        }
        let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        let access = flags & libc::O_ACCMODE;
        let (readable, writable) = (access != libc::O_WRONLY, access != libc::O_RDONLY);
        Ok(Self { fd, direct, readable, writable, path: path.to_string_lossy().into() })
    }
}

impl State {
    /// Registers a file; each descriptor once.
    pub(crate) fn register_file(&mut self, file: File) -> Result<Handle> {
        if self.files.values().any(|other| other.fd == file.fd) {
            return Err(CU_FILE_HANDLE_ALREADY_REGISTERED.into());
        }
        let handle = self.new_handle();
        self.files.insert(handle, file);
        Ok(handle)
    }
}
