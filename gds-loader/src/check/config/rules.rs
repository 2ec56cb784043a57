//! The settings that surprise: each rule looks at one and says what it does to loads of large files.
//!
//! Names, defaults and limits are those of NVIDIA's cufile.json and configuration guide; what happens in practice, of
//! users' reports. A setting that is not there has libcufile's default, and only a default that surprises is mentioned.

use super::Config;
use crate::check::finding::{Finding, size};
use crate::check::probes::Probes;

/// Default of `max_direct_io_size_kb`, and the most that nvidia-fs takes.
const LARGEST_READ_KB: u64 = 16 << 10;
/// A batch's operations, as libcufile has it by default.
const BATCH: u64 = 128;
/// What the gds path registers of each GPU where it may, in KiB.
const WINDOW_KB: u64 = 128 << 10;
/// Device memory that cuFile may take for its own buffers before it is worth a word, in KiB.
const LARGE_CACHE_KB: u64 = 1 << 20;

pub(super) fn findings(config: &Config, probes: &Probes) -> Vec<Finding> {
    let rules: [fn(&Config, &Probes) -> Option<Finding>; 12] = [
        forced_compat,
        compat,
        poll,
        read_size,
        cache,
        pinned,
        host_pool,
        dynamic_routing,
        parallel,
        log_level,
        nvtx,
        denied,
    ];
    rules.into_iter().filter_map(|rule| rule(config, probes)).collect()
}

fn forced_compat(config: &Config, probes: &Probes) -> Option<Finding> {
    let by_variable = probes.is_on("CUFILE_FORCE_COMPAT_MODE");
    let by_file = config.bool("properties.force_compat_mode") == Some(true);
    let by = match (by_variable, by_file) {
        (true, _) => "CUFILE_FORCE_COMPAT_MODE is set",
        (_, true) => "properties.force_compat_mode is true",
        _ => return None,
    };
    Some(
        Finding::failure("config.force_compat_mode", by)
            .why("cuFile then copies every byte through host memory, on every file, whatever the machine can do")
            .advice("take it away; where no GPUDirect Storage is wanted, `--backend auto` without cuFile does better"),
    )
}

fn compat(config: &Config, _: &Probes) -> Option<Finding> {
    const ID: &str = "config.allow_compat_mode";
    match config.bool("properties.allow_compat_mode") {
        Some(false) => Some(Finding::ok(ID, "compatibility mode is not allowed: cuFile goes direct or says that it cannot")),
        None if config.path.is_none() => Some(Finding::info(ID, "compatibility mode is allowed (the default)")),
        Some(true) | None => Some(
            Finding::warning(ID, "compatibility mode is allowed (the default)")
                .why("other programs on this machine may copy through host memory without a word; gds itself never does")
                .advice("set properties.allow_compat_mode to false where copying unseen would be worse than an error"),
        ),
    }
}

fn poll(config: &Config, _: &Probes) -> Option<Finding> {
    let limit = config.number("properties.poll_mode_max_size_kb").unwrap_or(4);
    (config.bool("properties.use_poll_mode") == Some(true)).then(|| {
        Finding::warning(
            "config.use_poll_mode",
            format!("cuFile polls for reads of up to {}", size(limit << 10)),
        )
        .why("it keeps a core busy, and reads of weights are thousands of times larger than what it is for")
        .advice("set properties.use_poll_mode to false")
    })
}

fn read_size(config: &Config, _: &Probes) -> Option<Finding> {
    const ID: &str = "config.max_direct_io_size_kb";
    let kb = config.number("properties.max_direct_io_size_kb")?;
    if kb > LARGEST_READ_KB {
        Some(
            Finding::failure(ID, format!("max_direct_io_size_kb is {kb}, more than {LARGEST_READ_KB}"))
                .why("nvidia-fs rejects reads of more than 16 MiB")
                .advice("set properties.max_direct_io_size_kb to 16384"),
        )
    } else if kb < 1024 {
        Some(
            Finding::warning(ID, format!("cuFile cuts reads into pieces of {}", size(kb << 10)))
                .why("drives reach their speed with reads of 1 MiB and more")
                .advice("set properties.max_direct_io_size_kb to 16384, the default"),
        )
    } else {
        None
    }
}

fn cache(config: &Config, _: &Probes) -> Option<Finding> {
    const ID: &str = "config.max_device_cache_size_kb";
    let total = config.number("properties.max_device_cache_size_kb").unwrap_or(128 << 10);
    let each = config.number("properties.per_buffer_cache_size_kb").unwrap_or(1 << 10).max(1);
    let batch = config.number("properties.io_batchsize").unwrap_or(BATCH);
    if total / each < batch {
        Some(
            Finding::warning(
                ID,
                format!(
                    "cuFile's own device buffers: {} of {}, fewer than a batch's {batch}",
                    total / each,
                    size(each << 10)
                ),
            )
            .why("a batch of unregistered or unaligned reads waits for buffers, or fails")
            .advice("let max_device_cache_size_kb / per_buffer_cache_size_kb be at least io_batchsize"),
        )
    } else if total >= LARGE_CACHE_KB {
        Some(
            Finding::warning(
                ID,
                format!("cuFile may take {} of every GPU for its own buffers", size(total << 10)),
            )
            .why("gds registers its own window and needs none of them; the model could use the memory")
            .advice("set properties.max_device_cache_size_kb to 131072, the default"),
        )
    } else {
        None
    }
}

