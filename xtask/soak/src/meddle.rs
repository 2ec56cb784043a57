//! What others do to a model's files while it is loaded.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::model::Model;

/// What they do, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meddling {
    Nothing,
    /// The files' pages are dropped from the page cache, and, where allowed, every clean page of the machine each second.
    DropPages,
    /// Bytes are appended, and cut off again.
    Append,
    /// The second half is cut off, and written again.
    Truncate,
    /// The other version is written over it, as `cp` does it and in place, in turn.
    Rewrite,
    /// The other version is renamed over it.
    Replace,
    /// A set of shards is replaced by the other version's: new files, then the index, then the old ones go.
    ReplaceSet,
}

impl Meddling {
    /// The versions that are there in turn.
    pub(crate) fn versions(self) -> Vec<u32> {
        match self {
            Self::Rewrite | Self::Replace | Self::ReplaceSet => vec![0, 1],
            _ => vec![0],
        }
    }
}

/// How many writes to a model's file have ended: a number in a file beside it, kept by who writes and read by who loads.
pub(crate) struct Writes(File);

impl Writes {
    pub(crate) fn of(model: &Model) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let path = model.path.with_extension("writes");
        options.read(true).write(true).create(true).truncate(false).open(path).map(Self)
    }

    fn so_far(&self) -> u64 {
        let mut count = [0; 8];
        // Not there yet is none yet.
        let _ = self.0.read_at(&mut count, 0);
        u64::from_le_bytes(count)
    }

    fn one_more(&self) -> io::Result<()> {
        self.0.write_all_at(&(self.so_far() + 1).to_le_bytes(), 0)
    }
}

/// Looks at the count whenever bytes of a load have arrived.
///
/// A writer may rest in the midst of its work for as long as a load takes. Then the file has two versions and does not change,
/// which no reader can notice; a write that begins and ends while a load runs is noticed, or the load is wrong.
pub(crate) struct Watch {
    writes: Writes,
    first: OnceLock<u64>,
    last: AtomicU64,
}

impl Watch {
    pub(crate) fn of(model: &Model) -> io::Result<Self> {
        Ok(Self { writes: Writes::of(model)?, first: OnceLock::new(), last: AtomicU64::new(0) })
    }

    pub(crate) fn look(&self) {
        let count = self.writes.so_far();
        self.first.get_or_init(|| count);
        self.last.fetch_max(count, Ordering::Relaxed);
    }

    /// Whether a write certainly began and ended between the first look and the last: of two that ended, the second one did.
    pub(crate) fn saw_a_write(&self) -> bool {
        self.first.get().is_some_and(|first| self.last.load(Ordering::Relaxed) >= first + 2)
    }
}

/// Bytes of one write in place.
const CHUNK: usize = 64 << 10;

/// Meddles with `model` until told to stop; how often.
pub(crate) fn meddle(what: Meddling, model: &Model, stop: &AtomicBool) -> io::Result<u64> {
    let whole: Vec<Vec<u8>> = match what {
        Meddling::Truncate | Meddling::Rewrite | Meddling::Replace => {
            model.versions.iter().map(|&version| model.file(0, version)).collect()
        }
        _ => Vec::new(),
    };
    let writes = Writes::of(model)?;
    let mut dropped = Instant::now();
    let mut count = 0;
    while what != Meddling::Nothing && !stop.load(Ordering::Relaxed) {
        count += 1;
        let path = &model.path;
        match what {
            Meddling::Nothing => {}
            Meddling::DropPages => {
                model.files().iter().try_for_each(|file| drop_pages(file))?;
                if dropped.elapsed() >= Duration::from_secs(1) {
                    dropped = Instant::now();
                    // Where it is not allowed, the files' own pages are dropped still.
                    let _ = fs::write("/proc/sys/vm/drop_caches", "1");
                }
                thread::sleep(Duration::from_millis(2));
                continue;
            }
            Meddling::Append => append(path)?,
            Meddling::Truncate => truncate(path, &whole[0], &writes)?,
            Meddling::Rewrite => rewrite(path, &whole[(count % 2) as usize], count % 4 < 2, &writes)?,
            Meddling::Replace => replace(path, &whole[(count % 2) as usize])?,
            Meddling::ReplaceSet => {
                let version = (count % 2) as u32;
                model.write_set(version)?;
                model.remove_set(1 - version)?;
            }
        }
        // Left alone for as long as some loads take, and not for as long as all do.
        thread::sleep(Duration::from_millis([2, 15, 40, 120][(count % 4) as usize]));
    }
    Ok(count)
}

fn drop_pages(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    // SAFETY: a system call on an open descriptor, without pointers.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

fn append(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(path)?;
    let len = file.metadata()?.len();
    file.write_all(&[0xee; 5000])?;
    thread::sleep(Duration::from_millis(3));
    file.set_len(len)
}

fn truncate(path: &Path, whole: &[u8], writes: &Writes) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let half = whole.len() / 2;
    file.set_len(half as u64)?;
    thread::sleep(Duration::from_millis(1));
    // First it is as long as it was, and all zeros.
    file.set_len(whole.len() as u64)?;
    write_from(&file, whole, half, writes)
}

fn rewrite(path: &Path, whole: &[u8], from_nothing: bool, writes: &Writes) -> io::Result<()> {
    let file = OpenOptions::new().write(true).truncate(from_nothing).open(path)?;
    write_from(&file, whole, 0, writes)
}

fn write_from(file: &File, whole: &[u8], from: usize, writes: &Writes) -> io::Result<()> {
    let mut at = from;
    for chunk in whole[from..].chunks(CHUNK) {
        file.write_all_at(chunk, at as u64)?;
        writes.one_more()?;
        at += chunk.len();
    }
    Ok(())
}

fn replace(path: &Path, whole: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    fs::write(&unfinished, whole)?;
    fs::rename(unfinished, path)
}
