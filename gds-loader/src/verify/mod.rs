//! Reads checkpoints to the last byte without keeping them: what they hold, and whether that is what a manifest says.
//!
//! Nothing is allocated but the slots that are read into, so a checkpoint of any size can be verified on any machine. Files are judged one by one:
//! what is wrong with one hides nothing of another, and one whose header is beyond reading is still compared, tensor by tensor, where
//! the manifest says that its tensors are.

mod report;
mod stream;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use crate::error::{Error, Result};
use crate::facts;
use crate::format::{Header, HeaderLimits};
use crate::manifest::{Builder, Difference, FileLayout, Manifest, What, name_of};
use crate::pipeline::{CancelToken, OnProgress, Progress};
use crate::policy::Backend;
use crate::source::{Keeping, Origin, Resolved, ShardFile, Source, SourceError, open_regular, resolve};

pub use report::VerifyReport;
use stream::Stream;

/// Verifies checkpoints on storage. Built once, used for any number.
///
/// ```no_run
/// use gds_loader::Verifier;
/// use gds_loader::manifest::Manifest;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (manifest, _) = Verifier::new().read("/models/llama")?;
/// manifest.write(Manifest::beside("/models/llama"))?;
/// // After a copy, a year, a crash:
/// let report = Verifier::new().cold(true).check("/models/llama", &manifest)?;
/// report.differences.iter().for_each(|difference| println!("{difference}"));
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Verifier {
    backend: Backend,
    cold: bool,
    on_progress: Option<OnProgress>,
    cancel: CancelToken,
}

/// A file to be read.
#[derive(Debug)]
struct Found {
    path: PathBuf,
    file: ShardFile,
    layout: FileLayout,
    /// When it was last written to, as of before its header was read.
    modified: SystemTime,
}

impl Verifier {
    /// A verifier that reads each file by the best path it has into host memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes this path, or the best one for each file.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Drops the files' pages from the page cache first, so that what is read is what the storage holds. The report says whether
    /// that worked.
    #[must_use]
    pub fn cold(mut self, cold: bool) -> Self {
        self.cold = cold;
        self
    }

    /// Calls `callback` after each read, from the reading threads: it must be quick.
    #[must_use]
    pub fn on_progress(mut self, callback: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.on_progress = Some(Arc::new(callback));
        self
    }

    /// Stops when `token` is cancelled, with [`Error::Cancelled`].
    #[must_use]
    pub fn cancel(mut self, token: CancelToken) -> Self {
        self.cancel = token;
        self
    }

