//! Every call of a load by GPUDirect Storage fails once: the library's and the driver's; and many go wrong at once, at random.
//!
//! Whatever fails, `auto` brings the right bytes or an error that says what failed, and nothing of ours is left but what a failed
//! release leaves.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod gds_support;
mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cuda_staging::Device;
use gds_loader::{Backend, Loader, PathKind};
use gds_support::{Checkpoint, REAL, Run, load};
use program::{digests, paths};
use test_support::cufile_sim::{self, Alive};
use test_support::fixture::{File, payload};
use test_support::{control, folder};

const SCRIPT: &str = "CUFILE_SIM_SCRIPT";

/// The codes of cuFile.
const CODES: RangeInclusive<u32> = 5001..=5050;

/// A code that nobody knows.
const UNKNOWN: u32 = 5999;

/// Some reads by one worker.
const LINE: &str = "load --device cuda:0 --digest --json --threads 1 --read-size 1MiB --backend";

fn long() -> bool {
    std::env::var_os("GDS_TESTS_LONG").is_some_and(|value| value == "1")
}

/// Runs `each` for all cases, on as many threads as there are cores.
fn on_all_cores<T: Sync>(cases: &[T], each: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    each(case);
                }
            });
        }
    });
}

#[test]
fn every_call_of_cufile_fails_once() {
    let Some(checkpoint) = Checkpoint::on_disk("every_call_of_cufile_fails_once", "--size 3MiB") else {
        return;
    };
    let calls = load(&format!("{LINE} gds"), &checkpoint.path, &[REAL]).cufile().calls.clone();
    let mut cases = Vec::new();
    for (function, count) in &calls {
        for k in 1..=*count {
            let every = if long() { CODES.collect() } else { vec![5030, 5001] };
            cases.extend(every.into_iter().chain([UNKNOWN]).map(|code| (function.as_str(), k, code)));
        }
    }
    if !long() {
        // Every code of a read, and of one other function, which take turns.
        let mut turns = calls.keys().map(String::as_str).cycle();
        cases.extend(CODES.flat_map(|code| [("cuFileRead", 1, code), (turns.next().unwrap(), 1, code)]));
    }
    let (hit, cannot) = (Mutex::new(BTreeMap::new()), Mutex::new(BTreeSet::new()));
    let fired = Mutex::new(BTreeMap::new());
    on_all_cores(&cases, |&(function, k, code)| {
        let effect = if function == "cuFileRead" { format!("-1:{code}") } else { code.to_string() };
        let script = format!("{function}@{k}={effect}");
        let settings = [REAL, (SCRIPT, script.as_str())];
        for backend in ["auto", "gds"] {
            let run = load(&format!("{LINE} {backend}"), &checkpoint.path, &settings);
            if run.finished.stderr.contains("invalid setting") || run.cufile().faults.is_empty() {
                // A function that cannot fail.
                cannot.lock().unwrap().insert(function);
                return;
            }
            check(&run, backend, &format!("{script} by {backend}"), &checkpoint.digests);
            *hit.lock().unwrap().entry(function).or_insert(0_u64) += run.cufile().faults[0].fired;
            *fired.lock().unwrap().entry(code).or_insert(0_u64) += run.cufile().faults[0].fired;
        }
    });
    let fired = fired.into_inner().unwrap();
    println!("by code: {fired:?}");
    for code in CODES.chain([UNKNOWN]) {
        assert!(fired.contains_key(&code), "nothing failed with {code}: {fired:?}");
    }
    let (hit, cannot) = (hit.into_inner().unwrap(), cannot.into_inner().unwrap());
    println!("failed, so often: {hit:#?}\ncannot fail: {cannot:?}");
    for function in [
        "cuFileRead",
        "cuFileDriverOpen",
        "cuFileHandleRegister",
        "cuFileBufRegister",
        "cuFileBufDeregister",
        "cuFileGetStatsL3",
    ] {
        assert!(
            hit.get(function).is_some_and(|count| *count > 0),
            "{function} was never made to fail: {hit:?}"
        );
    }
}

