//! Which path a file takes, and which path takes over when one fails: the one place that knows them all.
//!
//! Choices are data: [`order`] maps facts to a list of paths, [`is_environmental`] maps a path's error to "this path cannot
//! serve here" or "the data cannot be had". Only the first kind moves a file to its next path; a data error is never hidden.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::facts::{DirectIo, FileFacts, FileSystem, Residency};
use crate::report::Fallback;
use crate::transport::{Buffered, Direct, Mapped, PathKind, ReadFailure, Target, Transport, read_extent};

/// Which path a load takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// The best path for each file, with fallback to the next.
    #[default]
    Auto,
    /// This path or an error, never a silent other one.
    Only(PathKind),
}

/// vLLM's names for its loading strategies, and the path each means here.
const ALIASES: [(&str, PathKind); 3] =
    [("lazy", PathKind::Mmap), ("eager", PathKind::Buffered), ("prefetch", PathKind::Mmap)];

impl FromStr for Backend {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        if name == "auto" {
            return Ok(Self::Auto);
        }
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, kind)| *kind);
        name.parse().ok().or(alias).map(Self::Only).ok_or_else(|| Error::Option {
            option: "backend",
            reason: format!(
                "{name:?} is none of auto, gds, gds-compat, direct, buffered, mmap (nor vLLM's lazy, eager, prefetch)"
            ),
        })
    }
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Only(kind) => kind.fmt(f),
        }
    }
}

/// From this share on, reading through the page cache beats reading the device.
const MOSTLY_RESIDENT: f64 = 0.9;

/// Below this many bytes a file is read buffered: opening it a second time costs more than it saves.
const TINY_FILE: u64 = 1 << 20;

/// The paths `auto` tries for a file with these facts, best first.
fn order(facts: &FileFacts) -> &'static [PathKind] {
    let resident = matches!(facts.residency, Residency::Share(share) if share >= MOSTLY_RESIDENT);
    let in_memory = facts.file_system == FileSystem::Memory;
    if resident || in_memory || facts.len < TINY_FILE || facts.direct_io == DirectIo::Unsupported {
        &[PathKind::Buffered, PathKind::Mmap]
    } else {
        &[PathKind::Direct, PathKind::Buffered, PathKind::Mmap]
    }
}

/// Whether `error` says that `kind` cannot serve here, rather than that the bytes cannot be had.
fn is_environmental(kind: PathKind, error: &io::Error) -> bool {
    let Some(code) = error.raw_os_error() else { return false };
    match kind {
        PathKind::Direct => matches!(code, libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOMEM),
        PathKind::Buffered => matches!(code, libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS),
        PathKind::Mmap => matches!(code, libc::EPERM | libc::EACCES | libc::ENOSYS | libc::ENODEV),
        PathKind::Gds | PathKind::GdsCompat => false,
    }
}

fn open(kind: PathKind, target: &Target<'_>) -> Result<Arc<dyn Transport>, String> {
    match kind {
        PathKind::Direct => match Direct::open(target) {
            Ok(direct) => Ok(Arc::new(direct)),
            Err(error) => Err(format!("opening it with O_DIRECT: {error}")),
        },
        PathKind::Buffered => Ok(Arc::new(Buffered::open(target))),
        PathKind::Mmap => match Mapped::open(target) {
            Ok(mapped) => Ok(Arc::new(mapped)),
            Err(error) => Err(format!("mapping it: {error}")),
        },
        PathKind::Gds | PathKind::GdsCompat => Err("this version of gds-loader has no cuFile path".into()),
    }
}

/// A file and the path it is on, shared by all workers.
#[derive(Debug)]
pub(crate) struct Route {
    path: PathBuf,
    file: Arc<File>,
    len: u64,
    direct_alignment: u64,
    forced: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    transport: Arc<dyn Transport>,
    /// The paths not tried yet.
    rest: &'static [PathKind],
    fallbacks: Vec<Fallback>,
}

impl Route {
    /// Opens the first path that will have the file.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the forced path refuses, or every path does.
    pub(crate) fn open(path: &Path, file: &Arc<File>, facts: &FileFacts, backend: Backend) -> Result<Self> {
        let target = Target { path, file, len: facts.len, direct_alignment: facts.direct_io.alignment() };
        let (order, forced) = match backend {
            Backend::Auto => (order(facts), false),
            Backend::Only(kind) => (only(kind), true),
        };
        let mut fallbacks = Vec::new();
        let (transport, rest) = first_that_opens(&target, order, 0, &mut fallbacks)
            .map_err(|(by, reason)| Error::Unavailable { path: path.to_path_buf(), by, reason })?;
        tracing::debug!(path = %path.display(), by = %transport.kind(), ?facts, "path chosen");
        Ok(Self {
            path: path.to_path_buf(),
            file: Arc::clone(file),
            len: facts.len,
            direct_alignment: target.direct_alignment,
            forced,
            state: Mutex::new(State { transport, rest, fallbacks }),
        })
    }

