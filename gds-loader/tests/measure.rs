//! Parts of a load on their own: each does what its name says and nothing else, as the simulated driver counts.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

use std::path::PathBuf;

use cuda_staging::Device;
use gds_loader::{Backend, LoadReport, Loader, Measure, PathKind};
use tempfile::TempDir;
use test_support::fixture::File;
use test_support::{Outcome, folder, on_simulator};

/// Copies no faster than this, so that they take as long as reads do and are seen to overlap.
const THROTTLED: [(&str, &str); 1] = [("CUDA_SIM_COPY_GB_PER_S", "1.5")];

/// Lengths of the tensors of a checkpoint: many that are gathered, some that meet at the end of a slot, one of no bytes.
const LENGTHS: [u64; 9] = [700_000, 40, 600_000, 0, 1 << 20, 900_000, 48, 16, 500_000];

const BYTES: u64 = 700_000 + 40 + 600_000 + (1 << 20) + 900_000 + 48 + 16 + 500_000;

fn checkpoint(lengths: &[u64]) -> (TempDir, PathBuf) {
    let folder = folder::on_disk("measure");
    let path = folder.path().join("model.safetensors");
    let tensors = lengths.iter().enumerate();
    let file =
        tensors.fold(File::new(), |file, (index, len)| file.tensor(&format!("t.{index}"), "U8", &[*len]));
    file.write(&path);
    (folder, path)
}

/// Measures on the simulated GPU in a process of its own, and lets `check` see the report there.
#[track_caller]
fn on_gpu(test: &str, measures: &[Measure], check: impl Fn(&LoadReport)) -> Option<Outcome> {
    on_simulator(test, &[], || {
        let (_folder, path) = checkpoint(&LENGTHS);
        let loader = Loader::new().device(Device::cuda(0).unwrap()).slot_size(1 << 20);
        for measure in measures {
            let report = loader.measure(&path, *measure).unwrap();
            assert!(report.seconds > 0.0 && report.cpu_s > 0.0);
            assert!((report.gb_per_s * report.seconds * 1e9 / report.bytes as f64 - 1.0).abs() < 0.01);
            check(&report);
        }
    })
}

fn seconds_and_copies(report: &LoadReport) -> (f64, f64) {
    (report.stages.read_s, report.stages.copy_s)
}

#[test]
fn a_whole_load_reads_and_copies_every_byte() {
    let whole = [Measure::Pipelined, Measure::Serial];
    let outcome = on_gpu("a_whole_load_reads_and_copies_every_byte", &whole, |report| {
        assert_eq!((report.bytes, report.paths.total()), (BYTES, BYTES));
    });
    let Some(outcome) = outcome else { return };
    assert!(outcome.report().copies.bytes >= 2 * BYTES);
}

#[test]
fn read_alone_copies_nothing() {
    let outcome = on_gpu("read_alone_copies_nothing", &[Measure::ReadAlone], |report| {
        assert_eq!((report.bytes, report.paths.total()), (BYTES, BYTES));
        let (read, copy) = seconds_and_copies(report);
        assert!(read > 0.0 && copy == 0.0 && report.stages.copy_hidden.is_none(), "{report:?}");
    });
    let Some(outcome) = outcome else { return };
    assert_eq!(outcome.report().copies.count, 0);
}

#[test]
fn copy_alone_reads_nothing() {
    let outcome = on_gpu("copy_alone_reads_nothing", &[Measure::CopyAlone], |report| {
        assert_eq!((report.bytes, report.paths.total()), (BYTES, 0));
        let (read, copy) = seconds_and_copies(report);
        assert!(read == 0.0 && copy > 0.0, "{report:?}");
    });
    let Some(outcome) = outcome else { return };
    let copies = outcome.report().copies;
    // What is gathered takes its padding along.
    assert!(copies.bytes >= BYTES && copies.bytes <= BYTES + 256 * LENGTHS.len() as u64, "{copies:?}");
}

#[test]
fn copy_per_tensor_makes_one_copy_a_tensor() {
    let outcome = on_gpu("copy_per_tensor_makes_one_copy_a_tensor", &[Measure::CopyPerTensor], |report| {
        assert_eq!((report.bytes, report.paths.total()), (BYTES, 0));
    });
    let Some(outcome) = outcome else { return };
    let (copies, tensors) = (outcome.report().copies, LENGTHS.iter().filter(|len| **len > 0).count());
    assert_eq!((copies.count, copies.bytes), (tensors as u64, BYTES));
}

/// One worker overlaps the copy of one piece with the read of the next; a serial load never does. Were copies waited for as
/// they are launched, both would look alike.
#[test]
fn one_worker_reads_while_it_copies_unless_it_is_to_be_serial() {
    on_simulator("one_worker_reads_while_it_copies_unless_it_is_to_be_serial", &THROTTLED, || {
        let (_folder, path) = checkpoint(&[16 << 20; 4]);
        let device = Device::cuda(0).unwrap();
        for kind in [PathKind::Buffered, PathKind::Direct] {
            let loader = Loader::new().device(device.clone()).backend(Backend::Only(kind)).threads(1);
            // Whether files here can be read directly is not this test's business.
            let Ok(pipelined) = loader.measure(&path, Measure::Pipelined) else { continue };
            let serial = loader.measure(&path, Measure::Serial).unwrap();
            let (read, copy) = seconds_and_copies(&pipelined);
            let both = pipelined.stages.copy_hidden.unwrap() * copy;
            assert!(both >= 0.2 * read.min(copy), "{kind}: {both} s of {read} s and {copy} s\n{pipelined:?}");
            // The device's clock is mapped to the host's to within microseconds.
            assert!(serial.stages.copy_hidden.unwrap() < 0.02, "{kind}: {serial:?}");
        }
    });
}

/// Straight into place there is nothing to copy, and what is read alone is all there is.
#[test]
fn on_the_cpu_what_lands_in_place_is_not_copied() {
    let (_folder, path) = checkpoint(&[4 << 20; 3]);
    for measure in Measure::ALL {
        let report = Loader::new().device(Device::cpu()).measure(&path, measure).unwrap();
        let read = report.paths.total();
        match measure {
            Measure::CopyAlone | Measure::CopyPerTensor => assert!(read == 0 && report.bytes < 64 << 10),
            _ => assert_eq!((report.bytes, read), (12 << 20, 12 << 20)),
        }
    }
}
