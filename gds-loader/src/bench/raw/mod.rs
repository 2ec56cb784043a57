//! Reading any files in blocks, and nothing else: what storage can do, as gdsio and fio measure it.
//!
//! No headers, no plan, no tensors. The blocks of all files are one queue, from which every thread takes the next; so a slow thread
//! holds up nobody, and the whole is read once whatever the number of threads. gdsio gives each thread a part of its own instead.

mod blocks;
mod cufile;
mod sink;
mod threads;
mod uring;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use cuda_staging::Device;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::facts::{self, DirectIo};
use crate::plan::align_down;
use crate::report::{CacheReport, DeviceReport, GdsReport, cpu_time, gb_per_s, share_of};
use crate::transport::{Engine, PathKind, ReadCause};

use blocks::{Block, Blocks};

/// In which order blocks are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// As they lie in the files.
    Sequential,
    /// Shuffled, each once before any a second time.
    Random {
        /// The same seed gives the same order.
        seed: u64,
    },
}

/// How to read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RawOptions {
    /// By which path: `direct`, `buffered`, `gds` or `gds-compat`.
    pub path: PathKind,
    /// Who keeps reads of `direct` and `buffered` in flight.
    pub engine: Engine,
    /// Bytes of a read.
    pub block_size: u64,
    /// Threads.
    pub threads: usize,
    /// Reads in flight by each thread: more than one by io_uring only.
    pub depth: usize,
    /// In which order.
    pub pattern: Pattern,
    /// Stop after so long, going round if need be; without it, everything is read once.
    pub time: Option<Duration>,
    /// Where to.
    pub device: Device,
    /// Drop the files from the page cache first.
    pub cold: bool,
}

impl RawOptions {
    /// `direct` reads of everything once, in order, into host memory that is used again and again: the storage's limit.
    pub fn new(device: Device) -> Self {
        Self {
            path: PathKind::Direct,
            engine: Engine::Auto,
            block_size: 4 << 20,
            threads: 4,
            depth: 4,
            pattern: Pattern::Sequential,
            time: None,
            device,
            cold: true,
        }
    }
}

/// What reading in blocks gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RawReport {
    /// By which path.
    pub path: PathKind,
    /// Who kept reads in flight: `threads` or `io-uring`.
    pub engine: String,
    /// Why not io_uring, where that was the first choice.
    pub engine_reason: Option<String>,
    /// Where to.
    pub device: DeviceReport,
    /// Bytes of a read.
    pub block_size: u64,
    /// Threads.
    pub threads: usize,
    /// Reads in flight by each thread.
    pub depth: usize,
    /// In which order.
    pub pattern: Pattern,
    /// Files.
    pub files: usize,
    /// Their bytes.
    pub file_bytes: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Reads.
    pub operations: u64,
    /// From the first read to the end of the last, and of its copy. Opening, allocating, pinning and registering are not in it.
    pub seconds: f64,
    /// `bytes / seconds / 10^9`.
    pub gb_per_s: f64,
    /// `operations / seconds`.
    pub operations_per_s: f64,
    /// How long single reads took.
    pub latency: Latency,
    /// User and system time of the process meanwhile, in seconds.
    pub cpu_s: f64,
    /// Host memory pinned, in bytes.
    pub pinned_bytes: u64,
    /// The page cache before and after.
    pub cache: CacheReport,
    /// For `gds`, what cuFile's own statistics say.
    pub gds: Option<GdsReport>,
}

/// How long reads took, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Latency {
    /// On average, as gdsio says.
    pub mean_us: f64,
    /// Half of them took no longer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// One of the files.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    file: File,
    len: u64,
    /// What offsets and lengths of reads must be multiples of.
    alignment: u64,
}

impl Opened {
    /// The error for a read of it.
    fn failed(&self, by: PathKind, offset: u64, expected: u64, source: Option<ReadCause>) -> Error {
        Error::Read { path: self.path.clone(), by, offset, got: 0, expected, source }
    }
}

/// What one thread did.
#[derive(Debug)]
struct Done {
    bytes: u64,
    latency: Histogram<u64>,
    /// When its last byte was where it belongs.
    end: Instant,
}

impl Done {
    /// From a tenth of a microsecond to an hour, with three digits.
    fn new() -> Result<Self> {
        let latency = Histogram::new_with_bounds(1, 36_000_000_000, 3)
            .map_err(|error| Error::Worker { reason: error.to_string() })?;
        Ok(Self { bytes: 0, latency, end: Instant::now() })
    }

