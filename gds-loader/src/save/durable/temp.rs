//! Temporary files: their names, their locks, and writing them to the last byte.
//!
//! A file becomes visible as a checkpoint only under its final name; until then it is `.NAME.gds-tmp-0123456789abcdef` in the same
//! folder, locked by the saver that writes it. Its lock ends with the saver, however that ends; so one that can be locked is dead.
//! A child that a saver forked shares its locks until it runs another program or ends; what they left is removed a save later.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use rustix::io::Errno;

use super::error::PublishError;
use super::folder::{Folder, Named, uninterrupted};
use super::system::{How, Identity, Stat};
use super::target::unique;

const MARK: &str = ".gds-tmp-";
const DIGITS: usize = 16;
/// What every Linux file system takes as a name, in bytes.
pub(super) const LONGEST_NAME: usize = 255;
/// The longest name whose temporary file can tell it.
pub(super) const LONGEST_TOLD: usize = LONGEST_NAME - 1 - MARK.len() - DIGITS;

/// A number that no other save has, to all intents.
pub(super) fn token() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Keys from the operating system; the process's number because a fork would copy them.
    RandomState::new().hash_one((std::process::id(), now.as_nanos()))
}

/// The name of a temporary file for `name`, of which the beginning will do where it is too long.
pub(super) fn temp_name(name: &OsStr, token: u64) -> OsString {
    let bytes = name.as_bytes();
    let mut end = bytes.len().min(LONGEST_TOLD);
    // Not within a character.
    while end > 0 && end < bytes.len() && bytes[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    let mut temp = OsString::from(".");
    temp.push(OsStr::from_bytes(&bytes[..end]));
    temp.push(format!("{MARK}{token:0DIGITS$x}"));
    temp
}

/// What the name of a temporary file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told<'a> {
    /// The name it was made for.
    pub(super) name: &'a OsStr,
    token: u64,
}

impl Told<'_> {
    /// The names that the file may have got, if it was made for a shard.
    pub(super) fn names(&self) -> Vec<String> {
        let name = self.name.to_str().map(|name| [name.to_owned(), unique(name, self.token)]);
        name.into_iter().flatten().collect()
    }
}

/// What `temp` says, if it is the name of a temporary file.
pub(super) fn told_by(temp: &OsStr) -> Option<Told<'_>> {
    let rest = temp.as_bytes().strip_prefix(b".")?;
    let (rest, digits) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
    let name = OsStr::from_bytes(rest.strip_suffix(MARK.as_bytes())?);
    let hexadecimal = digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let token = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    (hexadecimal && !name.is_empty()).then_some(Told { name, token })
}

/// A file being written. Cheap to clone; writing is by position, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct TempFile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: Arc<Folder>,
    name: OsString,
    identity: Identity,
    file: File,
    len: u64,
    short_writes: AtomicU64,
}

impl TempFile {
    /// Creates, locks and reserves a file of `len` bytes that is to be called `name`. `mode` as in open(2).
    pub(super) fn create(
        folder: &Arc<Folder>,
        name: &OsStr,
        token: u64,
        mode: u32,
        len: u64,
    ) -> Result<(Self, Named), PublishError> {
        const ATTEMPTS: u32 = 16;
        let mut attempt = 1;
        loop {
            match Self::try_create(folder, &temp_name(name, token), mode, len) {
                Err(Refusal::Again) if attempt < ATTEMPTS => attempt += 1,
                Err(Refusal::Again) => {
                    return Err(folder.error(name, "create a temporary file for it", Errno::EXIST.into()));
                }
                Err(Refusal::Final(error)) => return Err(error),
                Ok((file, named)) => {
                    file.reserve()?;
                    return Ok((file, named));
                }
            }
        }
    }

    fn try_create(folder: &Arc<Folder>, temp: &OsStr, mode: u32, len: u64) -> Result<(Self, Named), Refusal> {
        let system = &folder.system;
        let failed = |doing, error| Refusal::Final(folder.error(temp, doing, error));
        let fd = match uninterrupted(|| system.create(folder.fd(), temp, mode)) {
            Ok(fd) => fd,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(Refusal::Again),
            Err(error) => return Err(failed("create it", error)),
        };
        let identity = match uninterrupted(|| system.stat_open(fd.as_fd())) {
            Ok(stat) => stat.identity,
            Err(error) => {
                // Its name was free a moment ago, so that it is ours.
                let removed = uninterrupted(|| system.unlink(folder.fd(), temp));
                tracing::debug!(?removed, "a temporary file that could not be looked at");
                return Err(failed("look at it", error));
            }
        };
        let named = Named::new(folder, temp.to_owned(), identity);
        // Where the file system has no locks, nobody finds this file dead.
        let locked = uninterrupted(|| system.lock(fd.as_fd())).unwrap_or(true);
        // Before it was locked, a save that was cleaning up may have found it dead.
        if !locked || !folder.is(temp, identity) {
            return Err(Refusal::Again);
        }
        let short_writes = AtomicU64::new(0);
        let inner = Inner {
            folder: Arc::clone(folder),
            name: temp.to_owned(),
            identity,
            file: File::from(fd),
            len,
            short_writes,
        };
        Ok((Self(Arc::new(inner)), named))
    }

