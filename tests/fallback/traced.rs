//! A file whose loads strace watches, and can make fail.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;
use test_support::{Finished, folder, not_run, process, tool};

use crate::page_cache::{can_be_cold, evict};
use crate::program::{GDS, digests, json, run, shards, synth};

/// A cold file on disk that O_DIRECT reads, with its digests, and strace; or `None` after saying what is missing.
pub(crate) struct Traced {
    pub(crate) folder: TempDir,
    pub(crate) file: PathBuf,
    pub(crate) strace: PathBuf,
    pub(crate) digests: std::collections::BTreeMap<String, String>,
}

impl Traced {
    pub(crate) fn new(test: &str) -> Option<Self> {
        let strace = tool(test, "strace")?;
        let folder = folder::on_disk(test);
        let file = shards(&synth(folder.path(), "--size 4MiB")).remove(0);
        let direct = run("load --device cpu --backend direct --digest --json", [&file]);
        if direct.code() == Some(3) {
            not_run(test, direct.stderr.trim());
            return None;
        }
        let traced = Self { folder, file, strace, digests: digests(&json(&direct)) };
        let nothing = traced.load("buffered", &[]);
        if nothing.code() != Some(0) || !can_be_cold(traced.folder.path()) {
            not_run(
                test,
                &format!(
                    "strace may not trace here, or files stay in the page cache: {}",
                    nothing.stderr.trim()
                ),
            );
            return None;
        }
        Some(traced)
    }

    pub(crate) fn command(&self, backend: &str, injected: &[&str]) -> Command {
        let mut command = Command::new(&self.strace);
        command.args(["-f", "-qq", "-o"]).arg(self.folder.path().join("trace"));
        command.args(["-e", "trace=openat,pread64,process_vm_readv,mmap"]);
        // Of a mapping's reads strace knows the memory and not the file, and nothing else reads memory like that.
        if backend != "mmap" {
            command.arg("-P").arg(&self.file);
        }
        injected.iter().for_each(|fault| {
            command.arg("-e").arg(format!("inject={fault}"));
        });
        // One thread for headers and one for data, so that calls are counted as the test means them.
        command
            .env("RAYON_NUM_THREADS", "1")
            .arg(GDS)
            .args(["load", "--device", "cpu", "--digest", "--json"]);
        command.args(["--threads", "1", "--engine", "threads", "--read-size", "256KiB"]);
        command.args(["--backend", backend]).arg(&self.file);
        command
    }

    /// Loads the file, cold, with these faults.
    pub(crate) fn load(&self, backend: &str, injected: &[&str]) -> Finished {
        evict(&self.file);
        process::run(&mut self.command(backend, injected), process::LIMIT)
    }
}
