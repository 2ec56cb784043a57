//! A whole checkpoint on the simulated GPU: the same bytes as on the CPU, whatever the copies do, and errors that say what to do.
//!
//! `GDS_TESTS_SIZE` is the size of the checkpoint, 128MiB where it is unset; the acceptance run is with 2GiB.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

mod program;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use cuda_staging::Device;
use gds_loader::{Destination, Error, ErrorKind, Loader};
use program::{OnGpu, digests, gds, json, on_gpu, run, synth, well_on_gpu};
use serde_json::Value;
use tempfile::TempDir;
use test_support::fixture::{File, payload};
use test_support::{control, folder, on_simulator, process};

/// A checkpoint in four files and its digests, computed on the CPU.
struct Checkpoint {
    _folder: TempDir,
    path: PathBuf,
    digests: BTreeMap<String, String>,
}

impl Checkpoint {
    fn new(test: &str) -> Self {
        let folder = folder::on_disk(test);
        let size = std::env::var("GDS_TESTS_SIZE").unwrap_or_else(|_| "128MiB".to_owned());
        let path = synth(folder.path(), &format!("--size {size} --shards 4"));
        let digests = digests(&json(&run("load --device cpu --backend buffered --digest --json", [&path])));
        Self { _folder: folder, path, digests }
    }
}

const DELAYED: [(&str, &str); 3] =
    [("CUDA_SIM_COPY_LATENCY_US", "200"), ("CUDA_SIM_JITTER_US", "500"), ("CUDA_SIM_COPY_GB_PER_S", "4")];

/// Whether most of the time of copies was hidden behind reads, as the report says.
fn copy_hidden(report: &Value) -> f64 {
    let share =
        report["stages"]["copy_hidden"].as_f64().unwrap_or_else(|| panic!("nothing was copied: {report}"));
    assert!((0.0..=1.0).contains(&share), "{report}");
    share
}

#[test]
fn delayed_copies_bring_the_same_bytes_and_corrupted_ones_are_seen() {
    let checkpoint = Checkpoint::new("delayed_copies");
    let line = "load --device cuda:0 --digest --json";
    for backend in ["auto", "direct", "buffered", "mmap"] {
        let (report, driver) =
            well_on_gpu(&format!("{line} --cold --backend {backend}"), &checkpoint.path, &DELAYED);
        assert_eq!(digests(&report), checkpoint.digests, "{backend}");
        let bytes = report["bytes"].as_u64().unwrap();
        assert_eq!(driver.copies.bytes, 2 * bytes, "each byte goes there once, and back once for its digest");
        assert!(copy_hidden(&report) <= 1.0);
        assert!(report["peak_pinned_bytes"].as_u64().unwrap() <= 64 << 20);
    }
    for corrupt in ["corrupt@1", "corrupt@7"] {
        let mut settings = DELAYED.to_vec();
        settings.push(("CUDA_SIM_FAULT", corrupt));
        let (report, driver) = well_on_gpu(line, &checkpoint.path, &settings);
        assert_eq!(driver.copies.corrupted, 1);
        let wrong =
            digests(&report).iter().filter(|(name, digest)| checkpoint.digests[*name] != **digest).count();
        assert_eq!(wrong, 1, "one bit of one tensor is wrong after {corrupt}");
    }
}

/// Copies so slow that they take longer than the reads: reads hide behind them, and the report's figures are plausible.
#[test]
fn slow_copies_overlap_with_reads() {
    let checkpoint = Checkpoint::new("slow_copies");
    let settings = [("CUDA_SIM_COPY_GB_PER_S", "0.5")];
    let (report, _) =
        well_on_gpu("load --device cuda:0 --json --backend buffered", &checkpoint.path, &settings);
    let bytes = report["bytes"].as_u64().unwrap() as f64;
    let (seconds, copy) = (report["seconds"].as_f64().unwrap(), report["stages"]["copy_s"].as_f64().unwrap());
    assert!(copy >= 0.9 * bytes / 0.5e9 && copy <= seconds, "{report}");
    // The reads are over long before the copies are.
    assert!(copy_hidden(&report) < 0.9, "{report}");
    assert!(report["stages"]["read_s"].as_f64().unwrap() <= seconds, "{report}");
}

