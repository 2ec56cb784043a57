//! Every driver call fails once.
//!
//! A load is run again and again, and in the K-th run the K-th call of the driver fails, until a run ends before its fault fires. Each
//! run must end, watched, in correct data or in an error that names the call, and leave nothing of ours behind but what a failed
//! release leaves. At the end the faults that fired are listed by function.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod program;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use cuda_staging::Device;
use gds_loader::{Backend, Destination, Loader, PathKind};
use program::{OnGpu, digests, gds, json, on_gpu, run, well_on_gpu};
use tempfile::TempDir;
use test_support::Tally;
use test_support::fixture::File;
use test_support::{Simulation, control, folder};

/// Out of memory, and a code that nobody knows: the context lives on, whatever the caller thinks.
const PASSING: [u32; 2] = [2, 4242];

/// Codes after which a context is broken for good, in the simulator as in the driver: every later call in it fails.
const BREAKING: [u32; 3] = [700, 719, 999];

/// All of them with `GDS_TESTS_LONG=1`; else one of those that break a context stands for the others.
fn codes() -> Vec<u32> {
    let breaking = if long() { BREAKING.as_slice() } else { &BREAKING[..1] };
    [PASSING.as_slice(), breaking].concat()
}

fn long() -> bool {
    std::env::var_os("GDS_TESTS_LONG").is_some_and(|value| value == "1")
}

/// How often events are asked differs from run to run, and so does the number of calls: so many runs in a row must end before
/// their fault fires.
const MISSES: u32 = 16;

/// How long one run may take: the loader's own waits are longer where something hangs.
const LIMIT: Duration = Duration::from_secs(40);

/// Some pieces of 4 KiB, one of them gathered.
fn small_model(folder: &Path) -> PathBuf {
    let path = folder.join("model.safetensors");
    File::new()
        .tensor("a", "U8", &[6001])
        .tensor("b", "F32", &[5, 7])
        .tensor("c", "BF16", &[])
        .tensor("d", "F32", &[2000])
        .write(&path);
    path
}

/// Faults that fired, by function and code.
#[derive(Default)]
struct Fired(BTreeMap<String, BTreeMap<u32, u64>>);

impl Fired {
    fn note(&mut self, function: &str, code: u32) {
        *self.0.entry(function.to_owned()).or_default().entry(code).or_default() += 1;
    }

    /// Those of `functions` that never failed with `code`.
    fn missed<'a>(&self, functions: impl Iterator<Item = &'a String>, code: u32) -> Vec<String> {
        let hit = |function: &String| self.0.get(function).is_some_and(|counts| counts.contains_key(&code));
        functions.filter(|function| !hit(function)).cloned().collect()
    }

    fn print(&self, title: &str) {
        println!("{title}: faults that fired, by function and code");
        for (function, counts) in &self.0 {
            let count = |code: &u32| format!("{code}: {:>4}", counts.get(code).copied().unwrap_or(0));
            let counts: Vec<String> = PASSING.iter().chain(&BREAKING).map(count).collect();
            println!("  {function:<32} {}", counts.join("  "));
        }
    }
}

/// Whether `alive` is nothing, or what failed releases leave: the one thing that `function` was to release, or, in a broken
/// context, in which every release fails, all there was.
fn is_explained(alive: &BTreeMap<String, Tally>, function: &str, code: u32) -> bool {
    if BREAKING.contains(&code) {
        return true;
    }
    let kind = match function {
        "cuMemFree_v2" => "allocations",
        "cuMemHostUnregister" => "pins",
        "cuStreamDestroy_v2" => "streams",
        "cuEventDestroy_v2" => "events",
        "cuDevicePrimaryCtxRelease_v2" => "retains",
        _ => return alive.is_empty(),
    };
    alive.iter().all(|(what, tally)| what == kind && tally.count <= 1)
}

/// A load of the small model by `gds`, with its right result.
struct Load {
    _folder: TempDir,
    path: PathBuf,
    line: String,
    expected: BTreeMap<String, String>,
}

impl Load {
    fn new(options: &str) -> Self {
        let folder = folder::on_disk("sweep");
        let path = small_model(folder.path());
        let expected = digests(&json(&run("load --device cpu --digest --json", [&path])));
        let line = format!("load --device cuda:0 --json --digest --backend buffered {options}");
        Self { _folder: folder, path, line, expected }
    }

