//! The machine, as far as commands and files tell, and which libcufile it has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::run::{End, run};

/// A command that only looks takes no longer.
const LIMIT: Duration = Duration::from_secs(20);

/// What nothing else of this program asks for. `gds check` says the rest.
pub(crate) fn machine(folder: &Path, size: u64) -> Value {
    json!({
        "kernel": text("/proc/sys/kernel/osrelease"),
        "cpu": text("/proc/cpuinfo").and_then(|text| named(&text, "model name")),
        "cpus": std::thread::available_parallelism().map_or(0, |count| count.get()),
        "memory": text("/proc/meminfo").and_then(|text| named(&text, "MemTotal")),
        "driver": text("/proc/driver/nvidia/version"),
        "gpu": said("nvidia-smi", &["--format=csv,noheader", GPU]),
        "topology": said("nvidia-smi", &["topo", "-m"]),
        "python": said("python3", &["-c", PYTHON]),
        "mounts": said("findmnt", &["--target", &folder.to_string_lossy()]),
        "data_bytes": size,
    })
}

const GPU: &str = "--query-gpu=name,memory.total,driver_version,pcie.link.gen.max,pcie.link.gen.current,pcie.link.width.max,pcie.link.width.current";
const PYTHON: &str = "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())";

fn text(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The value in a line `name : value`.
fn named(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

/// What a command prints; where it does not run, why.
fn said(program: &str, arguments: &[&str]) -> String {
    let finished = run(Command::new(program).args(arguments), LIMIT);
    match finished.end {
        End::Status(0) => finished.stdout.trim().to_owned(),
        _ => finished.reason(),
    }
}

/// A libcufile to try.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
}

/// Where CUDA's own packages put it.
const INSTALLED: [&str; 4] = [
    "/usr/local/cuda/lib64/libcufile.so.0",
    "/usr/local/cuda/targets/x86_64-linux/lib/libcufile.so.0",
    "/usr/lib/x86_64-linux-gnu/libcufile.so.0",
    "/usr/lib64/libcufile.so.0",
];

/// Prints the folder that Python's package of libcufile is in.
const IN_PYTHON: &str = "import nvidia; print(list(nvidia.__path__)[0])";

/// The machine's own libcufile first, then the carried one; where the environment names one, that alone.
pub(crate) fn libraries(carried: &Path) -> Vec<Library> {
    if let Some(path) = std::env::var_os("GDS_CUFILE_LIBRARY") {
        return vec![Library { name: "named", path: path.into() }];
    }
    let mut places: Vec<PathBuf> = INSTALLED.iter().map(PathBuf::from).collect();
    let python = PathBuf::from(said("python3", &["-c", IN_PYTHON]));
    places.extend(["cu13/lib", "cufile/lib"].map(|folder| python.join(folder).join("libcufile.so.0")));
    let installed = places.into_iter().find(|place| place.is_file());
    let carried = Some(carried.to_owned()).filter(|place| place.is_file());
    let named = [("installed", installed), ("carried", carried)];
    named.into_iter().filter_map(|(name, path)| Some(Library { name, path: path? })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_name() {
        assert_eq!(named("MemFree: 1 kB\nMemTotal:   24 kB\n", "MemTotal").as_deref(), Some("24 kB"));
        assert_eq!(named("nothing", "MemTotal"), None);
    }

    #[test]
    fn a_command_that_is_missing_says_so() {
        assert!(said("/nonexistent", &[]).contains("nonexistent"));
    }
}