/// Every code that cuFile has or may get, by every call that a load waits for: reads, registrations, batches, events of batches.
#[test]
fn every_code_by_every_call() {
    let test = "every_code_by_every_call";
    let settings = [REAL, ("CUDA_SIM_BAR1", "1GiB")];
    cufile_sim::on_simulator(test, &settings, || {
        let folder = folder::on_disk(test);
        let lens = [("a", (1 << 20) + 1), ("b", (1 << 20) + 4097)];
        for (number, (name, len)) in lens.into_iter().enumerate() {
            let path = folder.path().join(format!("model-{:05}-of-00002.safetensors", number + 1));
            File::new().tensor(name, "U8", &[len]).write(&path);
        }
        let device = Device::cuda(0).unwrap();
        let load = |backend, batches| {
            let loader = Loader::new().device(device.clone()).backend(backend).cufile_batches(batches);
            loader.threads(1).read_size(256 << 10).load(folder.path())
        };
        let mut fired = BTreeMap::new();
        for code in 5001..=5050 {
            for (script, batches) in [
                (format!("read@2=-1:{code}"), false),
                (format!("read@2=-{code}"), false),
                (format!("handle_register@1={code}"), false),
                (format!("buf_register={code}"), false),
                (format!("batch_set_up={code}"), true),
                // The first use: there is a second one only if not all has ended by then.
                (format!("batch_get_status@1={code}"), true),
                (format!("batch_event@2=-{code}"), true),
                (format!("batch_event@2=FAILED:-{code}"), true),
            ] {
                cufile_sim::set_script(&script);
                let model = load(Backend::Auto, batches).unwrap_or_else(|error| panic!("{script}: {error}"));
                for (name, len) in lens {
                    let found =
                        control::read_device_memory(model.get(name).unwrap().device_address(), len as usize);
                    assert!(found == payload(name, found.len()), "{script}: {name}");
                }
                assert_eq!(model.report().paths.total(), model.report().bytes, "{script}");
                *fired.entry(script.split(['@', '=']).next().unwrap().to_owned()).or_insert(0) +=
                    cufile_sim::report().faults[0].fired;
                drop(model);
                if code % 7 != 0 {
                    continue;
                }
                cufile_sim::set_script(&script);
                // There are no batches for lack of one; without fallback there is an error that has the code.
                let kept = load(Backend::Only(PathKind::Gds), batches);
                let error = kept.err().map_or_else(|| script.clone(), |error| error.to_string());
                assert!(error.contains(&code.to_string()), "{script}: {error}");
            }
        }
        println!("fired: {fired:?}");
        assert!(fired.len() == 6 && fired.values().all(|count| *count >= 50), "{fired:?}");
        assert_eq!(cufile_sim::report().alive, Alive::default());
    });
}

#[track_caller]
fn check(run: &Run, backend: &str, what: &str, expected: &BTreeMap<String, String>) {
    let finished = &run.finished;
    match finished.code() {
        Some(0) => {
            let report = run.json();
            assert_eq!(&digests(&report), expected, "{what}");
            let by: u64 = paths(&report).values().sum();
            assert_eq!(by, report["bytes"].as_u64().unwrap(), "{what}");
            assert_eq!(paths(&report).get("gds-compat"), None, "{what}");
        }
        Some(1 | 3) if backend == "gds" => {
            assert!(
                finished.stdout.is_empty() && finished.stderr.starts_with("error: "),
                "{what}: {finished}"
            );
        }
        _ => panic!("{what}: {finished}"),
    }
    assert!(!finished.stderr.contains("panicked"), "{what}: {finished}");
    let cufile = run.cufile();
    // Memory that could not be deregistered is kept, since the storage may still write to it.
    let kept = u64::from(what.starts_with("cuFileBufDeregister") && cufile.faults[0].fired > 0);
    assert_eq!(cufile.alive.buffers, kept, "{what}: {:?}", cufile.alive);
    assert_eq!((cufile.alive.handles, cufile.alive.batches), (0, 0), "{what}");
    let alive = run.driver.as_ref().unwrap().ours_alive();
    assert!(alive.is_empty() || kept == 1, "{what}: {alive:?}");
}

