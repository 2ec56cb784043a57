//! Which files a path means.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::error::SourceError;
use super::layout::{self, Layout, LayoutFault};
use super::open::{open_regular, why};
use crate::format::{HeaderLimits, Index, IndexError, Shown, list};

/// Why the files of a source were chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The path given is the file.
    File,
    /// They are the `*.safetensors` of this folder, which has no index.
    Folder(PathBuf),
    /// This index names them.
    Index(PathBuf),
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File => formatter.write_str("the file named"),
            Origin::Folder(folder) => write!(formatter, "the *.safetensors of {}", Shown(folder)),
            Origin::Index(index) => write!(formatter, "those that {} names", Shown(index)),
        }
    }
}

/// The files that a path means.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) origin: Origin,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) index: Option<Index>,
    /// Which state of an index or a folder says so.
    pub(crate) state: Option<State>,
}

/// A file or folder as it was at one moment: it changes with every replacement, even by one of the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    device: u64,
    inode: u64,
    /// Seconds and nanoseconds.
    changed: (i64, i64),
}

impl State {
    /// That of the index or folder; none for a file, which is replaced at once.
    pub(crate) fn now(origin: &Origin) -> Option<Self> {
        match origin {
            Origin::File => None,
            Origin::Folder(path) | Origin::Index(path) => path.metadata().ok().as_ref().map(Self::of),
        }
    }

    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Finds out which files `path` means, reading no file but an index and a reference of the Hugging Face cache.
///
/// Links are followed but names are judged as given: the entries of a Hugging Face snapshot are links to files without a
/// telling name.
pub(crate) fn resolve(path: &Path, limits: &HeaderLimits) -> Result<Resolved, SourceError> {
    let metadata = path.metadata().map_err(|error| why(path, "look at it", error))?;
    if metadata.is_dir() {
        folder(path, limits)
    } else if path.extension().is_some_and(|extension| extension == "json") {
        index(path, limits)
    } else {
        Ok(Resolved { origin: Origin::File, files: vec![path.to_owned()], index: None, state: None })
    }
}

fn folder(path: &Path, limits: &HeaderLimits) -> Result<Resolved, SourceError> {
    let state = State::of(&path.metadata().map_err(|error| why(path, "look at it", error))?);
    match layout::choose(entries(path)?) {
        Ok(Layout::Index(name)) => index(&path.join(name), limits),
        Ok(Layout::Files(names)) => Ok(Resolved {
            origin: Origin::Folder(path.to_owned()),
            files: names.into_iter().map(|name| path.join(name)).collect(),
            index: None,
            state: Some(state),
        }),
        Err(LayoutFault::Ambiguous(groups)) => Err(SourceError::Ambiguous { path: path.to_owned(), groups }),
        Err(LayoutFault::Incomplete { set, missing }) => {
            Err(SourceError::Incomplete { path: path.to_owned(), set, missing })
        }
        Err(LayoutFault::None) if path.join("snapshots").is_dir() => folder(&snapshot(path)?, limits),
        Err(LayoutFault::None) => Err(SourceError::NoWeights { path: path.to_owned(), hint: hint(path) }),
    }
}

/// The names in the folder at `path`.
pub(super) fn entries(path: &Path) -> Result<Vec<OsString>, SourceError> {
    let failed = |error: Errno| SourceError::io(path, "list it", error.into());
    // Not by std's iterator, which panics where closing the folder is an error.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty())).map_err(failed)?;
    let mut names = Vec::new();
    for entry in Dir::new(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

fn hint(path: &Path) -> &'static str {
    let has = |suffix: &str| {
        entries(path)
            .is_ok_and(|names| names.iter().any(|name| name.as_encoded_bytes().ends_with(suffix.as_bytes())))
    };
    if has(".bin") || has(".pt") || has(".pth") {
        ", but PyTorch's pickled weights, which are not read: save them with safetensors.torch.save_file"
    } else if has(".gguf") {
        ", but GGUF weights, which are not read"
    } else {
        ""
    }
}

/// The snapshot that `repository`, a folder of the Hugging Face cache, means: that of its `main`, else the only one.
fn snapshot(repository: &Path) -> Result<PathBuf, SourceError> {
    let problem = |problem: String| SourceError::NoSnapshot { path: repository.to_owned(), problem };
    let snapshots = repository.join("snapshots");
    let reference = repository.join("refs/main");
    if reference.exists() {
        // A revision is 40 digits; whatever is much longer is no reference.
        let (text, _) =
            read_text(&reference, 1000)?.ok_or_else(|| problem("refs/main is no reference".to_owned()))?;
        let revision = String::from_utf8_lossy(&text).trim().to_owned();
        let plain = !revision.is_empty() && revision.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !plain {
            return Err(problem(format!("refs/main holds {revision:?}, which is no revision")));
        }
        let chosen = snapshots.join(&revision);
        return if chosen.is_dir() {
            Ok(chosen)
        } else {
            Err(problem(format!("refs/main names {revision}, of which there is no snapshot")))
        };
    }
    let mut names = entries(&snapshots)?;
    names.sort_unstable();
    match names.as_slice() {
        [only] => Ok(snapshots.join(only)),
        [] => Err(problem("there is none".to_owned())),
        _ => {
            let names = list(names.iter().map(|name| name.to_string_lossy()), ", ");
            Err(problem(format!("there is no refs/main, and there are the snapshots {names}")))
        }
    }
}

/// Reads the index at `path`; its shards lie beside it, beside the link where it is one.
fn index(path: &Path, limits: &HeaderLimits) -> Result<Resolved, SourceError> {
    let fault = |fault| SourceError::Index { path: path.to_owned(), fault };
    let max_bytes = limits.effective();
    let (text, state) = read_text(path, max_bytes)?.ok_or_else(|| {
        let len = path.metadata().map_or(max_bytes, |metadata| metadata.len());
        fault(IndexError::TooLarge { len, max_bytes })
    })?;
    let index = Index::parse(&text).map_err(fault)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    Ok(Resolved {
        origin: Origin::Index(path.to_owned()),
        files: index.files().iter().map(|file| folder.join(&**file)).collect(),
        index: Some(index),
        state: Some(state),
    })
}

/// The whole of a small file and its state, or `None` where it has more than `max_bytes`.
fn read_text(path: &Path, max_bytes: u64) -> Result<Option<(Vec<u8>, State)>, SourceError> {
    let file = open_regular(path)?;
    let metadata = file.metadata().map_err(|error| why(path, "ask for its length", error))?;
    let len = metadata.len();
    if len > max_bytes {
        return Ok(None);
    }
    let mut text = vec![0u8; len as usize];
    file.read_exact_at(&mut text, 0).map_err(|error| why(path, "read it", error))?;
    Ok(Some((text, State::of(&metadata))))
}