fn pinned(config: &Config, _: &Probes) -> Option<Finding> {
    let kb = config.number("properties.max_device_pinned_mem_size_kb")?;
    (kb < WINDOW_KB).then(|| {
        Finding::warning(
            "config.max_device_pinned_mem_size_kb",
            format!("cuFile may register {} of GPU memory at most", size(kb << 10)),
        )
        .why("the gds path would like 128 MiB, and makes do with less, with fewer reads in flight")
        .advice("set properties.max_device_pinned_mem_size_kb to 33554432, the default")
    })
}

/// The host buffers that compatibility mode bounces through.
fn host_pool(config: &Config, _: &Probes) -> Option<Finding> {
    const ID: &str = "config.posix_pool_slab_count";
    let sizes = config.numbers("properties.posix_pool_slab_size_kb")?;
    let counts = config.numbers("properties.posix_pool_slab_count")?;
    if sizes.len() != counts.len() {
        return Some(
            Finding::warning(
                ID,
                format!(
                    "posix_pool_slab_size_kb has {} entries, posix_pool_slab_count {}",
                    sizes.len(),
                    counts.len()
                ),
            )
            .why("each size needs its count; libcufile may refuse the file")
            .advice("give both lists the same length"),
        );
    }
    let total =
        sizes.iter().zip(&counts).map(|(kb, count)| kb.saturating_mul(*count)).fold(0, u64::saturating_add);
    let largest = sizes.iter().zip(&counts).max_by_key(|(kb, _)| **kb).map(|(_, count)| *count);
    if total > 4 << 20 {
        Some(
            Finding::warning(
                ID,
                format!("compatibility mode may pin {} of host memory", size(total.saturating_mul(1024))),
            )
            .why("a container's memory limit counts it, and pinning takes about a second per GB")
            .advice("lower the counts of the largest sizes in properties.posix_pool_slab_count"),
        )
    } else if largest.is_some_and(|count| count < 32) {
        Some(
            Finding::warning(
                ID,
                format!("compatibility mode has {} of its largest host buffers", largest.unwrap_or(0)),
            )
            .why("batches in compatibility mode have hung when these ran out")
            .advice("raise the last count in properties.posix_pool_slab_count to 64"),
        )
    } else {
        None
    }
}

fn dynamic_routing(config: &Config, _: &Probes) -> Option<Finding> {
    if config.bool("properties.rdma_dynamic_routing") != Some(true) {
        return None;
    }
    let order = config.words("properties.rdma_dynamic_routing_order");
    Some(
        Finding::warning(
            "config.rdma_dynamic_routing",
            format!("dynamic routing is on, in this order: {}", if order.is_empty() { "libcufile's".into() } else { order.join(", ") }),
        )
        .why("network reads may be led through another GPU (GPU_MEM) or through host memory (SYS_MEM)")
        .advice("set properties.rdma_dynamic_routing to false unless GPU and network card are on different sockets"),
    )
}

fn parallel(config: &Config, _: &Probes) -> Option<Finding> {
    (config.bool("execution.parallel_io") == Some(false)).then(|| {
        Finding::info(
            "config.parallel_io",
            "execution.parallel_io is off: batches and stream-ordered reads in compatibility mode want it; gds has its own threads",
        )
    })
}

fn log_level(config: &Config, probes: &Probes) -> Option<Finding> {
    let level = probes.variable("CUFILE_LOGGING_LEVEL").or(config.text("logging.level"))?;
    matches!(level, "DEBUG" | "TRACE").then(|| {
        Finding::warning("config.logging_level", format!("cuFile logs at level {level}"))
            .why("it writes several lines for every read")
            .advice("set logging.level to ERROR when done")
    })
}

fn nvtx(config: &Config, _: &Probes) -> Option<Finding> {
    (config.bool("profile.nvtx") == Some(true)).then(|| {
        Finding::info("config.nvtx", "profile.nvtx is on: every call makes a range for the profiler")
    })
}

/// What is on the deny list goes through host memory; whether PATH is concerned is said with the storage findings.
fn denied(config: &Config, _: &Probes) -> Option<Finding> {
    let lists = ["drivers", "devices", "mounts", "filesystems"];
    let denied: Vec<String> = lists
        .iter()
        .filter_map(|list| {
            let entries = config.words(&format!("denylist.{list}"));
            (!entries.is_empty()).then(|| format!("{list} {}", entries.join(", ")))
        })
        .collect();
    (!denied.is_empty()).then(|| {
        Finding::warning("config.denylist", format!("cuFile is told not to serve {}", denied.join("; ")))
            .why("files there are refused, or copied through host memory")
            .advice("take the entries out of denylist, if they are not meant")
    })
}