/// As above for the driver's calls, of which a load makes some hundreds; a sample of them, with a code that leaves the context
/// whole and one that breaks it.
#[test]
fn calls_of_the_driver_fail_once() {
    let Some(checkpoint) = Checkpoint::on_disk("calls_of_the_driver_fail_once", "--size 3MiB") else {
        return;
    };
    let clean = load(&format!("{LINE} gds"), &checkpoint.path, &[REAL]);
    let total = clean.driver.as_ref().unwrap().total_calls;
    // Codes after which the context is broken take turns where not all are tried.
    let codes = |k: u64| match long() {
        true => vec![2, 4242, 700, 719, 999],
        false => vec![2, 4242, [700, 719, 999][k as usize % 3]],
    };
    // A step that is no multiple of the calls that belong to one another, or it would always hit the same of them.
    let cases: Vec<(u64, u32)> = (1..total + 20)
        .step_by(if long() { 1 } else { 7 })
        .flat_map(|k| codes(k).into_iter().map(move |code| (k, code)))
        .collect();
    let hit = Mutex::new(BTreeMap::new());
    on_all_cores(&cases, |&(k, code)| {
        let fault = format!("*@{k}={code}");
        let run = load(&format!("{LINE} auto"), &checkpoint.path, &[REAL, ("CUDA_SIM_FAULT", &fault)]);
        let finished = &run.finished;
        let function = run.driver.as_ref().and_then(|driver| driver.faults.keys().next().cloned());
        let what = format!("{fault} in {function:?}: {finished}");
        match finished.code() {
            Some(0) => assert_eq!(digests(&run.json()), checkpoint.digests, "{what}"),
            Some(1 | 3) => {
                assert!(finished.stdout.is_empty() && finished.stderr.contains("error: "), "{what}")
            }
            _ => panic!("{what}"),
        }
        assert!(!finished.stderr.contains("panicked"), "{what}");
        let Some(function) = function else { return };
        let releases = [
            "cuMemFree_v2",
            "cuMemHostUnregister",
            "cuStreamDestroy_v2",
            "cuEventDestroy_v2",
            "cuDevicePrimaryCtxRelease_v2",
        ];
        if ![700, 719, 999].contains(&code) && !releases.contains(&function.as_str()) {
            let alive = run.driver.as_ref().unwrap().ours_alive();
            assert!(alive.is_empty(), "{alive:?} after {what}");
            if let Some(cufile) = &run.cufile {
                assert_eq!(cufile.alive, Alive::default(), "{what}");
            }
        }
        *hit.lock().unwrap().entry(function).or_insert(0_u64) += 1;
    });
    println!("{total} calls; failed, so often: {:#?}", hit.into_inner().unwrap());
}

/// Numbers that look random, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn one_of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.below(texts.len() as u64) as usize]
    }
}

/// A script of some faults that another path can make up for.
fn script(numbers: &mut Numbers) -> String {
    let faults = (0..1 + numbers.below(5)).map(|_| {
        let call = numbers.one_of(&[
            "read",
            "read",
            "batch_event",
            "batch_event",
            "handle_register",
            "buf_register",
            "batch_submit",
        ]);
        let effect = match call {
            "read" => numbers.one_of(&[
                "short:2",
                "short:3",
                "bytes:1",
                "bytes:4096",
                "bytes:0",
                "bytes:5000",
                "-1:5027",
                "-1:5",
                "-1:22",
                "-1:5999",
                "-5030",
                "-1:4",
            ]),
            "batch_event" => numbers.one_of(&[
                "short:2",
                "bytes:1",
                "bytes:0",
                "bytes:8192",
                "FAILED",
                "INVALID",
                "CANCELED",
                "FAILED:-5027",
                "-5",
                "-5030",
            ]),
            "handle_register" => numbers.one_of(&["5027", "5030", "5999"]),
            "buf_register" => numbers.one_of(&["5016", "5043", "5999"]),
            _ => "5022",
        };
        // A byte at a time, onwards, would be right and take for ever.
        let onwards = if effect == "bytes:1" { "" } else { numbers.one_of(&["", "", "+"]) };
        let first = 1 + numbers.below(30);
        format!("{call}@{first}{onwards}={effect}")
    });
    faults.collect::<Vec<_>>().join(",")
}

