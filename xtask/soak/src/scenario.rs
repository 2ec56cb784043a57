//! The scenarios, and the ways bytes go in each.

use crate::meddle::Meddling;
use crate::pressure::Pressure;
use crate::spec::{Engine, Errors};

/// Which libcufile a child finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CuFile {
    None,
    /// The simulated one, on a machine where GPUDirect Storage works.
    Sim,
    /// NVIDIA's, in compatibility mode.
    Nvidia,
}

/// A destination and a path to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) gpu: bool,
    pub(crate) backend: &'static str,
    pub(crate) engine: Engine,
    pub(crate) batches: bool,
    pub(crate) cufile: CuFile,
}

const fn cpu(name: &'static str, backend: &'static str, engine: Engine) -> Way {
    Way { name, gpu: false, backend, engine, batches: false, cufile: CuFile::None }
}

const fn gpu(name: &'static str, backend: &'static str, engine: Engine) -> Way {
    Way { gpu: true, ..cpu(name, backend, engine) }
}

const fn cufile(name: &'static str, backend: &'static str, cufile: CuFile) -> Way {
    Way { cufile, ..gpu(name, backend, Engine::Auto) }
}

const CPU_AUTO: Way = cpu("cpu auto", "auto", Engine::Auto);
const CPU_DIRECT: Way = cpu("cpu direct", "direct", Engine::Auto);
const CPU_URING: Way = cpu("cpu direct io_uring", "direct", Engine::IoUring);
const CPU_THREADS: Way = cpu("cpu direct threads", "direct", Engine::Threads);
const CPU_BUFFERED: Way = cpu("cpu buffered", "buffered", Engine::Auto);
const CPU_MMAP: Way = cpu("cpu mmap", "mmap", Engine::Auto);
const GPU_AUTO: Way = gpu("gpu auto", "auto", Engine::Auto);
const GPU_DIRECT: Way = gpu("gpu direct", "direct", Engine::Auto);
const GPU_URING: Way = gpu("gpu direct io_uring", "direct", Engine::IoUring);
const GPU_THREADS: Way = gpu("gpu direct threads", "direct", Engine::Threads);
const GPU_BUFFERED: Way = gpu("gpu buffered", "buffered", Engine::Auto);
const GPU_MMAP: Way = gpu("gpu mmap", "mmap", Engine::Auto);
const GDS: Way = cufile("gpu gds", "gds", CuFile::Sim);
const GDS_AUTO: Way = cufile("gpu auto gds", "auto", CuFile::Sim);
const GDS_BATCHES: Way = Way { batches: true, ..cufile("gpu gds batches", "gds", CuFile::Sim) };
const COMPAT: Way = cufile("gpu gds-compat", "gds-compat", CuFile::Sim);
const COMPAT_NVIDIA: Way = cufile("gpu gds-compat nvidia", "gds-compat", CuFile::Nvidia);

/// Loads under one kind of pressure.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) pressure: Pressure,
    pub(crate) meddling: Meddling,
    /// Loaded at once in each process, each another one.
    pub(crate) models: usize,
    /// That load the same models at once.
    pub(crate) processes: usize,
    pub(crate) shards: usize,
    pub(crate) shard_bytes: usize,
    pub(crate) errors: fn() -> Errors,
    /// It is about the number of loads.
    pub(crate) many: bool,
    ways: &'static [Way],
}

const MIB: usize = 1 << 20;

/// One model of 16 MiB in four shards, loaded alone.
const PLAIN: Scenario = Scenario {
    name: "loads",
    about: "one load after the other in one process",
    pressure: Pressure::None,
    meddling: Meddling::Nothing,
    models: 1,
    processes: 1,
    shards: 4,
    shard_bytes: 4 * MIB,
    errors: || Errors::None,
    many: true,
    ways: &[
        CPU_AUTO,
        CPU_URING,
        CPU_THREADS,
        CPU_BUFFERED,
        CPU_MMAP,
        GPU_AUTO,
        GPU_URING,
        GPU_THREADS,
        GPU_BUFFERED,
        GPU_MMAP,
        GDS,
        GDS_AUTO,
        GDS_BATCHES,
        COMPAT,
        COMPAT_NVIDIA,
    ],
};

/// Of one file, that somebody changes.
const CHANGING: Scenario = Scenario {
    shards: 1,
    shard_bytes: 12 * MIB,
    errors: || Errors::MayChange,
    many: false,
    ways: &[CPU_AUTO, CPU_URING, CPU_THREADS, CPU_BUFFERED, CPU_MMAP, GPU_AUTO, GPU_DIRECT, GPU_MMAP, GDS],
    ..PLAIN
};

