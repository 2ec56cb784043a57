//! A layout onto the disk: streamed in big sequential writes, one thread a file, complete or not at all.
//!
//! Files are written into a folder of their own inside the destination, synced, and only then renamed into place, the index last. What
//! they do not stand in the place of is removed after that, so that nothing old is lost before all of the new is there. An interrupt
//! waits for this; a process that is killed in the middle of it, or a power cut, can leave files of both. The same command replaces them.
//!
//! Memory is one block a thread, whatever the size. Space is reserved first, so that a disk too small says so at once.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, bail};
use bytesize::ByteSize;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::existing;
use super::layout::{Layout, ShardLayout};
use super::stage::stage;
use crate::interrupt::{self, TemporaryFolder};

/// The index's name beside `model-*-of-*.safetensors`.
const INDEX: &str = "model.safetensors.index.json";
/// Bytes a write. Large enough that the system call is free, small enough to stay in the cache between filling and writing.
const BLOCK: usize = 1 << 20;

/// Writes `layout` into `folder`, which is made where it is missing.
///
/// An older synthetic checkpoint there is replaced. Anything else in the folder is refused, except with `force`, which replaces the files
/// and links that a checkpoint of this kind would have (`model*.safetensors` and their index) and leaves all else alone. `on_bytes` is told of
/// bytes as they are written. Returns the files' paths, in the layout's order.
pub(crate) fn write(
    layout: &Layout,
    folder: &Path,
    force: bool,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> anyhow::Result<Vec<PathBuf>> {
    let is_new = !folder.exists();
    fs::create_dir_all(folder).with_context(|| format!("making the folder {}", folder.display()))?;
    let result = stage(folder).and_then(|staging| {
        let old = existing::replaceable(folder, force)?;
        replace(layout, folder, &old, staging, on_bytes)
    });
    if result.is_err() && is_new {
        // Only what is empty goes.
        let _ = fs::remove_dir(folder);
    }
    result
}

fn replace(
    layout: &Layout,
    folder: &Path,
    old: &[PathBuf],
    staging: TemporaryFolder,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> anyhow::Result<Vec<PathBuf>> {
    let index = layout.index()?;
    let shards = layout.shards.iter().map(|shard| shard.file_name.as_str());
    let names: Vec<&str> = shards.clone().chain(index.is_some().then_some(INDEX)).collect();
    existing::check_places(folder, &names)?;
    write_shards(layout, staging.path(), on_bytes)?;
    if let Some(index) = &index {
        write_index(&staging.path().join(INDEX), index)?;
    }
    publish(&names, staging.path(), folder, old)?;
    drop(staging);
    sync(folder)?;
    Ok(shards.map(|name| folder.join(name)).collect())
}

/// Renames the new files into place and removes the old ones beside them.
fn publish(names: &[&str], staging: &Path, folder: &Path, old: &[PathBuf]) -> anyhow::Result<()> {
    let _whole = interrupt::hold_off();
    for name in names {
        let to = folder.join(name);
        fs::rename(staging.join(name), &to).with_context(|| format!("renaming into {}", to.display()))?;
    }
    let is_new = |path: &Path| names.iter().any(|name| path.ends_with(name));
    let mut left = old.iter().filter(|path| !is_new(path)).peekable();
    if left.peek().is_some() {
        sync(folder)?;
    }
    left.try_for_each(|path| {
        fs::remove_file(path).with_context(|| format!("removing {}, which is replaced", path.display()))
    })
}

/// Has the names in `folder` on the disk.
fn sync(folder: &Path) -> anyhow::Result<()> {
    File::open(folder)
        .and_then(|handle| handle.sync_all())
        .with_context(|| format!("syncing the folder {}", folder.display()))
}

/// Writes every shard, as many at a time as there are cores; the first error stops the others at their next block.
fn write_shards(layout: &Layout, folder: &Path, on_bytes: &(dyn Fn(u64) + Sync)) -> anyhow::Result<()> {
    let files = layout
        .shards
        .iter()
        .map(|shard| reserve(&folder.join(&shard.file_name), shard.file_len()))
        .collect::<anyhow::Result<Vec<File>>>()?;
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let work = || -> anyhow::Result<()> {
        let mut block = Block::new(on_bytes, &stop);
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((shard, file)) = layout.shards.get(index).zip(files.get(index)) else { return Ok(()) };
            let written = write_shard(layout, shard, file, &mut block);
            if written.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            written.with_context(|| format!("writing {}", shard.file_name))?;
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let panicked = || Err(anyhow::anyhow!("a writing thread panicked"));
    let outcomes = gds_loader::share_out("gds-synth", cores.min(files.len()), work);
    outcomes.into_iter().try_for_each(|outcome| outcome.unwrap_or_else(panicked))
}

/// Makes a file and has its space set aside, so that a full disk is noticed before gigabytes are written.
fn reserve(path: &Path, len: u64) -> anyhow::Result<File> {
    let file = File::create_new(path).with_context(|| format!("making {}", path.display()))?;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
        // A file system that cannot reserve (NFS, some FUSE) is told to write all the same.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(file),
        Err(error) => {
            let needed = ByteSize(len).display().si();
            Err(std::io::Error::from(error))
                .with_context(|| format!("reserving {needed} for {}", path.display()))
        }
    }
}

fn write_index(path: &Path, index: &[u8]) -> anyhow::Result<()> {
    File::create_new(path)
        .and_then(|mut file| file.write_all(index).and_then(|()| file.sync_all()))
        .with_context(|| format!("writing {}", path.display()))
}

fn write_shard(
    layout: &Layout,
    shard: &ShardLayout,
    file: &File,
    block: &mut Block<'_>,
) -> anyhow::Result<()> {
    block.push(file, shard.header.len() as u64, |offset, into| {
        let offset = offset as usize;
        into.copy_from_slice(&shard.header[offset..offset + into.len()]);
    })?;
    for tensor in &shard.tensors {
        let payload = layout.payload(&tensor.name);
        block.push(file, tensor.len, |offset, into| payload.fill(offset, into))?;
    }
    block.flush(file)?;
    file.sync_all().context("syncing")
}

/// One thread's write buffer: filled in place, written when full.
struct Block<'a> {
    bytes: Box<[u8]>,
    filled: usize,
    on_bytes: &'a (dyn Fn(u64) + Sync),
    stop: &'a AtomicBool,
}

impl<'a> Block<'a> {
    fn new(on_bytes: &'a (dyn Fn(u64) + Sync), stop: &'a AtomicBool) -> Self {
        Self { bytes: vec![0; BLOCK].into(), filled: 0, on_bytes, stop }
    }

    /// Appends `len` bytes, made by `fill(offset within them, destination)`.
    fn push(&mut self, file: &File, len: u64, fill: impl Fn(u64, &mut [u8])) -> anyhow::Result<()> {
        let mut done = 0;
        while done < len {
            let space = &mut self.bytes[self.filled..];
            let part = space.len().min(usize::try_from(len - done).unwrap_or(usize::MAX));
            fill(done, &mut space[..part]);
            self.filled += part;
            done += part as u64;
            if self.filled == self.bytes.len() {
                self.flush(file)?;
            }
        }
        Ok(())
    }

    fn flush(&mut self, mut file: &File) -> anyhow::Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            bail!("stopped because another file could not be written");
        }
        file.write_all(&self.bytes[..self.filled]).map_err(|error| match error.kind() {
            ErrorKind::StorageFull => anyhow::Error::new(error).context("the disk is full"),
            _ => anyhow::Error::new(error),
        })?;
        (self.on_bytes)(self.filled as u64);
        self.filled = 0;
        Ok(())
    }
}