    /// Runs it with one fault, that of the form `CALL@K=` and `code`; the function it hit, or `None` where the run was over before.
    fn with_fault(&self, place: &str, code: u32) -> Option<String> {
        let fault = format!("{place}={code}");
        let settings = [
            ("CUDA_SIM_FAULT", fault.as_str()),
            ("CUDA_SIM_COPY_LATENCY_US", "20"),
            ("CUDA_SIM_JITTER_US", "20"),
        ];
        let OnGpu { finished, report } = on_gpu(gds(&self.line, [&self.path]), &settings, LIMIT);
        let hit = match &report {
            Some(report) => report.faults.keys().next().cloned()?,
            // The driver never came up, so it wrote no report.
            None => "cuInit".to_owned(),
        };
        let what = format!("{hit} by {fault}: {finished}");
        match finished.code() {
            Some(0) => assert_eq!(digests(&json(&finished)), self.expected, "{what}"),
            Some(1 | 3) => {
                // In a broken context every thread's next call fails, and the first to say so is heard.
                let named = if BREAKING.contains(&code) { "cu" } else { hit.as_str() };
                assert!(finished.stderr.contains(named), "the error does not name {what}");
                let with = format!("failed with {code} ");
                assert!(finished.stderr.contains(&with), "{with:?} is missing after {what}");
                assert!(finished.stdout.is_empty(), "{what}");
            }
            _ => panic!("{what}"),
        }
        assert!(!finished.stderr.contains("panicked"), "{what}");
        let alive = report.map(|report| report.ours_alive()).unwrap_or_default();
        assert!(is_explained(&alive, &hit, code), "alive: {alive:?} after {what}");
        Some(hit)
    }

    /// Runs it with the first call of each function failing with `code`, on as many threads as there are cores.
    fn first_of_each<'a>(
        &self,
        code: u32,
        functions: impl Iterator<Item = &'a String> + Send,
        fired: &Mutex<Fired>,
    ) {
        let functions = Mutex::new(functions);
        let next = || functions.lock().unwrap().next();
        let work = || {
            while let Some(function) = next() {
                let hit = self.with_fault(&format!("{function}@1"), code);
                fired.lock().unwrap().note(&hit.unwrap_or_else(|| panic!("{function} was not called")), code);
            }
        };
        thread::scope(|scope| {
            for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(work);
            }
        });
    }

    /// Runs it with the k-th call failing with `code`, for each k of `numbers`, until no fault fires any more, on as many threads as
    /// there are cores.
    fn sweep(&self, code: u32, numbers: impl Iterator<Item = u64> + Send, fired: &Mutex<Fired>) {
        let numbers = Mutex::new(numbers);
        let next = || numbers.lock().unwrap().next();
        let misses = AtomicU32::new(0);
        let sweep = || {
            while misses.load(Ordering::Relaxed) < MISSES
                && let Some(k) = next()
            {
                match self.with_fault(&format!("*@{k}"), code) {
                    Some(hit) => {
                        misses.store(0, Ordering::Relaxed);
                        fired.lock().unwrap().note(&hit, code);
                    }
                    None => {
                        misses.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(sweep);
            }
        });
    }
}

#[test]
fn every_call_of_a_load_by_one_worker() {
    let load = Load::new("--threads 1 --slots 3 --slot-size 8KiB --read-size 4KiB");
    let (_, report) = well_on_gpu(&load.line, &load.path, &[]);
    let fired = Mutex::new(Fired::default());
    // Each of the codes that are not swept hits each function once.
    for code in BREAKING.into_iter().filter(|code| !codes().contains(code)) {
        load.first_of_each(code, report.calls.keys(), &fired);
    }
    for code in codes() {
        load.sweep(code, 1.., &fired);
        // The last calls move about from run to run, and some may have escaped.
        let missed = fired.lock().unwrap().missed(report.calls.keys(), code);
        for function in missed {
            let hit = load.with_fault(&format!("{function}@1"), code);
            fired.lock().unwrap().note(&hit.unwrap_or_else(|| panic!("{function} was not called")), code);
        }
    }
    fired.into_inner().unwrap().print("one worker");
}

/// With many workers the K-th call is another one each time, so a sample does.
#[test]
fn sampled_calls_of_a_load_by_many_workers() {
    let load = Load::new("--threads 4 --slots 8 --slot-size 8KiB --read-size 4KiB");
    let fired = Mutex::new(Fired::default());
    for code in codes() {
        load.sweep(code, (1..).step_by(if long() { 3 } else { 9 }), &fired);
    }
    fired.into_inner().unwrap().print("four workers");
}