    fn read(&mut self, bytes: u64, time: Duration) {
        self.bytes += bytes;
        self.latency.saturating_record(u64::try_from(time.as_nanos() / TENTH).unwrap_or(u64::MAX).max(1));
    }
}

/// Nanoseconds in the histogram's unit.
const TENTH: u128 = 100;

/// A thread's part, made ready before the clock starts.
trait Reader: Send {
    /// Reads blocks until there are no more.
    fn run(&mut self, blocks: &Blocks) -> Result<Done>;

    /// Host memory pinned, in bytes.
    fn pinned_bytes(&self) -> u64 {
        0
    }
}

/// Reads `files` as `options` say.
///
/// # Errors
/// [`Error::Option`] for what cannot be meant, [`Error::Unavailable`] for a path or an engine that cannot serve here, else those of
/// reading.
pub fn read(files: &[PathBuf], options: &RawOptions) -> Result<RawReport> {
    let mut opened = files.iter().map(|path| open(path, options)).collect::<Result<Vec<_>>>()?;
    opened.retain(|opened| opened.len > 0);
    check(&opened, options)?;
    let before = residency(&opened);
    let by_cufile = match options.path {
        PathKind::Gds | PathKind::GdsCompat => Some(cufile::Files::open(&opened, options)?),
        PathKind::Direct | PathKind::Buffered | PathKind::Mmap => None,
    };
    let (engine, engine_reason) = match by_cufile {
        Some(_) => (Engine::Threads, None),
        None => choose(&opened, options)?,
    };
    let depth = if engine == Engine::IoUring { options.depth } else { 1 };
    let mut readers = Vec::new();
    for _ in 0..options.threads {
        readers.push(match (&by_cufile, engine) {
            (Some(files), _) => files.reader(options)?,
            (None, Engine::IoUring) => uring::Uring::reader(&opened, options, depth)?,
            (None, _) => threads::Thread::reader(&opened, options)?,
        });
    }
    let proof = by_cufile.as_ref().and_then(cufile::Files::proof);

    let (cpu, start) = (cpu_time(), Instant::now());
    let until = options.time.map(|time| start + time);
    let lens = opened.iter().map(|opened| opened.len).collect();
    let blocks = Blocks::new(lens, options.block_size, options.pattern, until);
    let done = all(&mut readers, &blocks)?;
    let cpu = cpu_time().saturating_sub(cpu);

    let mut total = Done::new()?;
    total.end = start;
    for done in &done {
        total.bytes += done.bytes;
        total.end = total.end.max(done.end);
        total.latency.add(&done.latency).map_err(|error| Error::Worker { reason: error.to_string() })?;
    }
    let time = total.end - start;
    let operations = total.latency.len();
    Ok(RawReport {
        path: options.path,
        engine: engine.to_string(),
        engine_reason,
        device: DeviceReport::of(&options.device),
        block_size: options.block_size,
        threads: options.threads,
        depth,
        pattern: options.pattern,
        files: files.len(),
        file_bytes: opened.iter().map(|opened| opened.len).fold(0, u64::saturating_add),
        bytes: total.bytes,
        operations,
        seconds: time.as_secs_f64(),
        gb_per_s: gb_per_s(total.bytes, time),
        operations_per_s: operations as f64 / time.as_secs_f64().max(1e-9),
        latency: Latency::of(&total.latency),
        cpu_s: cpu.as_secs_f64(),
        pinned_bytes: readers.iter().map(|reader| reader.pinned_bytes()).sum(),
        cache: CacheReport { resident_before: before, resident_after: residency(&opened) },
        gds: proof.map(|proof| cufile::verdict(proof, options)),
    })
}

