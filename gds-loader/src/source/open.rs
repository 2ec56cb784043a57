//! Opening regular files, and saying exactly why where that fails.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::error::SourceError;

/// Opens the regular file at `path` for reading; symbolic links are followed.
///
/// What is no regular file is not opened where that can be avoided, since opening a device may act on it, and never blocks,
/// as opening a pipe without a writer would.
pub(crate) fn open_regular(path: &Path) -> Result<File, SourceError> {
    refuse_other(path, path.metadata().map_err(|error| why(path, "look at it", error))?.file_type())?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)
        .map_err(|error| why(path, "open it", error))?;
    // What is at the path may have been replaced in between.
    let metadata = file.metadata().map_err(|error| why(path, "ask what it is", error))?;
    refuse_other(path, metadata.file_type())?;
    // Regular files have no use for the flag, and io_uring would act on it.
    let flags = rustix::fs::fcntl_getfl(&file).map_err(|error| why(path, "ask its flags", error.into()))?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)
        .map_err(|error| why(path, "set its flags", error.into()))?;
    Ok(file)
}

fn refuse_other(path: &Path, kind: FileType) -> Result<(), SourceError> {
    let found = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a named pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "something else",
    };
    Err(SourceError::NotAFile { path: path.to_owned(), found })
}

/// The error for `path`, telling apart what is not there from links that lead nowhere.
pub(super) fn why(path: &Path, doing: &'static str, error: io::Error) -> SourceError {
    let target = std::fs::read_link(path).ok();
    match (target, error.kind()) {
        (Some(target), io::ErrorKind::NotFound) => {
            SourceError::DanglingLink { link: path.to_owned(), target }
        }
        (Some(target), _) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            SourceError::LinkLoop { link: path.to_owned(), target }
        }
        (None, io::ErrorKind::NotFound) => SourceError::NotFound { path: path.to_owned() },
        _ => SourceError::io(path, doing, error),
    }
}
