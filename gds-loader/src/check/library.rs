//! NVIDIA's libcufile: where it is, what it lacks, and whether it opens without its compatibility mode.

use super::driver::Driver;
use super::finding::Finding;
use super::probes::{Library, Opening, Probes};

pub(super) fn findings(probes: &Probes, driver: &Driver) -> Vec<Finding> {
    let mut findings = vec![library(&probes.library)];
    if let Library::Found { absent, .. } = &probes.library {
        findings.extend(functions(absent));
        findings.push(mode(&probes.opening, driver));
        findings.extend(log(probes));
    }
    findings
}

fn library(library: &Library) -> Finding {
    const ID: &str = "cufile.library";
    match library {
        Library::NotAsked => Finding::info(ID, "libcufile was not looked for"),
        Library::Found { path, version, .. } => {
            let version = match version {
                Some(version) => format!("libcufile {}.{}", version / 1000, version % 1000 / 10),
                None => "libcufile, older than 1.8,".into(),
            };
            Finding::ok(ID, format!("{version} at {}", path.display()))
        }
        Library::Missing(reason) => {
            // The list of what was tried is long; its first line says what it comes to.
            let first = reason.lines().next().unwrap_or("it cannot be loaded").trim_end_matches("; tried");
            Finding::failure(ID, first)
                .why("GPUDirect Storage is reached through NVIDIA's library alone")
                .advice(
                    "install the CUDA toolkit's libcufile, or `pip install nvidia-cufile`; or name the file in \
                     GDS_CUFILE_LIBRARY",
                )
        }
        Library::Silent(limit) => {
            Finding::failure(ID, format!("loading libcufile took longer than {} s", limit.as_secs_f32()))
                .why("what does not load is of no use")
                .advice("see that the folder it lies in can be read")
        }
    }
}

/// What each release brought that the loader uses, as (release, feature).
const FEATURES: [(&str, &str); 5] = [
    ("cuFileBatchIOSubmit", "batches"),
    ("cuFileReadAsync", "stream-ordered reads"),
    ("cuFileSetParameterBool", "settings by the program (gds cannot rule compatibility mode out)"),
    ("cuFileGetStatsL3", "statistics (gds reports \"unverified\")"),
    ("cuFileDriverSetP2PFlags", "a choice of peer-to-peer methods"),
];

fn functions(absent: &[(String, String)]) -> Option<Finding> {
    const ID: &str = "cufile.functions";
    let missing: Vec<String> = FEATURES
        .iter()
        .filter_map(|(function, feature)| {
            let (_, since) = absent.iter().find(|(name, _)| name == function)?;
            Some(format!("{feature}, since {since}"))
        })
        .collect();
    Some(if missing.is_empty() {
        match absent.len() {
            0 => Finding::ok(ID, "it has every function that gds knows"),
            count => Finding::ok(ID, format!("it lacks {count} newer functions, none of which gds needs")),
        }
    } else {
        Finding::warning(ID, format!("it lacks {}", missing.join("; ")))
            .why("only these features are missing; the rest works")
            .advice("update libcufile: the newest runs on older drivers too (nvidia-cufile from PyPI)")
    })
}

fn mode(opening: &Opening, driver: &Driver) -> Finding {
    const ID: &str = "cufile.mode";
    match opening {
        Opening::NotAsked => match (driver.nvidia_fs, driver.p2pdma()) {
            (true, _) => Finding::info(ID, "cuFile was not opened; with nvidia-fs loaded it has a way to go direct"),
            (_, true) => Finding::info(ID, "cuFile was not opened; with PCI peer-to-peer DMA it has a way to go direct"),
            _ => bounces("cuFile would run in compatibility mode: neither nvidia-fs nor PCI peer-to-peer DMA is there"),
        },
        Opening::NotPossible(reason) => Finding::info(ID, format!("cuFile was not opened: {reason}")),
        Opening::Opened => Finding::ok(ID, "cuFile opens with its compatibility mode not allowed"),
        Opening::Refused(reason) => {
            bounces(&format!("cuFile does not open with its compatibility mode not allowed: {reason}"))
        }
        Opening::Silent(limit) => {
            Finding::failure(ID, format!("cuFile did not open within {} s", limit.as_secs_f32()))
                .why("a driver that hangs here hangs every program that uses it")
                .advice("look at the kernel's log and at /run/udev; gds gives up after the same wait and uses other paths")
        }
    }
}

fn bounces(found: &str) -> Finding {
    Finding::failure("cufile.mode", found)
        .why("in compatibility mode every byte passes through host memory, and cuFile does not say so")
        .advice("mend the failures above; until then `--backend auto` copies through pinned memory itself, and says so")
}

fn log(probes: &Probes) -> Option<Finding> {
    probes.variable("CUFILE_LOGFILE_PATH").is_none().then(|| {
        Finding::warning("cufile.log", "CUFILE_LOGFILE_PATH is not set")
            .why("libcufile writes cufile.log into the working directory, whatever its other settings say")
            .advice("set it before the first thread starts, to a file or to /dev/null (the gds command does)")
    })
}