/// As above within one process, which must be able to go on: the device is opened anew after each failure.
#[test]
fn every_call_of_the_library() {
    let test = "every_call_of_the_library";
    let settings = [("CUDA_SIM_COPY_LATENCY_US", "20"), ("CUDA_SIM_JITTER_US", "20")];
    // A load for each use of each call, which a sanitizer makes many times as slow.
    let simulation = Simulation::new(test).settings(&settings).limit(Duration::from_secs(600));
    let outcome = simulation.run(library_sweep);
    let Some(outcome) = outcome else { return };
    assert!(outcome.finished, "{outcome}");
}

fn library_sweep() {
    let folder = folder::on_disk("library_sweep");
    let path = small_model(folder.path());
    let expected = std::fs::read(&path).unwrap();
    let expected = safetensors::SafeTensors::deserialize(&expected).unwrap();
    let holds = |name: &str, bytes: &[u8]| assert!(expected.tensor(name).unwrap().data() == bytes, "{name}");

    // Whatever the device and the loader offer, each step with the driver.
    let everything = || -> Result<(), Box<dyn std::error::Error>> {
        let device = Device::cuda(0)?;
        let loader = Loader::new().device(device.clone()).backend(Backend::Only(PathKind::Buffered));
        let loader = loader.threads(2).slots(4).slot_size(8192).read_size(4096);
        device.memory()?;
        let model = loader.load(&path)?;
        for tensor in model.tensors() {
            holds(tensor.name(), &tensor.to_vec()?);
        }
        let memory = device.allocate(8000, 256)?;
        // SAFETY: `memory` outlives the load. After a failure copies might be in flight, but with one fault a run the driver then
        // says that they are over before the load returns.
        let destination = unsafe { Destination::device("d", &device, memory.address(), 8000) }?;
        loader.load_into(&path, vec![destination])?;
        holds("d", &control::read_device_memory(memory.address(), 8000));
        assert_eq!(model.digests()?.len(), expected.len());
        Ok(())
    };
    // The function that a fault at `place` hit, if it did.
    let with_fault = |place: &str, code: u32| {
        let before = control::report().ours_alive();
        control::reset_counters();
        control::set_fault(&format!("{place}={code}"));
        let outcome = everything();
        let hit = control::report().faults.keys().next().cloned();
        control::set_fault("");
        let hit = hit?;
        if let Err(error) = outcome {
            let text = error.to_string();
            assert!(text.contains(&hit), "{place} failing with {code}: {text} does not name {hit}");
        }
        let left = grown(&before, &control::report().ours_alive());
        assert!(is_explained(&left, &hit, code), "left by {hit}, {place} failing with {code}: {left:?}");
        Some(hit)
    };

    everything().unwrap();
    let report = control::report();
    assert!(report.ours_alive().is_empty());
    // The driver is initialised once a process.
    let called: Vec<String> = report.calls.into_keys().filter(|function| function != "cuInit").collect();
    let mut fired = Fired::default();
    // A broken context stays broken in its process, so these codes are for the runs above.
    for code in PASSING {
        let mut misses = 0;
        let mut k = 0;
        while misses < MISSES {
            k += 1;
            match with_fault(&format!("*@{k}"), code) {
                Some(hit) => {
                    misses = 0;
                    fired.note(&hit, code);
                }
                None => misses += 1,
            }
        }
        for function in fired.missed(called.iter(), code) {
            let hit = with_fault(&format!("{function}@1"), code);
            fired.note(&hit.unwrap_or_else(|| panic!("{function} was not called")), code);
        }
    }
    fired.print("the library");
    everything().unwrap();
}

/// What is in `after` beyond `before`.
fn grown(before: &BTreeMap<String, Tally>, after: &BTreeMap<String, Tally>) -> BTreeMap<String, Tally> {
    let earlier = |kind: &str| before.get(kind).copied().unwrap_or_default();
    let grown = after.iter().map(|(kind, tally)| {
        let tally =
            Tally { count: tally.count - earlier(kind).count, bytes: tally.bytes - earlier(kind).bytes };
        (kind.clone(), tally)
    });
    grown.filter(|(_, tally)| tally.count > 0).collect()
}
