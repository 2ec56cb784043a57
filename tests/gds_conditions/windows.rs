//! What is read into which window, and when.

use std::collections::BTreeMap;

use gds_loader::cufile::{Driver, Mode};
use gds_loader::{Destination, GdsProof, PathKind};
use test_support::cufile_sim;
use test_support::fixture::{File, payload};
use test_support::{control, folder};

use crate::bed::{LATE_COPIES, MIB, Sample, forced, gpu, on_both, proof};

#[test]
fn windows_are_read_into_only_once_their_copies_are_over() {
    let test = "windows::windows_are_read_into_only_once_their_copies_are_over";
    on_both(test, &LATE_COPIES, || {
        let sample = Sample::new(test);
        for batches in [false, true] {
            // Two windows a worker at the least, 4 to 64 pieces for each.
            for (threads, read_size) in [(1, 4 << 20), (2, 64 << 10), (8, 256 << 10)] {
                let loader = forced().threads(threads).read_size(read_size).cufile_batches(batches);
                let model = loader.load(sample.path()).unwrap();
                sample.check(&model);
                assert_eq!(proof(model.report()), Some(GdsProof::Verified), "{:?}", model.report());
                assert_eq!(model.report().paths.get(PathKind::Gds), model.report().bytes);
            }
        }
        let transfers = cufile_sim::report().transfers;
        assert_eq!((transfers.unregistered, transfers.bounced_bytes), (0, 0), "{transfers:?}");
    });
}

/// A request of another length or offset would bounce, on hardware: even a file's end is asked for in whole pages.
#[test]
fn reads_ask_for_whole_pages() {
    let test = "windows::reads_ask_for_whole_pages";
    on_both(test, &[], || {
        let sample = Sample::new(test);
        sample.check(&forced().threads(3).load(sample.path()).unwrap());
        let statistics = Driver::open(Mode::Direct).unwrap().statistics_level3().unwrap();
        let read = statistics.gpus[0].read;
        assert!(read.nvfs > 40 && read.unaligned == 0 && read.posix == 0, "{read:?}");
    });
}

/// With so little room that the same window is used again at once.
#[test]
fn few_windows_are_used_again_and_again() {
    let test = "windows::few_windows_are_used_again_and_again";
    on_both(test, &[&LATE_COPIES[..], &[("CUDA_SIM_BAR1", "32MiB")]].concat(), || {
        let folder = folder::on_disk(test);
        let path = folder.path().join("model.safetensors");
        let file = File::new().tensor("a", "U8", &[41 * MIB + 13]).tensor("b", "F32", &[100_000]);
        file.write(&path);
        for (threads, batches) in [(1, false), (4, false), (1, true)] {
            let loader = forced().threads(threads).read_size(4 * MIB).cufile_batches(batches);
            let model = loader.load(&path).unwrap();
            for tensor in model.tensors() {
                let found = control::read_device_memory(tensor.device_address(), tensor.len() as usize);
                assert!(found == payload(tensor.name(), found.len()), "{tensor:?}");
            }
            assert_eq!(model.report().gds.as_ref().unwrap().window_bytes, 16 * MIB);
        }
        assert_eq!(cufile_sim::report().peak_registered_device_bytes, 16 * MIB);
    });
}

/// Registration is not paid for twice: each load has one window, whatever its number of files, and one handle for each file.
#[test]
fn registered_memory_keeps_within_its_budget() {
    let test = "windows::registered_memory_keeps_within_its_budget";
    on_both(test, &[("CUDA_SIM_BAR1", "1GiB")], || {
        let sample = Sample::new(test);
        let loads = 4;
        for _ in 0..loads {
            sample.check(&forced().threads(16).read_size(8 * MIB).load(sample.path()).unwrap());
        }
        let report = cufile_sim::report();
        assert!(report.peak_registered_device_bytes <= 128 * MIB, "{report:?}");
        assert_eq!(report.calls["cuFileBufRegister"], loads, "{:?}", report.calls);
        assert_eq!(report.calls["cuFileBufDeregister"], loads);
        assert_eq!(report.calls["cuFileHandleRegister"], 2 * loads);
        assert_eq!(report.calls["cuFileDriverOpen"], 1);
    });
}

/// Tensors that are wanted alone, and those in memory of the caller's with a guard on both sides.
#[test]
fn only_what_is_wanted_is_written() {
    let test = "windows::only_what_is_wanted_is_written";
    on_both(test, &LATE_COPIES, || {
        let sample = Sample::new(test);
        let device = gpu();
        for batches in [false, true] {
            let mut memories = BTreeMap::new();
            for (name, len) in [("b", 2 * MIB + 4095), ("d", 4097)] {
                let region = device.allocate(len + 512, 256).unwrap();
                control::write_device_memory(region.address(), &vec![0xa5; region.len() as usize]);
                memories.insert(name, (region, len));
            }
            let destinations = memories.iter().map(|(name, (region, len))| {
                // SAFETY: the regions outlive the load, and nothing else uses them.
                unsafe { Destination::device(*name, &device, region.address() + 256, *len) }.unwrap()
            });
            let report =
                forced().cufile_batches(batches).load_into(sample.path(), destinations.collect()).unwrap();
            assert_eq!(report.paths.get(PathKind::Gds), 2 * MIB + 4095 + 4097);
            for (name, (region, len)) in &memories {
                let found = control::read_device_memory(region.address(), region.len() as usize);
                let (before, rest) = found.split_at(256);
                let (bytes, after) = rest.split_at(*len as usize);
                assert!(bytes == payload(name, *len as usize), "{name}");
                assert!(before.iter().chain(after).all(|byte| *byte == 0xa5), "around {name}");
            }
        }
    });
}