    /// The file, open for ordinary reads.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Alignment of the extents it is read by, in bytes.
    pub(crate) fn alignment(&self) -> u64 {
        self.transport().alignment()
    }

    /// Alignment its direct reads need, whichever path it is on now.
    pub(crate) fn direct_alignment(&self) -> u64 {
        self.direct_alignment
    }

    /// Its length when opened, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Reads `extent` into the start of `into`, on the file's path or, for an environmental failure, on the next, and
    /// says by which and how many bytes.
    pub(crate) fn read(&self, extent: Range<u64>, into: &mut [u8]) -> Result<(PathKind, u64)> {
        loop {
            let transport = self.transport();
            match read_extent(transport.as_ref(), into, extent.clone(), self.len) {
                Ok(count) => return Ok((transport.kind(), count)),
                Err(failure) => self.fall_back(&transport, extent.start, failure)?,
            }
        }
    }

    /// Fails where the file's length is no longer what it was.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let found = self.file.metadata().map_or(self.len, |metadata| metadata.len());
        if found == self.len {
            return Ok(());
        }
        Err(Error::Changed { path: self.path.clone(), expected: self.len, found })
    }

    /// Each change of path so far.
    pub(crate) fn into_fallbacks(self) -> Vec<Fallback> {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).fallbacks
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Arc::clone(&self.lock().transport)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the file to its next path, once, whichever worker notices first; a data error comes back as it is.
    fn fall_back(&self, failed: &Arc<dyn Transport>, offset: u64, failure: ReadFailure) -> Result<()> {
        let by = failed.kind();
        let reason = match &failure.source {
            Some(error) if is_environmental(by, error) => {
                format!("a read at offset {}: {error}", failure.offset)
            }
            _ => return Err(self.read_error(by, failure)),
        };
        let unavailable = |by, reason| Error::Unavailable { path: self.path.clone(), by, reason };
        if self.forced {
            return Err(unavailable(by, reason));
        }
        let mut state = self.lock();
        if !Arc::ptr_eq(&state.transport, failed) {
            return Ok(());
        }
        let target = Target {
            path: &self.path,
            file: &self.file,
            len: self.len,
            direct_alignment: self.direct_alignment,
        };
        let mut opened = Vec::new();
        let (transport, rest) = first_that_opens(&target, state.rest, offset, &mut opened)
            .map_err(|(next, why)| unavailable(next, format!("{reason}; then {why}")))?;
        let to = opened.first().map_or(transport.kind(), |fallback| fallback.from);
        tracing::info!(path = %self.path.display(), from = %by, %to, reason, "another path takes over");
        state.fallbacks.push(Fallback::new(&self.path, offset, by, to, reason));
        state.fallbacks.append(&mut opened);
        (state.transport, state.rest) = (transport, rest);
        Ok(())
    }

    fn read_error(&self, by: PathKind, failure: ReadFailure) -> Error {
        let ReadFailure { offset, got, expected, source } = failure;
        Error::Read { path: self.path.clone(), by, offset, got, expected, source }
    }
}

/// The list with `kind` alone.
fn only(kind: PathKind) -> &'static [PathKind] {
    let index = kind as usize;
    &PathKind::ALL[index..=index]
}