    /// Checks the structure of the model at `path` (headers, lengths, index) and reads every byte of it; the manifest is of
    /// what was read.
    ///
    /// # Errors
    /// Those of opening and reading, the first in the order of the files.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<(Manifest, VerifyReport)> {
        let (path, start) = (path.as_ref(), Instant::now());
        let source = Source::open(path)?;
        let mut files = Vec::with_capacity(source.shards.len() + 1);
        for shard in source.shards {
            let name = name_of(&source.origin, &shard.path);
            let layout = FileLayout::safetensors(name, &shard.header);
            files.push(Found { path: shard.path, file: shard.file, layout, modified: shard.modified });
        }
        if let Origin::Index(index) = &source.origin {
            files.push(other(index, &source.origin)?);
        }
        let (builder, mut stream) = self.stream(path, &files)?;
        if let Some(error) = stream.failures.iter_mut().find_map(Option::take) {
            return Err(error);
        }
        let manifest = builder.finish().map_err(|error| Error::Worker { reason: error.to_string() })?;
        let report = VerifyReport::new(path, &builder, stream, start.elapsed(), Vec::new());
        Ok((manifest, report))
    }

    /// Reads the model at `path` and says everything that is not as in the manifest. Where `path` is one file, what the manifest says
    /// of others does not count.
    ///
    /// # Errors
    /// [`Error::Cancelled`], and what keeps the comparison from being made at all: whatever is wrong with files is a difference in the report.
    pub fn check(&self, path: impl AsRef<Path>, manifest: &Manifest) -> Result<VerifyReport> {
        let (path, start) = (path.as_ref(), Instant::now());
        let mut differences = Vec::new();
        let (origin, paths) = match resolve(path, &HeaderLimits::default()) {
            Ok(Resolved { origin, files, .. }) => (origin, files),
            Err(error @ SourceError::NotFound { .. }) => return Err(error.into()),
            // Which files are meant cannot be told: then those of the manifest are.
            Err(error) => {
                differences.push(unreadable(&path.to_string_lossy(), &error));
                (Origin::Folder(folder_of(path)), Vec::new())
            }
        };
        // By name, since both lists may be as long as a hostile text makes them.
        let places = manifest.places();
        let index = match &origin {
            Origin::Index(index) => Some(index.clone()),
            _ => None,
        };
        let mut named = HashMap::new();
        for path in paths.into_iter().chain(index) {
            let name = name_of(&origin, &path);
            if !places.contains_key(&*name) {
                differences.push(Difference::of_file(&name, What::Extra));
            }
            named.insert(name, path);
        }
        let one_file = matches!(origin, Origin::File);
        let keeping = Keeping::of(path, manifest.files().len())?;
        let mut files = Vec::new();
        for recorded in manifest.files() {
            let path = match named.get(&*recorded.name) {
                Some(path) => path.clone(),
                None if one_file => continue,
                None => match &origin {
                    Origin::Folder(folder) => folder.join(&*recorded.name),
                    Origin::Index(index) => index.with_file_name(&*recorded.name),
                    Origin::File => continue,
                },
            };
            match find(path, recorded.tensors.is_empty(), &keeping) {
                Ok((found, fault)) => {
                    differences.extend(fault.map(|fault| unreadable(&recorded.name, &fault)));
                    let layout = match found.header {
                        Some(header) => FileLayout::safetensors(&*recorded.name, &header),
                        None => FileLayout { len: found.len, ..FileLayout::recorded(recorded) },
                    };
                    differences.extend(recorded.compare_layout(&layout));
                    files.push(Found {
                        path: found.path,
                        file: found.file,
                        layout,
                        modified: found.modified,
                    });
                }
                Err(SourceError::NotFound { .. }) => {
                    differences.push(Difference::of_file(&recorded.name, What::Missing));
                }
                Err(error) => differences.push(unreadable(&recorded.name, &error)),
            }
        }
        // What no file alone can show: an index that names what no shard has, one tensor in two shards.
        if differences.is_empty()
            && let Err(error) = Source::open(path)
        {
            differences.push(unreadable(&path.to_string_lossy(), &error));
        }
        let (builder, stream) = self.stream(path, &files)?;
        for ((layout, sums), failure) in builder.files().iter().zip(builder.sums()).zip(&stream.failures) {
            let Some(recorded) = places.get(&*layout.name).map(|place| &manifest.files()[*place]) else {
                continue;
            };
            let reason = failure
                .as_ref()
                .map_or_else(|| format!("the file ends at byte {}", layout.len), ToString::to_string);
            differences.extend(recorded.compare_bytes(layout, &sums, &reason));
        }
        differences.sort_by_key(|difference| places.get(&*difference.file).copied());
        Ok(VerifyReport::new(path, &builder, stream, start.elapsed(), differences))
    }

    /// Reads every byte of the files.
    fn stream(&self, path: &Path, files: &[Found]) -> Result<(Builder, Stream)> {
        if self.cold {
            for found in files {
                if let Err(error) = found.file.open().and_then(|file| facts::evict(&file)) {
                    tracing::warn!(path = %found.path.display(), %error, "its pages could not be dropped");
                }
            }
        }
        let builder = Builder::new(files.iter().map(|found| found.layout.clone()).collect());
        let stream = stream::read(self, path, files, &builder)?;
        Ok((builder, stream))
    }
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier")
            .field("backend", &self.backend)
            .field("cold", &self.cold)
            .finish_non_exhaustive()
    }
}

/// A file that is there.
struct Opened {
    path: PathBuf,
    file: ShardFile,
    len: u64,
    modified: SystemTime,
    /// None where it cannot be read, and for what is not safetensors.
    header: Option<Header>,
}

/// Opens a file, and says what is wrong with its header.
fn find(path: PathBuf, plain: bool, keeping: &Keeping) -> Result<(Opened, Option<SourceError>), SourceError> {
    let _turn = keeping.turn();
    let file = open_regular(&path)?;
    let known = file.metadata().and_then(|metadata| Ok((metadata.len(), metadata.modified()?)));
    let (len, modified) =
        known.map_err(|error| SourceError::io(&path, "ask for its length and when it was written", error))?;
    let header = if plain && path.extension().is_none_or(|extension| extension != "safetensors") {
        Ok(None)
    } else {
        Header::read(&file, &path, &HeaderLimits::default()).map(Some)
    };
    let (header, fault) = match header {
        Ok(header) => (header, None),
        Err(fault) => (None, Some(fault.into())),
    };
    let file = keeping.keep(file, &path);
    let file =
        file.map_err(|source| SourceError::Io { path: path.clone(), doing: "ask which file it is", source })?;
    Ok((Opened { path, file, len, modified, header }, fault))
}

/// The index, which is read as it is.
fn other(path: &Path, origin: &Origin) -> Result<Found> {
    let (opened, _) = find(path.to_path_buf(), true, &Keeping::of(path, 1)?)?;
    let layout = FileLayout::other(name_of(origin, path), opened.len);
    Ok(Found { path: opened.path, file: opened.file, layout, modified: opened.modified })
}

fn unreadable(file: &str, error: &SourceError) -> Difference {
    Difference::of_file(file, What::Unreadable { reason: error.to_string() })
}

fn folder_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.to_path_buf() } else { path.parent().unwrap_or(Path::new("")).to_path_buf() }
}
