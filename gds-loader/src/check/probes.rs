//! What cannot be read from a file: answers of the CUDA driver, of libcufile and of system calls.
//!
//! Plain data, so that a test fills it by hand and the doctor proper stays a function of a tree and of this.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::facts::FileFacts;

/// Answers that no file gives.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    /// The environment variables that bear on cuFile and CUDA, by name.
    pub environment: BTreeMap<String, String>,
    /// The CUDA driver.
    pub cuda: Cuda,
    /// The library libcufile.
    pub library: Library,
    /// Whether cuFile opens, with its compatibility mode not allowed.
    pub opening: Opening,
    /// Whether this process may make an io_uring: the kernel's word for the refusal where it may not.
    pub io_uring: Option<Result<(), String>>,
    /// The path the user asks about.
    pub path: Option<PathProbe>,
}

impl Probes {
    /// The value of a variable, if it is set and not empty.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether a variable is set to something that cuFile takes for yes.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.variable(name).is_some_and(|value| matches!(value, "1" | "true" | "TRUE" | "True" | "yes"))
    }

    /// Whether a driver or a library did not answer.
    pub(super) fn hang(&self) -> bool {
        matches!(self.cuda, Cuda::Silent(_))
            || matches!(self.library, Library::Silent(_))
            || matches!(self.opening, Opening::Silent(_))
    }
}

/// What the CUDA driver says.
#[derive(Clone, Debug, Default)]
pub enum Cuda {
    /// Not asked.
    #[default]
    NotAsked,
    /// The devices it shows to this process.
    Devices(Vec<CudaDevice>),
    /// It cannot be used, and why.
    Unavailable(String),
    /// It did not answer within this time.
    Silent(Duration),
}

impl Cuda {
    pub(super) fn devices(&self) -> &[CudaDevice] {
        match self {
            Self::Devices(devices) => devices,
            _ => &[],
        }
    }

    pub(super) fn devices_mut(&mut self) -> &mut [CudaDevice] {
        match self {
            Self::Devices(devices) => devices,
            _ => &mut [],
        }
    }
}

/// A device as CUDA shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaDevice {
    /// Its number, as `CUDA_VISIBLE_DEVICES` has it.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its address on the PCI bus, where it has one.
    pub pci_address: Option<String>,
    /// Bytes of its BAR1 as cuFile gives them, where it was asked.
    pub bar1_bytes: Option<u64>,
}

/// What became of loading libcufile.
#[derive(Clone, Debug, Default)]
pub enum Library {
    /// Not looked for.
    #[default]
    NotAsked,
    /// It is there.
    Found {
        /// The file.
        path: PathBuf,
        /// What `cuFileGetVersion` says (1000 × major + 10 × minor); None where the library has no such function.
        version: Option<i32>,
        /// The functions it lacks, and the release of cuFile that brought each.
        absent: Vec<(String, String)>,
    },
    /// It cannot be loaded, and why.
    Missing(String),
    /// Loading it took longer than this.
    Silent(Duration),
}

/// What cuFile answers when it is opened with its compatibility mode not allowed.
#[derive(Clone, Debug, Default)]
pub enum Opening {
    /// Not asked, and why.
    #[default]
    NotAsked,
    /// It was not safe to ask, or nobody could, for this reason.
    NotPossible(String),
    /// It opened.
    Opened,
    /// It refused, in these words.
    Refused(String),
    /// It did not answer within this time.
    Silent(Duration),
}

/// The path the user asks about.
#[derive(Clone, Debug)]
pub struct PathProbe {
    /// As given.
    pub given: PathBuf,
    /// What it is, or why it cannot be examined.
    pub answer: Result<PathFacts, String>,
}

/// What a path is.
#[derive(Clone, Debug)]
pub struct PathFacts {
    /// The file examined, links followed: the path itself, or the largest safetensors file in a folder. A folder
    /// without one stands for itself.
    pub real: PathBuf,
    /// Facts of that file; None for a folder.
    pub facts: Option<FileFacts>,
    /// What came of reading it by cuFile, opened with its compatibility mode not allowed.
    pub trial: Trial,
}

/// What came of a read into a GPU by cuFile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trial {
    /// None was tried.
    #[default]
    NotTried,
    /// cuFile did not register the file, or did not read it, in these words.
    Refused(String),
    /// It read, and its own statistics say: through host memory.
    Bounced,
    /// It read, and cannot prove which way, for this reason.
    Unverified(String),
    /// It read, and its own statistics say: straight into the GPU.
    Direct,
}
