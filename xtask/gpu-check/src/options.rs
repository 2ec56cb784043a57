//! What can be asked for, and what follows from the machine where it is not.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytesize::ByteSize;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Folder for the data, on the storage to measure; what is made there is removed in the end
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// Size of the model to measure with; by default what fits the disk and the memory, at most 16 GiB
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// Seconds after which everything has ended
    #[arg(long, default_value_t = 540)]
    deadline: u64,
    /// Loads of each kind that are timed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) repeat: u16,
    /// The file for all that was found, in JSON
    #[arg(long, default_value = "gpu-check.json")]
    pub(crate) out: PathBuf,
    /// The program to check; by default the gds beside this one
    #[arg(long)]
    gds: Option<PathBuf>,
}

fn parse_size(text: &str) -> Result<u64, String> {
    text.parse::<ByteSize>().map(|size| size.as_u64())
}

/// No more is measured with, whatever the machine has: ten times that is read within the deadline.
const LARGEST: u64 = 16 << 30;
/// Correctness is checked with so much, since every byte of it is hashed a dozen times.
const LARGEST_CHECKED: u64 = 1 << 30;

impl Options {
    /// When everything must have ended.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.deadline)
    }

    /// Where the data is made.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The size to measure with.
    ///
    /// # Errors
    /// Where the folder's disk cannot be asked.
    pub(crate) fn size(&self) -> Result<u64> {
        if let Some(size) = self.size {
            return Ok(size);
        }
        let disk = rustix::fs::statvfs(&self.folder)
            .with_context(|| format!("could not look at the disk of {}", self.folder.display()))?;
        let memory = rustix::system::sysinfo();
        Ok(fitting(disk.f_bavail * disk.f_frsize, memory.totalram as u64 * u64::from(memory.mem_unit)))
    }

    /// The size to check with, of a size to measure with.
    pub(crate) fn checked(size: u64) -> u64 {
        size.min(LARGEST_CHECKED)
    }

    /// The program to check.
    pub(crate) fn gds(&self) -> Result<PathBuf> {
        match &self.gds {
            Some(gds) => Ok(gds.clone()),
            None => beside("gds"),
        }
    }
}

/// Half of the free disk, and a quarter of the memory, so that the page cache holds it beside a copy in host memory.
fn fitting(free_disk: u64, memory: u64) -> u64 {
    (free_disk / 2).min(memory / 4).min(LARGEST)
}

/// A file beside this program.
pub(crate) fn beside(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe().context("could not find this program's own file")?;
    Ok(program.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_fits_the_machine() {
        assert_eq!(fitting(20 << 30, 128 << 30), 10 << 30);
        assert_eq!(fitting(1 << 40, 16 << 30), 4 << 30);
        assert_eq!(fitting(1 << 40, 1 << 40), LARGEST);
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_size("256MiB"), Ok(256 << 20));
        assert!(parse_size("a lot").is_err());
    }
}