/// Runs every reader on a thread of its own. The first error is told, after all have stopped.
fn all(readers: &mut [Box<dyn Reader + '_>], blocks: &Blocks) -> Result<Vec<Done>> {
    thread::scope(|scope| {
        let failed = |reason| Err(Error::Worker { reason });
        let running: Vec<_> = readers
            .iter_mut()
            .map(|reader| thread::Builder::new().spawn_scoped(scope, move || reader.run(blocks)))
            .collect();
        let ended: Vec<_> =
            running.into_iter().map(|running| running.map(thread::ScopedJoinHandle::join)).collect();
        let ended = ended.into_iter().map(|ended| match ended {
            Ok(ended) => ended.unwrap_or_else(|_| failed("a thread panicked".into())),
            Err(error) => failed(format!("it could not be started: {error}")),
        });
        ended.collect()
    })
}

impl Latency {
    fn of(tenths: &Histogram<u64>) -> Self {
        if tenths.is_empty() {
            return Self::default();
        }
        let at = |quantile| tenths.value_at_quantile(quantile) as f64 / 10.0;
        Self {
            mean_us: tenths.mean() / 10.0,
            p50_us: at(0.5),
            p99_us: at(0.99),
            max_us: tenths.max() as f64 / 10.0,
        }
    }
}

fn open(path: &Path, options: &RawOptions) -> Result<Opened> {
    let direct = options.path == PathKind::Direct;
    let attempt = || {
        let buffered = File::open(path)?;
        if options.cold {
            facts::evict(&buffered)?;
        }
        let len = buffered.metadata()?.len();
        let alignment = if direct { DirectIo::of(&buffered).alignment() } else { 1 };
        let file = match direct {
            true => {
                OpenOptions::new().read(true).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC).open(path)?
            }
            false => buffered,
        };
        Ok(Opened { path: path.to_path_buf(), file, len, alignment })
    };
    attempt().map_err(|error: io::Error| match error.raw_os_error() {
        Some(libc::EINVAL) if direct => Error::Unavailable {
            path: path.to_path_buf(),
            by: PathKind::Direct,
            reason: "the file system refuses O_DIRECT".into(),
        },
        _ => Error::Read {
            path: path.to_path_buf(),
            by: options.path,
            offset: 0,
            got: 0,
            expected: 0,
            source: Some(error.into()),
        },
    })
}

fn check(opened: &[Opened], options: &RawOptions) -> Result<()> {
    let refuse = |option, reason: String| Err(Error::Option { option, reason });
    let step = opened.iter().map(|opened| opened.alignment).max().unwrap_or(1);
    if options.block_size == 0 || !options.block_size.is_multiple_of(step) {
        return refuse(
            "block-size",
            format!("{} bytes is not a multiple of {step} bytes", options.block_size),
        );
    }
    if options.block_size > LONGEST_READ {
        return refuse("block-size", format!("more than {LONGEST_READ} bytes is more than one read returns"));
    }
    if options.threads == 0 {
        return refuse("threads", "there must be at least one".into());
    }
    if options.depth == 0 || options.depth > DEEPEST {
        return refuse("depth", format!("{} is not between 1 and {DEEPEST}", options.depth));
    }
    if options.path == PathKind::Mmap {
        return refuse(
            "backend",
            "mmap reads nothing by itself: choose direct, buffered, gds or gds-compat".into(),
        );
    }
    if opened.is_empty() {
        return refuse("path", "there is nothing to read".into());
    }
    Ok(())
}

/// The kernel returns no more from one read, whatever is asked, than this rounded down to a page.
const LONGEST_READ: u64 = 1 << 30;
/// io_uring's own bound on its queue.
const DEEPEST: usize = 4096;

/// io_uring where it is wanted and to be had, and why not where it was the first choice.
fn choose(opened: &[Opened], options: &RawOptions) -> Result<(Engine, Option<String>)> {
    if options.engine == Engine::Threads {
        return Ok((Engine::Threads, None));
    }
    match (uring::probe(), options.engine) {
        (Ok(()), _) => Ok((Engine::IoUring, None)),
        (Err(reason), Engine::IoUring) => Err(Error::Unavailable {
            path: opened.first().map(|opened| opened.path.clone()).unwrap_or_default(),
            by: options.path,
            reason: format!("io_uring is refused: {reason}"),
        }),
        (Err(reason), _) => Ok((Engine::Threads, Some(reason.to_string()))),
    }
}

fn residency(opened: &[Opened]) -> Option<f64> {
    share_of(opened.iter().map(|opened| (opened.len, facts::residency(&opened.file, opened.len))))
}