    /// Finds out now whether there is room.
    fn reserve(&self) -> Result<(), PublishError> {
        /// Direct writes end with a whole block.
        const BLOCK: u64 = 4096;
        let len = self.0.len;
        let padded = len.checked_next_multiple_of(BLOCK).unwrap_or(len);
        if let Some(limit) = self.0.folder.system.file_size_limit()
            && padded > limit
        {
            return Err(PublishError::FileSizeLimit { path: self.path(), len: padded, limit });
        }
        if len == 0 {
            return Ok(());
        }
        match uninterrupted(|| self.0.folder.system.reserve(self.0.file.as_fd(), len)) {
            Ok(()) => Ok(()),
            Err(error) if is_unsupported(&error) => Ok(()),
            Err(error) => Err(self.error("reserve space for it", error)),
        }
    }

    /// The file, open for reading and writing through the page cache.
    pub(crate) fn file(&self) -> &File {
        &self.0.file
    }

    /// The length it will have, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.0.len
    }

    /// Its path for now.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.folder.path.join(&self.0.name)
    }

    pub(super) fn identity(&self) -> Identity {
        self.0.identity
    }

    /// Writes that took fewer bytes than they were given, so far.
    pub(crate) fn short_writes(&self) -> u64 {
        self.0.short_writes.load(Ordering::Relaxed)
    }

    /// Opens it again, for `O_DIRECT`. What is written that way may go beyond the end by less than a block.
    ///
    /// # Errors
    /// `EINVAL` where the file system refuses `O_DIRECT`; `ESTALE` where its name means another file by now, into which not a
    /// byte of ours must go: whoever may write the folder may have put there one that only we may write.
    pub(crate) fn open_direct(&self) -> io::Result<File> {
        let folder = &self.0.folder;
        let again = uninterrupted(|| folder.system.open(folder.fd(), &self.0.name, How::Direct))?;
        if uninterrupted(|| folder.system.stat_open(again.as_fd()))?.identity != self.0.identity {
            return Err(Errno::STALE.into());
        }
        Ok(File::from(again))
    }

    /// Writes all of `bytes` at `offset`, through the page cache.
    pub(crate) fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<(), PublishError> {
        self.write_all_by(&self.0.file, bytes, offset)
    }

    /// Writes all of `bytes` at `offset` by a descriptor of this file: its own, or one of [`TempFile::open_direct`], whose
    /// alignment the caller keeps. Where the kernel takes a part that ends within a block, the rest goes through the page cache.
    pub(crate) fn write_all_by(&self, by: &File, bytes: &[u8], offset: u64) -> Result<(), PublishError> {
        let (mut rest, mut at, mut by) = (bytes, offset, by);
        while !rest.is_empty() {
            match uninterrupted(|| self.0.folder.system.write_at(by.as_fd(), rest, at)) {
                Ok(0) => return Err(self.error("write to it", io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    let count = count.min(rest.len());
                    if count < rest.len() {
                        self.0.short_writes.fetch_add(1, Ordering::Relaxed);
                        by = &self.0.file;
                    }
                    rest = &rest[count..];
                    at += count as u64;
                }
                Err(error) => return Err(self.error("write to it", error)),
            }
        }
        Ok(())
    }

    /// Asks for dirty pages of a range to be written to the disk, without waiting; 0 bytes are all from `offset` on. It is a
    /// hint: file systems without it lose nothing.
    pub(crate) fn start_write_back(&self, offset: u64, len: u64) {
        let answer = self.0.folder.system.start_write_back(self.0.file.as_fd(), offset, len);
        if let Err(error) = answer {
            tracing::debug!(file = self.0.file.as_raw_fd(), %error, "starting write-back");
        }
    }

    /// Waits until dirty pages of a range are written to the disk.
    ///
    /// # Errors
    /// Those of the disk: [`TempFile::sync`] does not tell them again. That a file system has no such wait is none.
    pub(crate) fn wait_write_back(&self, offset: u64, len: u64) -> Result<(), PublishError> {
        match uninterrupted(|| self.0.folder.system.wait_write_back(self.0.file.as_fd(), offset, len)) {
            Err(error) if !is_unsupported(&error) && error.raw_os_error() != Some(libc::EINVAL) => {
                Err(self.error("write it to the disk", error))
            }
            _ => Ok(()),
        }
    }

    /// Cuts off what direct writes padded, and gives it mode and owner of `like`.
    pub(super) fn finish(&self, like: Option<&Stat>) -> Result<(), PublishError> {
        let system = &self.0.folder.system;
        let file = self.0.file.as_fd();
        let stat =
            uninterrupted(|| system.stat_open(file)).map_err(|error| self.error("look at it", error))?;
        let (expected, found) = (self.0.len, stat.len);
        if found < expected {
            return Err(PublishError::Length { path: self.path(), expected, found });
        }
        if found > expected {
            uninterrupted(|| system.set_len(file, expected))
                .map_err(|error| self.error("cut it to its length", error))?;
        }
        let Some(like) = like else { return Ok(()) };
        let same_owner = (stat.uid, stat.gid) == (like.uid, like.gid)
            || uninterrupted(|| system.set_owner(file, like.uid, like.gid)).is_ok()
            || stat.gid == like.gid
            || uninterrupted(|| system.set_owner(file, stat.uid, like.gid)).is_ok();
        // What the old file's group might do, another group gets only as far as everybody does.
        let group = if same_owner { 0o070 } else { (like.mode & 0o007) << 3 };
        let mode = like.mode & (0o707 | group);
        uninterrupted(|| system.set_mode(file, mode)).map_err(|error| self.error("set its mode", error))
    }

    /// Waits until its bytes are on the disk. An error is final: the kernel forgets what it could not write, and a second call
    /// would report success.
    pub(super) fn sync(&self) -> Result<(), PublishError> {
        uninterrupted(|| self.0.folder.system.sync(self.0.file.as_fd()))
            .map_err(|error| self.error("sync it to the disk", error))
    }

    /// Asks for errors that the file system has put off.
    pub(super) fn flush(&self) -> Result<(), PublishError> {
        let flushed = uninterrupted(|| self.0.folder.system.flush(self.0.file.as_fd()));
        flushed.map_err(|error| self.error("close it", error))
    }

    fn error(&self, doing: &'static str, error: io::Error) -> PublishError {
        PublishError::io(&self.path(), doing, Some(self.0.len), error)
    }
}