/// A transport, and the paths that come after it.
type Opened = (Arc<dyn Transport>, &'static [PathKind]);

/// Opens the first of `order` that will have the file, noting each refusal; where all refuse, the last one's reason.
fn first_that_opens(
    target: &Target<'_>,
    order: &'static [PathKind],
    offset: u64,
    fallbacks: &mut Vec<Fallback>,
) -> Result<Opened, (PathKind, String)> {
    let mut refusal = (PathKind::Buffered, "no path is left".to_owned());
    for (index, &kind) in order.iter().enumerate() {
        match open(kind, target) {
            Ok(transport) => return Ok((transport, &order[index + 1..])),
            Err(reason) => {
                if let Some(&to) = order.get(index + 1) {
                    fallbacks.push(Fallback::new(target.path, offset, kind, to, reason.clone()));
                }
                refusal = (kind, reason);
            }
        }
    }
    Err(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn facts(residency: Residency) -> FileFacts {
        FileFacts {
            len: 1 << 30,
            direct_io: DirectIo::Supported { memory: 4, offset: 512 },
            file_system: FileSystem::Local,
            residency,
        }
    }

    #[test]
    fn auto_reads_cold_files_directly_and_warm_ones_buffered() {
        assert_eq!(order(&facts(Residency::Share(0.0)))[0], PathKind::Direct);
        assert_eq!(order(&facts(Residency::Unknown))[0], PathKind::Direct);
        assert_eq!(order(&facts(Residency::Share(1.0)))[0], PathKind::Buffered);
        let cold = facts(Residency::Share(0.0));
        for exception in [
            FileFacts { direct_io: DirectIo::Unsupported, ..cold.clone() },
            FileFacts { file_system: FileSystem::Memory, ..cold.clone() },
            FileFacts { len: 1000, ..cold },
        ] {
            assert_eq!(order(&exception)[0], PathKind::Buffered, "{exception:?}");
        }
    }

    #[test]
    fn a_path_of_looser_alignment_always_comes_later() {
        for residency in [Residency::Share(0.0), Residency::Share(1.0)] {
            let order = order(&facts(residency));
            assert!(
                !order[1..].contains(&PathKind::Direct),
                "extents cut for buffered reads need not be aligned"
            );
        }
    }

    #[test]
    fn names_and_aliases_parse_and_others_are_refused() {
        assert_eq!("auto".parse::<Backend>().unwrap(), Backend::Auto);
        for kind in PathKind::ALL {
            assert_eq!(kind.as_str().parse::<Backend>().unwrap(), Backend::Only(kind));
        }
        assert_eq!("eager".parse::<Backend>().unwrap(), Backend::Only(PathKind::Buffered));
        assert!("fast".parse::<Backend>().unwrap_err().to_string().contains("gds-compat"));
    }

    /// Fails as scripted, then serves zeros.
    #[derive(Debug)]
    struct Failing(PathKind, Mutex<VecDeque<i32>>);

    impl Transport for Failing {
        fn kind(&self) -> PathKind {
            self.0
        }

        fn alignment(&self) -> u64 {
            1
        }

        fn read_at(&self, into: &mut [u8], _: u64) -> io::Result<usize> {
            into.fill(0);
            match self.1.lock().unwrap().pop_front() {
                Some(code) => Err(io::Error::from_raw_os_error(code)),
                None => Ok(into.len()),
            }
        }
    }

    /// A route over a real file of 8,192 times 7, on a direct path that fails with `codes`.
    fn route(codes: &[i32], forced: bool) -> Route {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 8192], 0).unwrap();
        let transport = Arc::new(Failing(PathKind::Direct, Mutex::new(codes.iter().copied().collect())));
        Route {
            path: "x".into(),
            file: Arc::new(file),
            len: 8192,
            direct_alignment: 512,
            forced,
            state: Mutex::new(State {
                transport,
                rest: &[PathKind::Buffered, PathKind::Mmap],
                fallbacks: Vec::new(),
            }),
        }
    }

    #[test]
    fn a_refused_direct_read_moves_the_file_once_and_the_bytes_are_right() {
        let route = route(&[libc::EINVAL; 5], false);
        let mut into = [0; 4096];
        for offset in [0, 4096] {
            assert_eq!(route.read(offset..offset + 4096, &mut into).unwrap(), (PathKind::Buffered, 4096));
            assert_eq!(into, [7; 4096]);
        }
        let fallbacks = route.into_fallbacks();
        assert_eq!(fallbacks.len(), 1);
        assert_eq!((fallbacks[0].from, fallbacks[0].to), (PathKind::Direct, PathKind::Buffered));
    }

    #[test]
    fn a_data_error_is_never_hidden_by_another_path() {
        let route = route(&[libc::EIO], false);
        let error = route.read(0..4096, &mut [0; 4096]).unwrap_err();
        assert!(matches!(&error, Error::Read { by: PathKind::Direct, offset: 0, .. }), "{error}");
        assert!(route.into_fallbacks().is_empty());
    }

    #[test]
    fn a_forced_path_never_falls_back() {
        let error = route(&[libc::EINVAL], true).read(0..4096, &mut [0; 4096]).unwrap_err();
        assert!(matches!(&error, Error::Unavailable { by: PathKind::Direct, .. }), "{error}");
    }
}