#[test]
fn two_devices_by_number_and_by_uuid() {
    let settings = [("CUDA_SIM_DEVICES", "2")];
    let checkpoint = Checkpoint::new("two_devices");
    let (report, driver) = well_on_gpu("load --device cuda:1 --digest --json", &checkpoint.path, &settings);
    assert_eq!(report["device"]["index"], 1);
    assert_eq!(digests(&report), checkpoint.digests);
    assert_eq!(driver.devices[0].peak, 0, "the other device was not touched");
    assert!(driver.devices[1].peak >= report["bytes"].as_u64().unwrap());

    let OnGpu { finished, .. } =
        on_gpu(gds("load --device cuda:2", [&checkpoint.path]), &settings, process::LIMIT);
    assert_eq!(finished.code(), Some(3), "{finished}");
    assert!(finished.stderr.contains("cuda:0 to cuda:1"), "{finished}");

    // Numbers are the process's own, not the machine's: a global rank is no device.
    let visible =
        [&settings[..], &[("CUDA_VISIBLE_DEVICES", "1,0"), ("CUDA_SIM_MEMORY", "1MiB,16GiB")]].concat();
    well_on_gpu("load --device cuda:0 --json", &checkpoint.path, &visible);
    let OnGpu { finished, .. } =
        on_gpu(gds("load --device cuda:1", [&checkpoint.path]), &visible, process::LIMIT);
    assert_eq!(finished.code(), Some(1), "the machine's first device is too small: {finished}");
    for (value, words) in
        [("1", "the only device is cuda:0"), ("7", "CUDA_VISIBLE_DEVICES"), ("", "CUDA_VISIBLE_DEVICES")]
    {
        let hidden = [&settings[..], &[("CUDA_VISIBLE_DEVICES", value)]].concat();
        let OnGpu { finished, .. } =
            on_gpu(gds("load --device cuda:1", [&checkpoint.path]), &hidden, process::LIMIT);
        assert_eq!((finished.code(), finished.stdout.as_str()), (Some(3), ""), "{value:?}: {finished}");
        assert!(finished.stderr.contains(words), "{value:?}: {finished}");
    }

    on_simulator("two_devices_by_number_and_by_uuid", &settings, || {
        let devices = [0, 1].map(|index| Device::cuda(index).unwrap());
        let [first, second] = [0, 1].map(|index| devices[index].info().uuid.unwrap());
        assert_ne!(first, second);
        let folder = folder::on_disk("two_devices");
        let path = folder.path().join("model.safetensors");
        File::new().tensor("a", "F32", &[1000]).tensor("b", "F32", &[1000]).write(&path);
        let by_uuid = Device::open(&format!("GPU-{second}").parse().unwrap()).unwrap();
        assert_eq!(by_uuid.info().index, Some(1));

        // Both at once, each to its own.
        let models =
            [&devices[0], &by_uuid].map(|device| Loader::new().device(device.clone()).load(&path).unwrap());
        let tensors = models.each_ref().map(|model| model.get("a").unwrap());
        assert_eq!(tensors[0].to_vec().unwrap(), tensors[1].to_vec().unwrap());
        assert!(devices[0].copy_to_host(tensors[1].region(), &mut [0; 4000]).is_err());

        let memory = devices.each_ref().map(|device| device.allocate(4000, 256).unwrap());
        let destinations = memory
            .into_iter()
            .zip(["a", "b"])
            .map(|(region, name)| Destination::region(name, region))
            .collect();
        let error = Loader::new().load_into(&path, destinations).unwrap_err();
        assert!(matches!(error, Error::Destination { .. }), "{error:?}");
        let region = devices[1].allocate(4000, 256).unwrap();
        // SAFETY: the memory outlives the refusal.
        let other = unsafe { Destination::device("a", &devices[0], region.address(), 4000) };
        let error = other.unwrap_err().to_string();
        assert!(error.contains("cuda:1"), "{error}");
    });
}

#[test]
fn a_uuid_selects_the_device_and_an_unknown_one_is_not_here() {
    let test = "a_uuid_selects_the_device_and_an_unknown_one_is_not_here";
    let settings = [("CUDA_SIM_DEVICES", "2")];
    let outcome = on_simulator(test, &settings, || {
        println!("uuid={}", Device::cuda(1).unwrap().info().uuid.unwrap());
    });
    let Some(outcome) = outcome else { return };
    let (_, uuid) = outcome.child.stdout.split_once("uuid=").unwrap();
    let uuid = uuid.lines().next().unwrap();
    let folder = folder::on_disk("uuid");
    let path = synth(folder.path(), "--size 1MiB");
    let (report, _) = well_on_gpu(&format!("load --json --device GPU-{uuid}"), &path, &settings);
    assert_eq!(report["device"]["index"], 1);
    let unknown = "GPU-00000000-0000-0000-0000-000000000001";
    let OnGpu { finished, .. } =
        on_gpu(gds(&format!("load --device {unknown}"), [&path]), &settings, process::LIMIT);
    assert_eq!(finished.code(), Some(3), "{finished}");
    assert!(finished.stderr.contains(unknown) && finished.stderr.contains(uuid), "{finished}");
}