/// Tells a process of [`many_faults_at_random`] its seed.
const SEED: &str = "GDS_SWEEP_SEED";

#[test]
fn many_faults_at_random() {
    let test = "many_faults_at_random";
    // A process each, so that one that hangs is noticed within the limit of any other.
    for seed in 0..if long() { 33 } else { 1 } {
        let seed = (20_261_129_u64 + seed).to_string();
        let settings = [
            REAL,
            ("CUDA_SIM_COPY_LATENCY_US", "50"),
            ("CUDA_SIM_JITTER_US", "200"),
            ("CUDA_SIM_BAR1", "1GiB"),
            (SEED, &seed),
        ];
        let body = || many_faults_in_this_process(test, std::env::var(SEED).unwrap().parse().unwrap());
        if cufile_sim::on_simulator(test, &settings, body).is_none() {
            return;
        }
    }
}

fn many_faults_in_this_process(test: &str, seed: u64) {
    let folder = folder::on_disk(test);
    let sizes = [(700_000, 1_300_001), (2_000_003, 4096), (4097, 1_200_000)];
    for (number, (first, second)) in sizes.into_iter().enumerate() {
        let path = folder.path().join(format!("model-{:05}-of-00003.safetensors", number + 1));
        let name = |part: &str| format!("{number}.{part}");
        let tiny = |file: File, k: u64| file.tensor(&name(&format!("tiny.{k}")), "F32", &[k % 7]);
        let file =
            File::new().tensor(&name("first"), "U8", &[first]).tensor(&name("second"), "U8", &[second]);
        (0..40).fold(file, tiny).write(&path);
    }
    let device = Device::cuda(0).unwrap();
    let mut numbers = Numbers(seed);
    let (mut by_gds, mut elsewhere) = (0, 0);
    for round in 0..60 {
        let faults = script(&mut numbers);
        let (threads, pages) = (1 + numbers.below(5) as usize, [4, 16, 64, 256][numbers.below(4) as usize]);
        let batches = numbers.below(2) == 1;
        let what = format!(
            "seed {seed}, round {round}: {faults}; {threads} threads, reads of {pages} pages, batches {batches}"
        );
        eprintln!("{what}");
        cufile_sim::set_script(&faults);
        let loader = Loader::new().device(device.clone()).backend(Backend::Auto);
        let loader = loader.threads(threads).read_size(pages * 4096).cufile_batches(batches);
        let model = loader.load(folder.path()).unwrap_or_else(|error| panic!("{what}: {error}"));
        for tensor in model.tensors().filter(|tensor| !tensor.is_empty()) {
            let found = control::read_device_memory(tensor.device_address(), tensor.len() as usize);
            assert!(found == payload(tensor.name(), found.len()), "{what}: {tensor:?}");
        }
        let report = model.report();
        assert_eq!(report.paths.total(), report.bytes, "{what}");
        by_gds += report.paths.get(PathKind::Gds);
        elsewhere += report.bytes - report.paths.get(PathKind::Gds);
        drop(model);
        assert_eq!(cufile_sim::report().alive, Alive::default(), "{what}");
    }
    println!("{by_gds} bytes by gds, {elsewhere} elsewhere");
    assert!(by_gds > elsewhere / 10 && elsewhere > by_gds / 10, "the faults hit all or nothing");
}
