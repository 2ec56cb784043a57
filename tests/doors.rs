//! What the library's front door promises beyond the cases that every path runs through: what it refuses, whom it waits for, and
//! what its digests are of.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cuda_staging::{Device, RegionMut, Stream};
use gds_loader::format::Dtype;
use gds_loader::source::Source;
use gds_loader::{
    Backend, CancelToken, Destination, Error, ErrorKind, Loader, Model, PathKind, SaveError, SaveTensor,
    Saver, Verifier,
};
use sha2::{Digest as _, Sha256};
use test_support::fixture::{File, payload};
use test_support::{Simulation, control, cufile_sim, folder, on_simulator};

/// One tensor of 4,000 bytes, named `a`.
fn small(folder: &Path) -> PathBuf {
    let path = folder.join("model.safetensors");
    File::new().tensor("a", "F32", &[1000]).write(&path);
    path
}

#[track_caller]
fn refused_option(error: &Error, name: &str) {
    assert!(matches!(error, Error::Option { option, .. } if *option == name), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains(name), "{error}");
}

#[test]
fn memory_of_another_device_than_the_loaders_is_refused() {
    let test = "memory_of_another_device_than_the_loaders_is_refused";
    on_simulator(test, &[("CUDA_SIM_DEVICES", "2")], || {
        let folder = folder::on_disk(test);
        let path = small(folder.path());
        let gpus = [0, 1].map(|index| Device::cuda(index).unwrap());
        let to = |device: &Device| Loader::new().device(device.clone());
        let on_first = || vec![Destination::region("a", gpus[0].allocate(4000, 256).unwrap())];

        let mut host = vec![0xa5; 4000];
        let error = to(&gpus[0])
            .load_into(&path, vec![Destination::host("a", host.as_mut_slice()).unwrap()])
            .unwrap_err();
        refused_option(&error, "device");
        assert!(host == [0xa5; 4000], "a destination of a load that was refused");
        refused_option(&to(&gpus[1]).load_into(&path, on_first()).unwrap_err(), "device");
        refused_option(&to(&Device::cpu()).load_into(&path, on_first()).unwrap_err(), "device");

        // The same device, opened once more, is not another.
        to(&Device::cuda(0).unwrap()).load_into(&path, on_first()).unwrap();
        to(&Device::cpu())
            .load_into(&path, vec![Destination::host("a", host.as_mut_slice()).unwrap()])
            .unwrap();
        assert!(host == payload("a", 4000));
    });
}

#[test]
fn the_cpu_has_no_stream_to_wait_for() {
    let folder = folder::on_disk("no_stream");
    let path = small(folder.path());
    // SAFETY: null is a stream that is always there.
    let loader = unsafe { Loader::new().device(Device::cpu()).after_stream(std::ptr::null_mut()) };
    refused_option(&loader.load(&path).unwrap_err(), "after-stream");
    let mut host = vec![0xa5; 4000];
    let destinations = vec![Destination::host("a", host.as_mut_slice()).unwrap()];
    refused_option(&loader.load_into(&path, destinations).unwrap_err(), "after-stream");
    assert!(host == [0xa5; 4000], "a destination of a load that was refused");
}

