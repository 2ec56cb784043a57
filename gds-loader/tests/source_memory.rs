//! No number written in a file decides how much is allocated: an allocator that counts watches hostile files being refused.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod format_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use format_support::{entry, file_bytes, one, vectors, write};
use gds_loader::source::{Source, SourceError};

/// The system's allocator, with a record of the most that was allocated at a time.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator unchanged; only numbers are kept besides.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract of `alloc`, which is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract of `dealloc`, and the memory came from the same allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Opens `path` and returns by how many bytes the peak exceeded what was allocated before.
fn open_counted(path: &Path) -> (Result<Source, SourceError>, usize) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = Source::open(path);
    (result, PEAK.load(Ordering::Relaxed).saturating_sub(before))
}

const BOUND: usize = 256 * 1024;

// One test, since another at the same time would be counted too.
#[test]
fn hostile_numbers_allocate_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    Source::open(write(at("warm-up.safetensors"), vectors(&["x"], 1))).unwrap();

    let sparse = |name: &str, header_len: u64, len: u64| {
        let path = write(at(name), header_len.to_le_bytes());
        File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
        path
    };
    let mut refused = vec![
        sparse("above-the-limit", 100_000_001, 100_000_101),
        sparse("issue", 132_095_296, 7_000_000_000),
        sparse("whole-file", (1 << 40) - 8, 1 << 40),
        sparse("beyond", 1 << 40, 1 << 40),
        sparse("max", u64::MAX, 1 << 40),
        sparse("signed-max", i64::MAX as u64, 1 << 40),
        sparse("wraps", u64::MAX - 7, 4096),
        sparse("model.safetensors.index.json", 0, 1 << 40),
    ];
    for (name, shape, end) in [
        ("shape", "[4611686018427387904]", 1u64 << 62),
        ("wrap", "[4294967296,4294967296]", 0),
        ("long", "[1099511627776]", 1 << 40),
        ("offsets", "[1]", u64::MAX),
    ] {
        refused.push(write(at(name), file_bytes(one("U8", shape, 0, end), 4)));
    }
    let numbered = at("numbered");
    std::fs::create_dir(&numbered).unwrap();
    write(numbered.join("m-1-of-18446744073709551615.safetensors"), vectors(&["x"], 1));
    refused.push(numbered);
    for path in refused {
        let (result, peak) = open_counted(&path);
        let error = result.map(|source| source.bytes()).unwrap_err();
        assert!(error.is_invalid_data(), "{error}");
        assert!(peak < BOUND, "{peak} bytes for {error}");
    }

    // A tensor that is really as long as it claims costs nothing either, as long as nobody reads it.
    let json = format!("{{{}}}", entry("a", "U8", "[1099511627776]", 0, 1 << 40));
    let path = write(at("true"), file_bytes(&json, 0));
    File::options().write(true).open(&path).unwrap().set_len((1 << 40) + 8 + json.len() as u64).unwrap();
    let (result, peak) = open_counted(&path);
    assert_eq!(result.unwrap().bytes(), 1 << 40);
    assert!(peak < BOUND, "{peak}");
}