enum Refusal {
    /// The name was taken, or taken away.
    Again,
    Final(PublishError),
}

fn is_unsupported(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::OPNOTSUPP | Errno::NOSYS))
}

#[cfg(test)]
mod tests {
    use super::super::system::Kernel;
    use super::*;

    #[test]
    fn a_temporary_name_tells_what_it_is_for() {
        let temp = temp_name("model.safetensors".as_ref(), 0xab);
        assert_eq!(temp, ".model.safetensors.gds-tmp-00000000000000ab");
        let told = told_by(&temp).unwrap();
        assert_eq!((told.name, told.token), ("model.safetensors".as_ref(), 0xab));
        assert_eq!(told.names(), ["model.safetensors", "model-00000000.safetensors"]);
        let odd = OsStr::from_bytes(b"a\xff.gds-tmp-0.safetensors");
        assert_eq!(told_by(&temp_name(odd, u64::MAX)).unwrap().name, odd);
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        for name in ["x".repeat(255), "é".repeat(127), "€".repeat(85), format!("x{}", "𝄞".repeat(63))] {
            let temp = temp_name(name.as_ref(), 1);
            assert!(temp.len() <= LONGEST_NAME && temp.len() > LONGEST_NAME - 4, "{temp:?}");
            let told = told_by(&temp).unwrap().name;
            assert!(name.starts_with(told.to_str().unwrap()));
        }
        assert_eq!(temp_name("x".repeat(LONGEST_TOLD).as_ref(), 1).len(), LONGEST_NAME);
    }

    #[test]
    fn another_file_under_its_name_is_not_written() {
        let disk = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let folder = Arc::new(Folder::open(Arc::new(Kernel), disk.path()).unwrap());
        let (file, _named) = TempFile::create(&folder, "m".as_ref(), 1, 0o600, 4096).unwrap();
        file.open_direct().unwrap();
        let victim = disk.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        std::fs::remove_file(file.path()).unwrap();
        std::fs::hard_link(&victim, file.path()).unwrap();
        assert_eq!(file.open_direct().unwrap_err().raw_os_error(), Some(libc::ESTALE));
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        std::fs::remove_file(file.path()).unwrap();
        std::os::unix::fs::symlink(&victim, file.path()).unwrap();
        assert_eq!(file.open_direct().unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn other_names_tell_nothing() {
        let none = [
            "",
            ".",
            ".gds-tmp-0123456789abcdef",
            "a.gds-tmp-0123456789abcdef",
            ".a.gds-tmp-0123456789abcde",
            ".a.gds-tmp-0123456789abcdeg",
            ".a.gds-tmp-0123456789ABCDEF",
            ".a.gds-tmp-+123456789abcdef",
            ".a.gds-tmp-0123456789abcdef0",
            ".a.gds-tmp-0123456789abcdef.safetensors",
            ".a-gds-tmp-0123456789abcdef",
            ".a.gds-tmp-éééééééé",
        ];
        for name in none {
            assert_eq!(told_by(name.as_ref()), None, "{name}");
        }
    }

    #[test]
    fn tokens_differ() {
        let tokens: std::collections::HashSet<_> = (0..1000).map(|_| token()).collect();
        assert_eq!(tokens.len(), 1000);
    }
}