/// Files that are right, and files with every kind of fault before their data.
fn framings() -> Vec<Vec<u8>> {
    const GOOD: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let framed = |json: &str, data: usize| {
        [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &vec![7; data]].concat()
    };
    let good = framed(GOOD, 8);
    let mut files = vec![good.clone(), framed("{}", 0), framed("{}      ", 0), [&good[..], &[0]].concat()];
    files.push(framed(r#"{"__metadata__":{"k":"v"}}"#, 0));
    files.extend(
        ["<!DOCTYPE html><html>", "version https://git-lfs.github.com/spec/v1\nsize 12\n", "PK\x03\x04"]
            .map(|text| text.as_bytes().to_vec()),
    );
    files.extend([0, 1, 7, 8, 9, 30, good.len() - 1].map(|len| good[..len].to_vec()));
    for length in [0, 1, u64::MAX, i64::MAX as u64, good.len() as u64 - 8, good.len() as u64 - 7] {
        files.push([&length.to_le_bytes()[..], &good[8..]].concat());
    }
    for json in ["[]", "null", "  ", &"[".repeat(10_000), &format!("{GOOD}\0\0"), &format!("{GOOD}{GOOD}")] {
        files.push(framed(json, 8));
    }
    for (from, to) in [
        ("F32", "F33"),
        ("[2]", "[3]"),
        ("[2]", "[-2]"),
        ("[2]", "[2.0]"),
        ("[2]", "[4294967296,4294967296]"),
        ("[0,8]", "[0,4]"),
        ("[0,8]", "[4,12]"),
        ("[0,8]", "[8,0]"),
        ("[0,8]", "[0]"),
        ("shape", "dtype"),
        (r#"{"a""#, r#"{"__metadata__":{"n":0},"a""#),
        (r#"{"a""#, r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a""#),
    ] {
        files.push(framed(&GOOD.replacen(from, to, 1), 8));
    }
    files
}

/// Whoever opens a file, for its header alone, to check it, or to load it by whatever path, gets the same answer.
#[test]
fn every_door_gives_the_same_verdict() {
    let test = "every_door_gives_the_same_verdict";
    cufile_sim::on_simulator(test, &[("CUFILE_SIM_MODE", "real")], || {
        let folder = folder::on_disk(test);
        let path = small(folder.path());
        let mut doors = vec![(Device::cpu(), Backend::Only(PathKind::Direct))];
        for kind in [PathKind::Buffered, PathKind::Mmap] {
            doors.push((Device::cpu(), Backend::Only(kind)));
        }
        for backend in [Backend::Auto, Backend::Only(PathKind::Gds)] {
            doors.push((Device::cuda(0).unwrap(), backend));
        }
        let load = |(device, backend): &(Device, Backend)| {
            Loader::new().device(device.clone()).backend(*backend).load(&path)
        };
        // Direct reads are not everywhere.
        doors.retain(|door| load(door).map_err(|error| error.kind()).err() != Some(ErrorKind::Unavailable));
        let said = |error: Error| {
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
            error.to_string()
        };
        let (mut right, mut wrong) = (0, 0);
        for bytes in framings() {
            std::fs::write(&path, &bytes).unwrap();
            let shown = bytes.escape_ascii();
            let verdict =
                Source::open(&path).map(|source| source.tensors.len()).map_err(|error| said(error.into()));
            for door in &doors {
                let loaded = load(door).map(|model| model.len()).map_err(said);
                assert_eq!(loaded, verdict, "{door:?}: {shown}");
            }
            let verified = Verifier::new().read(&path).map_err(said);
            assert_eq!(verified.map(|_| ()), verdict.clone().map(|_| ()), "{shown}");
            if verdict.is_ok() { right += 1 } else { wrong += 1 }
        }
        assert_eq!((right, wrong), (4, framings().len() - 4));
    });
}

/// Half a second of copies of `from` to `to` on a stream.
fn keep_writing(stream: &mut Stream, from: &[u8], to: &RegionMut) {
    to.device().memory().unwrap(); // makes the context current on this thread
    for _ in 0..100 {
        let (stream, len) = (stream.raw().unwrap().cast(), from.len());
        // SAFETY: the context is current; the caller keeps both ends until it has waited for the stream.
        let code = unsafe {
            let from = from.as_ptr().cast();
            cuda_staging::cudarc::driver::sys::cuMemcpyHtoDAsync_v2(to.address(), from, len, stream)
        };
        assert_eq!(code as u32, 0);
    }
}

/// The caller's stream still writes the destination when the load is called: what was asked for first must happen first.
fn waits_for_the_callers_stream(test: &str, kind: PathKind) {
    let settings = [("CUDA_SIM_COPY_LATENCY_US", "5000"), ("CUFILE_SIM_MODE", "real")];
    cufile_sim::on_simulator(test, &settings, || {
        let folder = folder::on_disk(test);
        let path = small(folder.path());
        let device = Device::cuda(0).unwrap();
        let loader = Loader::new().device(device.clone()).backend(Backend::Only(kind));
        // Opens cuFile, so that the load that counts takes no time.
        loader.load(&path).unwrap();
        let (mut stream, memory) = (device.stream().unwrap(), device.allocate(4000, 256).unwrap());
        let stale = vec![0xee_u8; 4000];
        keep_writing(&mut stream, &stale, &memory);
        // SAFETY: the stream lives until the end of this test, and is the device's.
        let loader = unsafe { loader.after_stream(stream.raw().unwrap()) };
        // SAFETY: `memory` outlives the load, and the loader waits for the stream, the only one that writes it.
        let destination = unsafe { Destination::device("a", &device, memory.address(), 4000) }.unwrap();
        let report = loader.load_into(&path, vec![destination]).unwrap();
        assert_eq!(report.paths.get(kind), 4000);
        stream.synchronize(Duration::from_secs(30)).unwrap();
        assert!(control::read_device_memory(memory.address(), 4000) == payload("a", 4000));
    });
}

/// Only an error of the device tells the owner of the memory to keep it, so it is one whenever copies may be in flight.
#[test]
fn a_load_that_fails_with_copies_in_flight_is_an_error_of_the_device() {
    const LEN: usize = 8 << 20;
    let test = "a_load_that_fails_with_copies_in_flight_is_an_error_of_the_device";
    // Longer than a load waits for them where it has failed.
    let settings = [("CUDA_SIM_COPY_LATENCY_US", "12000000")];
    let outcome = Simulation::new(test).settings(&settings).run(|| {
        let folder = folder::on_disk(test);
        let path = folder.path().join("model.safetensors");
        File::new().tensor("a", "U8", &[LEN as u64]).write(&path);
        let device = Device::cuda(0).unwrap();
        let memory = device.allocate(LEN as u64, 256).unwrap();
        let cut = path.clone();
        let loader = Loader::new().device(device.clone()).backend(Backend::Only(PathKind::Buffered));
        let loader = loader.threads(1).slots(16).read_size(1 << 20).on_progress(move |_| {
            std::fs::OpenOptions::new().write(true).open(&cut).unwrap().set_len(4 << 20).unwrap();
        });
        // SAFETY: `memory` is kept until the process ends, and nothing else touches it.
        let destination = unsafe { Destination::device("a", &device, memory.address(), LEN as u64) }.unwrap();
        let error = loader.load_into(&path, vec![destination]).unwrap_err();
        std::mem::forget(memory);
        assert!(matches!(error, Error::Device(_)), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "what failed first: {error}");
    });
    let Some(outcome) = outcome else { return };
    assert!(outcome.finished, "{outcome}");
}

#[test]
fn a_load_by_gds_waits_for_the_callers_stream() {
    waits_for_the_callers_stream("a_load_by_gds_waits_for_the_callers_stream", PathKind::Gds);
}

#[test]
fn a_load_by_gds_compat_waits_for_the_callers_stream() {
    waits_for_the_callers_stream("a_load_by_gds_compat_waits_for_the_callers_stream", PathKind::GdsCompat);
}

/// Whether [`busy`] is to go on.
static BUSY: AtomicBool = AtomicBool::new(false);

/// Work of a stream that takes as long as the test likes.
///
/// # Safety
/// - None: the driver's type of such functions has the word.
unsafe extern "C" fn busy(_: *mut c_void) {
    while BUSY.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// However long the caller's stream is busy, a load waits, and only as long as its caller wants it to: given up, it leaves the
/// device as it was, whichever path it was to go.
fn a_load_that_is_cancelled_waits_no_longer(test: &str, kinds: &[PathKind]) {
    cufile_sim::on_simulator(test, &[("CUFILE_SIM_MODE", "real")], || {
        let folder = folder::on_disk(test);
        let path = small(folder.path());
        let device = Device::cuda(0).unwrap();
        let mut stream = device.stream().unwrap();
        let raw = stream.raw().unwrap();
        for &kind in kinds {
            let loader = Loader::new().device(device.clone()).backend(Backend::Only(kind));
            // Opens cuFile, so that the load that counts takes no time.
            loader.load(&path).unwrap();
            BUSY.store(true, Ordering::SeqCst);
            // SAFETY: the stream lives, and the function takes no argument.
            let code = unsafe {
                cuda_staging::cudarc::driver::sys::cuLaunchHostFunc(
                    raw.cast(),
                    Some(busy),
                    std::ptr::null_mut(),
                )
            };
            assert_eq!(code as u32, 0);
            // SAFETY: the stream lives until the end of this test, and is the device's.
            let after = unsafe { loader.clone().after_stream(raw) };
            let token = CancelToken::new();
            let cancelled = after.clone().cancel(token.clone());
            thread::scope(|scope| {
                let load = scope.spawn(|| cancelled.load(&path));
                thread::sleep(Duration::from_millis(100));
                assert!(!load.is_finished(), "{kind}: the stream is busy still");
                token.cancel();
                let error = load.join().unwrap().unwrap_err();
                assert!(matches!(error, Error::Cancelled { placed: 0, planned: 4000 }), "{kind}: {error:?}");
            });
            device.health().unwrap();

            thread::scope(|scope| {
                let load = scope.spawn(|| after.load(&path));
                thread::sleep(Duration::from_millis(100));
                assert!(!load.is_finished(), "{kind}: the stream is busy still");
                BUSY.store(false, Ordering::SeqCst);
                let model: Model = load.join().unwrap().unwrap();
                assert_eq!(model.report().paths.get(kind), 4000);
                assert!(model.get("a").unwrap().to_vec().unwrap() == payload("a", 4000));
            });
            stream.synchronize(Duration::from_secs(30)).unwrap();
        }
    });
}

#[test]
fn a_load_that_is_cancelled_waits_no_longer_for_the_callers_stream() {
    let test = "a_load_that_is_cancelled_waits_no_longer_for_the_callers_stream";
    a_load_that_is_cancelled_waits_no_longer(test, &[PathKind::Buffered, PathKind::Gds]);
}

#[test]
fn a_load_by_gds_compat_that_is_cancelled_waits_no_longer_for_the_callers_stream() {
    let test = "a_load_by_gds_compat_that_is_cancelled_waits_no_longer_for_the_callers_stream";
    a_load_that_is_cancelled_waits_no_longer(test, &[PathKind::GdsCompat]);
}

/// What the caller's stream still writes, on the device and in host memory, is saved as it will be, whichever path writes it and
/// whether it is copied first.
#[test]
fn a_save_waits_for_the_callers_stream() {
    let test = "a_save_waits_for_the_callers_stream";
    let settings = [("CUDA_SIM_COPY_LATENCY_US", "2000"), ("CUFILE_SIM_MODE", "real")];
    cufile_sim::on_simulator(test, &settings, || {
        let folder = folder::on_disk(test);
        let device = Device::cuda(0).unwrap();
        let mut stream = device.stream().unwrap();
        let mut fill = 0_u8;
        for kind in [PathKind::Buffered, PathKind::Gds] {
            for (snapshot, with_host) in [(false, false), (true, false), (false, true), (true, true)] {
                if with_host && kind == PathKind::Gds {
                    continue;
                }
                fill += 1;
                let path = folder.path().join(format!("{fill}.safetensors"));
                let (memory, new) = (device.allocate(4000, 256).unwrap(), vec![fill; 4000]);
                // For the whole life of the process, which is short.
                let host: &'static [u8] = Box::leak(vec![0xa5_u8; 4000].into_boxed_slice());
                keep_writing(&mut stream, &new, &memory);
                if with_host {
                    let raw = stream.raw().unwrap().cast();
                    // SAFETY: the context is current; both ends live until the stream has ended, below. Nobody looks at `host`
                    // before the saver has waited for the stream.
                    let code = unsafe {
                        let into = host.as_ptr().cast_mut().cast();
                        cuda_staging::cudarc::driver::sys::cuMemcpyDtoHAsync_v2(
                            into,
                            memory.address(),
                            4000,
                            raw,
                        )
                    };
                    assert_eq!(code as u32, 0);
                }
                // SAFETY: the stream lives until the end of this test, and is the device's.
                let saver = unsafe { Saver::new().after_stream(stream.raw().unwrap()) };
                let saver = saver.backend(Backend::Only(kind)).snapshot(snapshot);
                let on_device = SaveTensor::new("a", Dtype::U8, [4000], memory.freeze()).unwrap();
                let on_host = SaveTensor::new("b", Dtype::U8, [4000], host).unwrap();
                let tensors = [on_device].into_iter().chain(with_host.then_some(on_host));
                saver.start(tensors, &path).finish().unwrap();
                stream.synchronize(Duration::from_secs(30)).unwrap();
                let what = format!("{kind}, snapshot {snapshot}, host {with_host}");
                let saved = std::fs::read(&path).unwrap();
                let data = &saved[saved.len() - if with_host { 8000 } else { 4000 }..];
                assert!(data.iter().all(|byte| *byte == fill), "{what}");
            }
        }

        let host = [1_u8; 8];
        let only_host = SaveTensor::new("b", Dtype::U8, [8], host.as_slice()).unwrap();
        // SAFETY: as above.
        let saver = unsafe { Saver::new().after_stream(stream.raw().unwrap()) };
        let error = saver.save([only_host], folder.path().join("host.safetensors")).unwrap_err();
        assert!(matches!(&error, SaveError::Option { option: "after-stream", .. }), "{error:?}");
        assert_eq!(
            (error.kind(), folder.path().join("host.safetensors").exists()),
            (ErrorKind::Usage, false)
        );
    });
}

/// As for loads: a save that is cancelled waits no longer, and the device is as it was.
#[test]
fn a_save_that_is_cancelled_waits_no_longer_for_the_callers_stream() {
    let test = "a_save_that_is_cancelled_waits_no_longer_for_the_callers_stream";
    on_simulator(test, &[], || {
        let folder = folder::on_disk(test);
        let device = Device::cuda(0).unwrap();
        let mut stream = device.stream().unwrap();
        let raw = stream.raw().unwrap();
        let region = device.allocate(4000, 256).unwrap().freeze();
        BUSY.store(true, Ordering::SeqCst);
        // SAFETY: the stream lives, and the function takes no argument.
        let code = unsafe {
            cuda_staging::cudarc::driver::sys::cuLaunchHostFunc(raw.cast(), Some(busy), std::ptr::null_mut())
        };
        assert_eq!(code as u32, 0);
        // SAFETY: the stream lives until the end of this test, and is the device's.
        let after = unsafe { Saver::new().after_stream(raw) };
        let save = |saver: &Saver, name: &str| {
            let tensor = SaveTensor::new("a", Dtype::U8, [4000], region.clone()).unwrap();
            saver.save([tensor], folder.path().join(name)).map(drop)
        };
        let token = CancelToken::new();
        let cancelled = after.clone().cancel(token.clone());
        thread::scope(|scope| {
            let saving = scope.spawn(|| save(&cancelled, "cancelled.safetensors"));
            thread::sleep(Duration::from_millis(100));
            assert!(!saving.is_finished(), "the stream is busy still");
            token.cancel();
            let error = saving.join().unwrap().unwrap_err();
            assert!(matches!(error, SaveError::Cancelled { written: 0, planned: 4000 }), "{error:?}");
        });
        device.health().unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was begun");
        thread::scope(|scope| {
            let saving = scope.spawn(|| save(&after, "saved.safetensors"));
            thread::sleep(Duration::from_millis(100));
            assert!(!saving.is_finished(), "the stream is busy still");
            BUSY.store(false, Ordering::SeqCst);
            saving.join().unwrap().unwrap();
        });
        stream.synchronize(Duration::from_secs(30)).unwrap();
    });
}

/// Five thousand tensors of up to 40 bytes, empty ones among them, and longer ones on either side of the 4 MiB that are
/// hashed at a time.
fn of_every_length() -> File {
    const MIB4: u64 = 4 << 20;
    let longer = [(1000, MIB4 + 13), (2000, MIB4), (2001, MIB4 - 100), (4999, 2 * MIB4 + 1)];
    (0..5000).fold(File::new(), |file, k| {
        let len = longer.iter().find(|(at, _)| *at == k).map_or(k * 7 % 41, |(_, len)| *len);
        file.tensor(&format!("{k:04}"), "U8", &[len])
    })
}

#[test]
fn digests_of_short_and_empty_and_long_tensors_are_those_of_their_bytes() {
    let test = "digests_of_short_and_empty_and_long_tensors_are_those_of_their_bytes";
    let settings = [("CUDA_SIM_COPY_LATENCY_US", "100"), ("CUDA_SIM_JITTER_US", "300")];
    on_simulator(test, &settings, || {
        let folder = folder::on_disk(test);
        let (path, file) = (folder.path().join("model.safetensors"), of_every_length());
        file.write(&path);
        assert!(file.tensors().iter().filter(|tensor| tensor.is_empty()).count() > 100);
        let load = |device| -> Model { Loader::new().device(device).load(&path).unwrap() };
        let [cpu, gpu] =
            [Device::cpu(), Device::cuda(0).unwrap()].map(|device| load(device).digests().unwrap());
        assert_eq!(cpu.len(), 5000);
        for tensor in file.tensors() {
            let digest: String =
                Sha256::digest(tensor.bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(cpu[&tensor.name], digest, "{}", tensor.name);
            assert_eq!(gpu[&tensor.name], digest, "{}", tensor.name);
        }
    });
}