/// Reads what is left of a block whose first `done` bytes have arrived in `into`.
fn rest(opened: &Opened, by: PathKind, into: &mut [u8], block: Block, done: u64) -> Result<()> {
    let mut done = align_down(done.min(block.len), opened.alignment);
    while done < block.len {
        let offset = block.offset + done;
        let failed = |source| opened.failed(by, offset, block.len - done, source);
        match opened.file.read_at(&mut into[done as usize..], offset) {
            Ok(0) => return Err(failed(None)),
            Ok(count) if done + count as u64 >= block.len => return Ok(()),
            Ok(count) if count as u64 >= opened.alignment => {
                done = align_down(done + count as u64, opened.alignment);
            }
            // Less than a sector, and not the end: asking again would give the same.
            Ok(_) => return Err(failed(None)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(Some(error.into()))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(lens: &[usize]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let paths = lens.iter().enumerate().map(|(index, len)| {
            let path = folder.path().join(index.to_string());
            std::fs::write(&path, vec![index as u8; *len]).unwrap();
            path
        });
        let paths = paths.collect();
        (folder, paths)
    }

    #[test]
    fn every_byte_is_read_once_by_every_engine_and_path() {
        let (_folder, paths) = files(&[100_000, 0, 1, 4096, 1_000_000]);
        for engine in [Engine::Threads, Engine::Auto] {
            for path in [PathKind::Buffered, PathKind::Direct] {
                for pattern in [Pattern::Sequential, Pattern::Random { seed: 7 }] {
                    let options = RawOptions {
                        path,
                        engine,
                        pattern,
                        block_size: 16384,
                        threads: 3,
                        depth: 5,
                        ..RawOptions::new(Device::cpu())
                    };
                    let report = read(&paths, &options).unwrap();
                    assert_eq!((report.files, report.file_bytes, report.bytes), (5, 1_104_097, 1_104_097));
                    assert_eq!(report.operations, 7 + 1 + 1 + 62);
                    let Latency { p50_us, p99_us, max_us, .. } = report.latency;
                    assert!(0.0 < p50_us && p50_us <= p99_us && p99_us <= max_us);
                    assert!(max_us / 1e6 <= report.seconds);
                }
            }
        }
    }

    #[test]
    fn files_that_shrink_are_an_error_and_no_endless_wait() {
        let (_folder, paths) = files(&[1 << 20, 1 << 20]);
        for engine in [Engine::Threads, Engine::Auto] {
            let options = RawOptions {
                path: PathKind::Buffered,
                engine,
                block_size: 4096,
                depth: 8,
                ..RawOptions::new(Device::cpu())
            };
            let mut opened: Vec<Opened> = paths.iter().map(|path| open(path, &options).unwrap()).collect();
            opened.iter_mut().for_each(|opened| opened.len += 1 << 16);
            let lens = opened.iter().map(|opened| opened.len).collect();
            let blocks = Blocks::new(lens, options.block_size, options.pattern, None);
            let (engine, _) = choose(&opened, &options).unwrap();
            let mut readers = vec![match engine {
                Engine::IoUring => uring::Uring::reader(&opened, &options, options.depth).unwrap(),
                _ => threads::Thread::reader(&opened, &options).unwrap(),
            }];
            let error = all(&mut readers, &blocks).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidData, "{engine}: {error}");
        }
    }

    #[test]
    fn time_ends_it() {
        let (_folder, paths) = files(&[1 << 20]);
        let options = RawOptions {
            path: PathKind::Buffered,
            time: Some(Duration::from_millis(50)),
            block_size: 4096,
            ..RawOptions::new(Device::cpu())
        };
        let report = read(&paths, &options).unwrap();
        assert!(report.seconds >= 0.04 && report.seconds < 5.0, "{}", report.seconds);
        assert!(report.bytes > 1 << 20, "it goes round");
        assert_eq!(report.bytes, report.operations * 4096);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let (_folder, paths) = files(&[8192]);
        let good = RawOptions::new(Device::cpu());
        let refusal = |options: RawOptions| read(&paths, &options).unwrap_err().to_string();
        assert!(refusal(RawOptions { block_size: 1000, ..good.clone() }).starts_with("block-size"));
        assert!(refusal(RawOptions { threads: 0, ..good.clone() }).starts_with("threads"));
        assert!(refusal(RawOptions { depth: 0, ..good.clone() }).starts_with("depth"));
        assert!(refusal(RawOptions { path: PathKind::Mmap, ..good.clone() }).starts_with("backend"));
        let gds = read(&paths, &RawOptions { path: PathKind::Gds, ..good.clone() }).unwrap_err();
        assert_eq!(gds.kind(), crate::ErrorKind::Unavailable);
        let (_folder, nothing) = files(&[0]);
        assert!(read(&nothing, &good).unwrap_err().to_string().contains("nothing to read"));
    }
}
