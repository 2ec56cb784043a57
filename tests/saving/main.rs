//! Saving: what another reader finds in the files is what memory held, whatever the device, the path and the sizes.
//!
//! The oracle is the `safetensors` crate. On the simulated GPU copies start late and at random times, so that a slot or window written
//! before its bytes were there shows as wrong bytes; with the simulated libcufile in its real mode, its report tells whether bytes
//! went straight.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

mod background;
mod bed;
#[path = "../conformance/oracle.rs"]
mod oracle;
mod overlap;
mod paths;
mod random;
mod refusals;
mod shapes;
mod shards;

/// Runs each case on both devices, as `cpu::CASE` and `simulated_gpu::CASE`, and as `gds::CASE` where the simulated libcufile serves
/// by GPUDirect Storage.
macro_rules! saving {
    ($($module:ident::$case:ident),+ $(,)?) => {
        mod cpu {
            use super::bed::{self, Bed};

            $(#[test]
            fn $case() {
                Bed::each(concat!("cpu::", stringify!($case)), &bed::cpu, bed::HOST_PATHS, super::$module::$case);
            })+
        }

        mod simulated_gpu {
            use super::bed::{self, Bed};

            $(#[test]
            fn $case() {
                let test = concat!("simulated_gpu::", stringify!($case));
                test_support::on_simulator(test, &bed::LATE_COPIES, || {
                    Bed::each(test, &bed::gpu, bed::HOST_PATHS, super::$module::$case);
                });
            })+
        }

        mod gds {
            use super::bed::{self, Bed};

            $(#[test]
            fn $case() {
                let test = concat!("gds::", stringify!($case));
                let settings = [&bed::LATE_COPIES[..], &[("CUFILE_SIM_MODE", "real")]].concat();
                test_support::cufile_sim::on_simulator(test, &settings, || {
                    Bed::each(test, &bed::gpu, bed::GDS, super::$module::$case);
                    let report = test_support::cufile_sim::report();
                    assert_eq!(report.alive, test_support::cufile_sim::Alive::default());
                    assert_eq!(report.transfers.bounced_bytes, 0, "{:?}", report.transfers);
                });
            })+
        }
    };
}

saving! {
    shapes::every_dtype_and_shape,
    shapes::no_tensors_and_empty_ones,
    shapes::metadata_is_kept,
    shapes::lengths_around_every_unit,
    shapes::many_tiny_tensors,
    shapes::a_model_that_was_loaded,
    shapes::over_the_file_it_was_loaded_from,
    shards::a_set_with_its_index,
    shards::a_set_over_a_set,
    random::any_tensors_by_any_sizes,
    refusals::what_cannot_be_meant_makes_no_file,
    refusals::a_cancelled_save_leaves_nothing,
    background::memory_comes_back_when_it_is_staged,
    background::memory_comes_back_from_a_save_that_fails,
    background::a_snapshot_is_not_changed_by_what_follows,
    background::dropped_it_still_saves,
    shapes::progress_adds_up,
}
