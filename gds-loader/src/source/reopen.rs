//! The file opened a second time: direct I/O is a property of the descriptor.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens `first` again for reading, with these flags as well: by its path, or by its descriptor where the path leads elsewhere by now.
///
/// # Errors
/// `EINVAL` where the file system refuses the flags; what opening it by its path was refused with, where `/proc` is not there either.
pub(crate) fn reopen(path: &Path, first: &File, flags: libc::c_int) -> io::Result<File> {
    by(path, first, flags).or_else(|error| {
        let leads_elsewhere = [libc::ESTALE, libc::ENOENT, libc::ENOTDIR, libc::ELOOP].map(Some);
        if !leads_elsewhere.contains(&error.raw_os_error()) {
            return Err(error);
        }
        let descriptor = format!("/proc/self/fd/{}", first.as_raw_fd());
        by(descriptor.as_ref(), first, flags).map_err(|_| error)
    })
}

/// `ESTALE` where the path leads to another file than the one whose header was read, of which no byte may be mixed in. That may be a
/// pipe, for whose writer nothing waits.
fn by(path: &Path, first: &File, flags: libc::c_int) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(flags | libc::O_NONBLOCK).open(path)?;
    let (first, second) = (first.metadata()?, file.metadata()?);
    if (first.dev(), first.ino()) != (second.dev(), second.ino()) {
        return Err(io::Error::from_raw_os_error(libc::ESTALE));
    }
    // Regular files have no use for the flag, and io_uring would act on it.
    rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_same_file_is_opened_and_waits_for_its_bytes() {
        let named = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = File::open(named.path()).unwrap();
        let again = reopen(named.path(), &file, libc::O_DIRECT).unwrap();
        let flags = rustix::fs::fcntl_getfl(&again).unwrap();
        assert!(flags.contains(OFlags::DIRECT) && !flags.contains(OFlags::NONBLOCK), "{flags:?}");
    }

    #[test]
    fn a_file_that_was_replaced_or_removed_is_opened_all_the_same() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, [1; 4096]).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for is_there in [false, true] {
            if is_there {
                std::fs::write(&path, [2; 4096]).unwrap();
                assert_eq!(by(&path, &file, 0).unwrap_err().raw_os_error(), Some(libc::ESTALE));
            }
            let again = reopen(&path, &file, libc::O_DIRECT).unwrap();
            assert_eq!(again.metadata().unwrap().ino(), file.metadata().unwrap().ino());
            let mut bytes = Vec::new();
            reopen(&path, &file, 0).unwrap().read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, [1; 4096]);
        }
    }

    #[test]
    fn a_pipe_in_the_place_of_the_file_is_refused_without_waiting() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, [0; 4096]).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for flags in [libc::O_DIRECT, 0] {
            let (said, hear) = mpsc::channel();
            let (path, file) = (path.clone(), file.try_clone().unwrap());
            std::thread::spawn(move || said.send(by(&path, &file, flags).err()));
            let error = hear.recv_timeout(Duration::from_secs(10)).unwrap().unwrap();
            // A pipe knows no direct I/O.
            assert!([libc::ESTALE, libc::EINVAL].map(Some).contains(&error.raw_os_error()), "{error}");
        }
    }
}
