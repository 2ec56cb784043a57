//! Copies from the device run while earlier bytes are written.

use gds_loader::format::Dtype;
use gds_loader::{Backend, PathKind};
use test_support::on_simulator;

use crate::bed::{self, Bed, Described};

/// At 1 GB/s 64 MiB take 67 ms to copy, which a disk needs for them too.
#[test]
fn copies_are_hidden_behind_writes() {
    let test = "overlap::copies_are_hidden_behind_writes";
    on_simulator(test, &[("CUDA_SIM_COPY_GB_PER_S", "1")], || {
        Bed::each(test, &bed::gpu, &[Backend::Only(PathKind::Direct)], |bed| {
            if bed.path("").starts_with("/dev/shm") {
                return;
            }
            // The best of a few: whoever else is busy only ever makes it less.
            let once = || {
                let tensors = bed.tensors(&[Described::new("w", Dtype::U8, &[64 << 20])]);
                let saver = bed.saver().slot_size(1 << 20).threads(2);
                let report = saver.save(tensors, bed.path("model.safetensors")).unwrap();
                let stages = &report.stages;
                assert!(stages.fetch_s > 0.05, "{stages:?}");
                assert!(
                    report.longest_stall_s > 0.0 && report.longest_stall_s < report.seconds,
                    "{report:?}"
                );
                stages.fetch_hidden.unwrap()
            };
            let hidden: Vec<f64> = (0..5).map(|_| once()).collect();
            assert!(hidden.iter().any(|share| *share > 0.5), "{hidden:?}");
        });
    });
}
