//! What the kernel says of this process.

use std::fs;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// One look, between loads: no model is held, no load runs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Loads so far.
    pub(crate) loads: u64,
    /// Anonymous memory in pages, in bytes. The simulated GPU's memory is shared memory, and not in it.
    pub(crate) rss_anon: u64,
    /// Open descriptors, without the one that counts them.
    pub(crate) descriptors: u64,
    pub(crate) threads: u64,
}

impl Sample {
    pub(crate) fn now(loads: u64) -> Result<Self> {
        let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
        let rss = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
        let kib: u64 = rss.trim().trim_end_matches("kB").trim().parse().context("RssAnon")?;
        Ok(Self {
            loads,
            rss_anon: kib << 10,
            descriptors: entries("/proc/self/fd")? - 1,
            threads: entries("/proc/self/task")?,
        })
    }
}

fn entries(folder: &str) -> Result<u64> {
    Ok(fs::read_dir(folder).with_context(|| folder.to_owned())?.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_a_thread_and_a_mebibyte_are_seen() {
        let before = Sample::now(0).unwrap();
        let (file, memory) = (fs::File::open("/proc/self/status").unwrap(), vec![1_u8; 1 << 20]);
        let with = std::thread::spawn(|| Sample::now(0).unwrap()).join().unwrap();
        // Other tests of this program come and go meanwhile; none of them takes away what is here.
        assert!(
            with.rss_anon >= (1 << 20) && with.descriptors >= 1 && with.threads >= 2,
            "{before:?} {with:?}"
        );
        drop((file, memory));
    }
}
