//! One suite of cases, for every path, on every device, on a disk and in memory.
//!
//! A case is a function of a [`Bed`]: a device, a path and an empty folder. It writes files, loads them and lets the bed compare what
//! arrived with what the `safetensors` crate reads from the same bytes. On the simulated GPU each case runs in a process of its own
//! whose copies start late and at random times, so that a copy nobody waited for, or a slot read into too early, shows as wrong
//! bytes; the bytes are then read by the simulator's back door, which waits for nothing.
//!
//! cuFile's paths are tried with the simulated libcufile, whose report tells whether bytes went straight, and with NVIDIA's 1.20.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

mod bed;
mod boundaries;
mod control;
mod into;
mod lifetimes;
mod oracle;
mod random;
mod shapes;
mod sources;

/// Runs each case on both devices, as `cpu::CASE` and `simulated_gpu::CASE`, as `without_io_uring::CASE` where the kernel refuses it, and by cuFile's paths: `gds::CASE` where the
/// simulated libcufile serves by GPUDirect Storage, `gds_compat::CASE` where it bounces, `nvidia::CASE` where NVIDIA's does.
macro_rules! conformance {
    ($($module:ident::$case:ident),+ $(,)?) => {
        mod cpu {
            use super::bed::{self, Bed};

            $(#[test]
            fn $case() {
                Bed::each(concat!("cpu::", stringify!($case)), &bed::cpu, bed::HOST_PATHS, super::$module::$case);
            })+
        }

        mod without_io_uring {
            use super::bed::Bed;

            $(#[test]
            fn $case() {
                Bed::each_without_io_uring(concat!("without_io_uring::", stringify!($case)), super::$module::$case);
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
                    Bed::each_by_cufile(test, bed::GDS, super::$module::$case);
                });
            })+
        }

        mod gds_compat {
            use super::bed::{self, Bed};

            $(#[test]
            fn $case() {
                let test = concat!("gds_compat::", stringify!($case));
                test_support::cufile_sim::on_simulator(test, &bed::LATE_COPIES, || {
                    Bed::each_by_cufile(test, bed::GDS_COMPAT, super::$module::$case);
                });
            })+
        }

        mod nvidia {
            use super::bed::{self, Bed};

            $(#[test]
            fn $case() {
                let test = concat!("nvidia::", stringify!($case));
                let Some(simulation) = bed::on_nvidia(test) else { return };
                let outcome = simulation.run(|| Bed::each(test, &bed::gpu, bed::GDS_COMPAT, super::$module::$case));
                outcome.inspect(test_support::Outcome::assert_well);
            })+
        }
    };
}

conformance! {
    shapes::every_dtype,
    shapes::scalars_are_not_empty,
    shapes::empty_tensors_anywhere,
    shapes::headers_of_any_length,
    shapes::odd_tensors_before_wide_ones,
    shapes::alignment_on_request,
    shapes::names_in_any_order_and_metadata,
    shapes::no_tensors_at_all,
    boundaries::sizes_around_every_unit,
    boundaries::data_that_begin_around_every_unit,
    boundaries::many_tiny_tensors,
    boundaries::one_thread_one_slot,
    boundaries::beyond_4_gib,
    sources::selection_by_globs,
    sources::shards_without_an_index,
    sources::an_index_decides,
    sources::a_hugging_face_snapshot,
    sources::what_is_expected_is_checked_first,
    into::memory_of_the_callers,
    into::only_the_destination_is_written,
    into::destinations_that_do_not_fit,
    lifetimes::tensors_outlive_their_model,
    lifetimes::one_loader_many_loads,
    lifetimes::one_loader_many_threads,
    control::progress_adds_up,
    control::a_cancelled_load_leaves_nothing,
    control::a_callback_that_panics_fails_the_load,
    random::legal_models_by_any_sizes,
}