/// The caller's stream still writes the destination when the load is called: what was asked for first must happen first.
#[test]
fn a_load_waits_for_the_callers_stream() {
    let test = "a_load_waits_for_the_callers_stream";
    on_simulator(test, &[("CUDA_SIM_COPY_LATENCY_US", "5000")], || {
        let folder = folder::on_disk(test);
        let path = folder.path().join("model.safetensors");
        File::new().tensor("a", "F32", &[1000]).write(&path);
        let device = Device::cuda(0).unwrap();
        let mut stream = device.stream().unwrap();
        let memory = device.allocate(4000, 256).unwrap();
        let address = memory.address();
        let stale = vec![0xee_u8; 4000];
        device.memory().unwrap(); // makes the context current on this thread
        for _ in 0..40 {
            // SAFETY: the context is current; `stale` and the destination outlive the stream's work, waited for below.
            let code = unsafe {
                let stream = stream.raw().unwrap().cast();
                cuda_staging::cudarc::driver::sys::cuMemcpyHtoDAsync_v2(
                    address,
                    stale.as_ptr().cast(),
                    4000,
                    stream,
                )
            };
            assert_eq!(code as u32, 0);
        }
        // SAFETY: the stream lives until the end of this test, and is the device's.
        let loader = unsafe { Loader::new().device(device.clone()).after_stream(stream.raw().unwrap()) };
        // SAFETY: `memory` outlives the load, and the loader waits for the stream, the only one that writes it.
        let destination = unsafe { Destination::device("a", &device, address, 4000) }.unwrap();
        loader.load_into(&path, vec![destination]).unwrap();
        stream.synchronize(Duration::from_secs(30)).unwrap();
        assert!(control::read_device_memory(address, 4000) == payload("a", 4000));
        drop(memory);
    });
}

#[test]
fn too_little_device_memory_is_said_in_bytes() {
    let test = "too_little_device_memory_is_said_in_bytes";
    let folder = folder::on_disk(test);
    let path = synth(folder.path(), "--size 32MiB");
    let settings = [("CUDA_SIM_MEMORY", "24MiB")];
    let OnGpu { finished, report } =
        on_gpu(gds("load --device cuda:0 --json", [&path]), &settings, process::LIMIT);
    assert_eq!((finished.code(), finished.stdout.as_str()), (Some(1), ""), "{finished}");
    for words in ["out of memory", "cuMemAlloc", "bytes", "free"] {
        assert!(finished.stderr.contains(words), "{words} is missing in: {finished}");
    }
    assert!(report.unwrap().ours_alive().is_empty());

    on_simulator(test, &settings, || {
        let device = Device::cuda(0).unwrap();
        let free = device.memory().unwrap().unwrap().free;
        let loader = Loader::new().device(device.clone());
        let error = loader.load(&path).unwrap_err();
        let Error::Device(cuda_staging::Error::OutOfMemory { requested, free: said, .. }) = &error else {
            panic!("{error:?}");
        };
        assert!(*requested > free && *said == Some(free), "{error}");
        assert_eq!(error.kind(), ErrorKind::Failed);
        // The device is as usable as before.
        let model = loader.tensors(["lm_head.weight"]).unwrap().load(&path).unwrap();
        let tensor = model.get("lm_head.weight").unwrap();
        assert_eq!(
            tensor.to_vec().unwrap(),
            control::read_device_memory(tensor.device_address(), tensor.len() as usize)
        );
    });
}

#[test]
fn without_a_driver_a_gpu_is_not_here_and_auto_takes_the_cpu() {
    let folder = folder::on_disk("without_a_driver");
    let path = synth(folder.path(), "--size 1MiB");
    let finished = run("load --device cuda:0 --json", [&path]);
    if finished.code() == Some(0) {
        return test_support::not_run(
            "without_a_driver_a_gpu_is_not_here_and_auto_takes_the_cpu",
            "there is a driver",
        );
    }
    assert_eq!((finished.code(), finished.stdout.as_str()), (Some(3), ""), "{finished}");
    assert!(finished.stderr.contains("CUDA is not available here: "), "{finished}");
    assert!(finished.stderr.contains("libcuda"), "the reason names what was looked for: {finished}");
    let auto = json(&run("load --json", [&path]));
    assert_eq!(auto["device"]["kind"], "cpu");

    // A driver that sees no device, and one that will not start.
    for settings in [[("CUDA_SIM_DEVICES", "0")], [("CUDA_SIM_FAULT", "cuInit@1=999")]] {
        let OnGpu { finished, .. } = on_gpu(gds("load --device cuda:0", [&path]), &settings, process::LIMIT);
        assert_eq!(finished.code(), Some(3), "{finished}");
        assert!(finished.stderr.contains("CUDA is not available here: "), "{finished}");
        let OnGpu { finished, .. } = on_gpu(gds("load --json", [&path]), &settings, process::LIMIT);
        assert_eq!(json(&finished)["device"]["kind"], "cpu");
    }
}
