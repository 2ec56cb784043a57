//! What is tried in a process of its own: it prints one JSON object with an `outcome` and what was `said`.

mod cufile;
mod measure;
mod pool;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cuda_staging::{Device, RegionMut};
use serde_json::{Value, json};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    what: What,
    /// A file to read
    file: PathBuf,
}

/// What can be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum What {
    /// cuFile's driver: which library, which mode, what it says about itself
    Driver,
    /// A read in a stream's order into registered memory, which no simulated GPU can serve with NVIDIA's library
    StreamRead,
    /// The same into memory that is not registered
    StreamReadUnregistered,
    /// Reads in a batch
    BatchRead,
    /// Registering memory of a pool
    PoolMemory,
    /// The parts of a load alone: the copies, the reads, both in turn
    Parts,
}

impl What {
    /// Those that try libcufile.
    pub(crate) const OF_CUFILE: [Self; 5] =
        [Self::Driver, Self::StreamRead, Self::StreamReadUnregistered, Self::BatchRead, Self::PoolMemory];

    /// The name on the command line.
    pub(crate) fn name(self) -> String {
        use clap::ValueEnum as _;
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Tries it and prints what came of it. What is refused is no error of this program.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let file = &arguments.file;
    let tried = match arguments.what {
        What::Driver => cufile::driver(file),
        What::StreamRead => cufile::stream_read(file, true),
        What::StreamReadUnregistered => cufile::stream_read(file, false),
        What::BatchRead => cufile::batch_read(file),
        What::PoolMemory => pool::register(file),
        What::Parts => measure::parts(file),
    };
    let found = tried.unwrap_or_else(|error| json!({"outcome": "refused", "said": format!("{error:#}")}));
    println!("{found}");
    Ok(())
}

/// Reads no more than this for a try.
const LARGEST: u64 = 64 << 20;

/// The bytes of the file that are read: all, or its beginning; not a whole number of pages where it has more.
fn beginning(file: &Path) -> Result<Vec<u8>> {
    let opened = File::open(file).with_context(|| format!("could not open {}", file.display()))?;
    let len = opened.metadata()?.len().min(LARGEST - 1000);
    let mut bytes = vec![0; usize::try_from(len)?];
    opened.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Holds what arrived in device memory against what it should be.
fn judge(device: &Device, memory: RegionMut, expected: &[u8], found: Value) -> Result<Value> {
    let mut arrived = vec![0; expected.len()];
    device.copy_to_host(&memory.freeze().slice(0..expected.len() as u64)?, &mut arrived)?;
    let differs = arrived.iter().zip(expected).position(|(arrived, expected)| arrived != expected);
    let (outcome, said) = match differs {
        Some(at) => ("wrong", format!("byte {at} of {} differs", expected.len())),
        None => ("passed", format!("{} bytes are right", expected.len())),
    };
    Ok(json!({"outcome": outcome, "said": said, "found": found}))
}
