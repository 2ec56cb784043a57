//! The real machine's answers: what only the CUDA driver, libcufile and system calls can say.
//!
//! All questions are asked at once and have deadlines, because each can hang: a driver without persistence mode takes
//! seconds to start, a file server may be gone, libcufile may never return.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cuda_staging::Device;
use cufile_sys::Api;

use super::Options;
use super::probes::{Cuda, CudaDevice, Library, Opening, PathFacts, PathProbe, Probes, Trial};
use super::{opening, pci};
use crate::bounded::{Pending, ask};
use crate::facts::FileFacts;
use crate::facts::Root;

/// Variables that bear on cuFile and CUDA, besides those that begin with `CUFILE_`.
const VARIABLES: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", cufile_sys::LIBRARY_VARIABLE];

/// The name of the threads that ask.
pub(super) const THREAD: &str = "gds-check";

/// What was answered in time; nothing where no thread could be started to ask.
pub(super) fn answer<T>(asked: io::Result<Pending<T>>, deadline: Instant) -> Option<T> {
    asked.ok()?.by(deadline)
}

impl Probes {
    /// Asks this machine.
    pub fn of_this_machine(options: &Options) -> Self {
        let start = Instant::now();
        // No thread begins while a library hangs that is being loaded.
        let asked = |given: PathBuf| {
            let asked = ask(THREAD, move || examine(&given));
            asked.map(|asked| asked.begun_by(start + options.limit))
        };
        let path = options.path.clone().map(|given| (given.clone(), asked(given)));
        let cuda = ask(THREAD, cuda);
        let library = ask(THREAD, library);
        let limit = options.limit + for_gpus();
        let mut probes = Self {
            environment: environment(),
            io_uring: Some(io_uring()),
            cuda: answer(cuda, start + limit).unwrap_or(Cuda::Silent(limit)),
            library: answer(library, start + options.limit).unwrap_or(Library::Silent(options.limit)),
            opening: Opening::NotAsked,
            path: path.map(|(given, asked)| PathProbe {
                given,
                answer: answer(asked, start + options.limit).unwrap_or_else(|| Err(no_answer(options.limit))),
            }),
        };
        if options.open_cufile {
            opening::ask_cufile(&mut probes, start, start + limit);
        }
        probes
    }
}

/// What drivers get in addition: they start one GPU after the other, and cuFile makes a context on each.
fn for_gpus() -> Duration {
    let (gpus, _) = pci::gpus_and_drives(&Root::system());
    Duration::from_secs(gpus.len() as u64)
}

fn no_answer(limit: Duration) -> String {
    format!("the file system did not answer within {} s", limit.as_secs_f32())
}

fn environment() -> std::collections::BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(|(name, _)| name.starts_with("CUFILE_") || VARIABLES.contains(&name.as_str()))
        .collect()
}

fn cuda() -> Cuda {
    match Device::list() {
        Ok(devices) => Cuda::Devices(
            devices
                .into_iter()
                .filter_map(|device| {
                    Some(CudaDevice {
                        index: device.index?,
                        name: device.name,
                        pci_address: device.pci_bus_id,
                        bar1_bytes: None,
                    })
                })
                .collect(),
        ),
        Err(cuda_staging::Error::Unavailable { reason }) => Cuda::Unavailable(reason),
        Err(error) => Cuda::Unavailable(error.to_string()),
    }
}

fn library() -> Library {
    match Api::get() {
        Ok(api) => Library::Found {
            path: api.library().to_path_buf(),
            version: version(api),
            absent: api
                .absent()
                .into_iter()
                .map(|(name, since)| (name.to_owned(), since.to_string()))
                .collect(),
        },
        Err(error) => Library::Missing(error.to_string()),
    }
}

fn version(api: &Api) -> Option<i32> {
    let ask = api.cuFileGetVersion?;
    let mut version = 0;
    // SAFETY: the integer is writable for the call, which may come before the driver is opened.
    unsafe { ask(&mut version) }.result().ok().map(|()| version)
}

/// What `path` is. In a folder the largest safetensors file stands for all.
fn examine(path: &Path) -> Result<PathFacts, String> {
    let words = |error: std::io::Error| error.to_string();
    let real = fs::canonicalize(path).map_err(words)?;
    if !fs::metadata(&real).map_err(words)?.is_dir() {
        return facts(real).map_err(words);
    }
    match largest(&real).map_err(words)? {
        Some(file) => facts(fs::canonicalize(file).map_err(words)?).map_err(words),
        None => Ok(PathFacts { real, facts: None, trial: Trial::NotTried }),
    }
}

fn facts(real: PathBuf) -> std::io::Result<PathFacts> {
    // A FIFO would block, a device would not be weights.
    if !fs::metadata(&real)?.is_file() {
        return Err(std::io::Error::other("it is neither a file nor a folder"));
    }
    let file = File::open(&real)?;
    let len = file.metadata()?.len();
    Ok(PathFacts { facts: Some(FileFacts::of(&file, len)), real, trial: Trial::NotTried })
}

fn largest(folder: &Path) -> std::io::Result<Option<PathBuf>> {
    let mut largest: Option<(u64, PathBuf)> = None;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        // Links are followed: in a Hugging Face snapshot every file is one.
        let Ok(metadata) = fs::metadata(&path) else { continue };
        if metadata.is_file() && largest.as_ref().is_none_or(|(len, _)| metadata.len() > *len) {
            largest = Some((metadata.len(), path));
        }
    }
    Ok(largest.map(|(_, path)| path))
}

/// Makes the smallest io_uring and closes it.
fn io_uring() -> Result<(), String> {
    use std::os::fd::{FromRawFd as _, OwnedFd};

    // `struct io_uring_params`, 120 bytes, all of which the kernel wants zero.
    let mut parameters = [0_u64; 15];
    // SAFETY: the kernel reads and writes 120 bytes at the pointer, for the call.
    let answer = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    match i32::try_from(answer) {
        Ok(descriptor) if descriptor >= 0 => {
            // SAFETY: a descriptor the kernel just made, which nothing else owns.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
            Ok(())
        }
        _ => Err(std::io::Error::last_os_error().to_string()),
    }
}