/// All of them, in the order of the table.
pub(crate) const ALL: &[Scenario] = &[
    PLAIN,
    Scenario {
        name: "failing",
        about: "every second load cancelled, cut short, or of what is no model, not there, not in it",
        shards: 1,
        shard_bytes: 12 * MIB,
        errors: || Errors::Provoked,
        ways: &[
            CPU_URING,
            CPU_THREADS,
            CPU_BUFFERED,
            CPU_MMAP,
            GPU_URING,
            GPU_BUFFERED,
            GDS,
            GDS_BATCHES,
            COMPAT,
        ],
        ..PLAIN
    },
    Scenario {
        name: "at-once",
        about: "16 models loaded by 16 threads of one process",
        models: 16,
        shards: 1,
        // Sixteen windows at once are more than the GPU lets be pinned: what is refused one goes by another path.
        ways: &[CPU_AUTO, CPU_URING, GPU_AUTO, GPU_URING, GDS_AUTO],
        ..PLAIN
    },
    Scenario {
        name: "processes",
        about: "one model loaded by 16 processes, which share what they read",
        processes: 16,
        many: false,
        ways: &[CPU_AUTO, CPU_BUFFERED, GPU_AUTO, GDS],
        ..PLAIN
    },
    Scenario {
        name: "little-memory",
        about: "a cgroup of 160 MiB for a model of 64 MiB, its file cache and the rest",
        pressure: Pressure::Memory(160 << 20),
        shards: 2,
        shard_bytes: 32 * MIB,
        many: false,
        ways: &[
            CPU_AUTO,
            CPU_URING,
            CPU_BUFFERED,
            CPU_MMAP,
            GPU_AUTO,
            GPU_URING,
            GPU_BUFFERED,
            GPU_MMAP,
            GDS,
        ],
        ..PLAIN
    },
    Scenario {
        name: "little-memlock",
        about: "64 KiB that may be locked, for a user without privileges",
        pressure: Pressure::Memlock(64 << 10),
        many: false,
        ways: &[CPU_AUTO, CPU_URING, GPU_AUTO, GPU_URING, GPU_BUFFERED, GDS],
        ..PLAIN
    },
    Scenario {
        name: "few-files",
        about: "128 descriptors for a model of 20 shards, which stay open",
        pressure: Pressure::Descriptors(128),
        shards: 20,
        shard_bytes: MIB,
        many: false,
        ways: &[CPU_AUTO, CPU_URING, CPU_MMAP, GPU_AUTO, GPU_URING, GDS],
        ..PLAIN
    },
    Scenario {
        name: "too-few-files",
        about: "64 descriptors for a model of 100 shards, which take turns",
        pressure: Pressure::Descriptors(64),
        shards: 100,
        shard_bytes: MIB / 8,
        many: false,
        ways: &[CPU_AUTO, CPU_MMAP, GPU_AUTO],
        ..PLAIN
    },
    Scenario {
        name: "no-io-uring",
        about: "io_uring refused with EPERM",
        pressure: Pressure::IoUring,
        many: false,
        ways: &[CPU_AUTO, CPU_DIRECT, GPU_AUTO, GPU_DIRECT, GDS],
        ..PLAIN
    },
    Scenario {
        name: "dropped-pages",
        about: "the files' pages dropped from the page cache every 2 ms",
        meddling: Meddling::DropPages,
        many: false,
        ways: &[CPU_AUTO, CPU_BUFFERED, CPU_MMAP, GPU_AUTO, GPU_BUFFERED, GPU_MMAP, GDS],
        ..PLAIN
    },
    Scenario {
        name: "appended",
        about: "bytes appended to the file, and cut off again",
        meddling: Meddling::Append,
        ..CHANGING
    },
    Scenario {
        name: "truncated",
        about: "half of the file cut off, then zeros, then written again",
        meddling: Meddling::Truncate,
        ..CHANGING
    },
    Scenario {
        name: "rewritten",
        about: "another version written over the file, in place or from nothing",
        meddling: Meddling::Rewrite,
        ..CHANGING
    },
    Scenario {
        name: "replaced",
        about: "another version renamed over the file: the old or the new, and never an error",
        meddling: Meddling::Replace,
        errors: || Errors::None,
        ..CHANGING
    },
    Scenario {
        name: "replaced-set",
        about: "another version's shards and index put in place, the old shards removed",
        meddling: Meddling::ReplaceSet,
        shards: 3,
        errors: || Errors::None,
        ways: &[CPU_AUTO, CPU_URING, CPU_MMAP, GPU_AUTO, GDS],
        ..CHANGING
    },
];

impl Scenario {
    /// The ways to run: all, or the first for each destination and library.
    pub(crate) fn ways(&self, short: bool) -> Vec<&'static Way> {
        let mut ways: Vec<&Way> = Vec::new();
        for way in self.ways {
            let like = |other: &&Way| (other.gpu, other.cufile) == (way.gpu, way.cufile);
            if !short || !ways.iter().any(like) {
                ways.push(way);
            }
        }
        ways
    }
}
