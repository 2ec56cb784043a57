//! The tests that AddressSanitizer does not bear as they are, by name, and why.
//!
//! By a list and not by a mark at each: what cannot be had under a sanitizer is the sanitizer's affair. Names that no test has any
//! more are an error.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use crate::test::Count;

const KEEPS: &str = "keeps memory on purpose, as what may still be written to, and that counts as leaked";
const TRACED: &str = "is traced, and leaks cannot be looked for under a tracer";
const CHILD: &str =
    "lets the child of a fork exit, in which all that its parent's other threads have counts as leaked";
const OWN_CALLS: &str = "lets system calls fail, those of the sanitizer too, which then gives up";
const LIMITED: &str = "limits what the sanitizer itself needs: address space, or threads";
const MEASURED: &str = "measures memory, of which the sanitizer has as much again";
const RIGHTS: &str =
    "has more rights than the caller and no environment, and leaks cannot be looked for then";
const TIMED: &str = "times what the sanitizer makes slower by different factors";

/// Those that run apart: without looking for leaks, and with signals left as they are.
const RUN_APART: [(&str, &str); 23] = [
    ("every_call_failing_at_every_use", KEEPS),
    ("what_a_broken_context_may_still_use_is_kept", KEEPS),
    ("what_does_not_end_in_time_is_leaked_and_never_freed", KEEPS),
    ("region::reading::tests::dropped_before_that_it_keeps_its_memory_for_ever", KEEPS),
    ("a_save_waits_for_the_callers_stream", KEEPS),
    ("a_load_that_fails_with_copies_in_flight_is_an_error_of_the_device", KEEPS),
    ("batches::reads_of_an_unknown_fate_are_not_waited_for", KEEPS),
    ("others::another_user_closes_the_driver_under_a_batch", KEEPS),
    ("every_call_of_cufile_fails_once", KEEPS),
    ("host_code_cannot_touch_device_memory", "wants a signal to end its child"),
    ("a_child_of_a_process_that_asked_for_the_version_leaves_no_statistics_either", CHILD),
    ("a_file_by_direct_writes_is_synced_then_renamed", TRACED),
    ("a_file_by_the_page_cache_is_synced_then_renamed", TRACED),
    ("shards_are_synced_then_named_then_the_index_is", TRACED),
    ("save::durable::tests::trace::the_kernel_sees_the_calls_that_the_seam_saw", TRACED),
    ("refusals::a_failing_disk_is_never_hidden", TRACED),
    ("refusals::a_file_replaced_before_the_second_open_is_not_mixed_in", TRACED),
    ("refusals::a_mapping_that_is_refused", TRACED),
    ("refusals::a_refused_open_falls_back_and_says_why", TRACED),
    ("refusals::a_refused_read_moves_the_file_and_what_arrived_stays", TRACED),
    ("refusals::interrupted_reads_go_on", TRACED),
    ("refusals::memory_that_the_kernel_cannot_write_is_reached_by_a_bounce", TRACED),
    ("direct_reads_data_by_descriptors_opened_for_it_and_by_nothing_else", TRACED),
];

/// How those are run, after the other options.
pub(super) const OPTIONS: &str = ":detect_leaks=0:handle_segv=0";

/// Those that do not run at all. Without the sanitizer they run in `cargo xtask test`.
const LEFT_OUT: [(&str, &str); 21] = [
    ("calls_about_the_files_of_a_simulated_gpu", OWN_CALLS),
    ("every_call_of_cufile", OWN_CALLS),
    ("every_call_of_loads", OWN_CALLS),
    ("every_call_of_saves", OWN_CALLS),
    ("every_call_of_verifying", OWN_CALLS),
    ("sampled_calls_of_many_workers", OWN_CALLS),
    ("limits::few_processes", LIMITED),
    ("limits::little_address_space", LIMITED),
    ("little_memory_and_time_are_enough_to_refuse_a_hostile_header", LIMITED),
    ("a_file_longer_than_the_memory_is_an_error_at_once", LIMITED),
    ("a_file_that_claims_more_than_can_be_counted_is_an_error", LIMITED),
    ("one_gib", MEASURED),
    ("eight_gib", MEASURED),
    ("saving_one_gib", MEASURED),
    ("loads_one_after_the_other_leave_nothing", MEASURED),
    ("loads_at_once_do_not_mix_and_leave_nothing", MEASURED),
    ("loads_of_files_that_change_are_whole_or_errors", MEASURED),
    ("loads_with_little_of_what_they_need", MEASURED),
    ("one_worker_reads_while_it_copies_unless_it_is_to_be_serial", TIMED),
    ("a_tiny_tensor_costs_microseconds", TIMED),
    ("no_variable_is_heeded_with_more_rights_than_the_callers", RIGHTS),
];

/// What cargo is told to run all others.
pub(super) fn of_the_rest() -> Vec<&'static str> {
    let apart = RUN_APART.into_iter().chain(LEFT_OUT);
    ["--", "--exact"].into_iter().chain(apart.flat_map(|(test, _)| ["--skip", test])).collect()
}

/// What cargo is told to run those that run apart.
pub(super) fn of_run_apart() -> Vec<&'static str> {
    ["--", "--exact"].into_iter().chain(RUN_APART.into_iter().map(|(test, _)| test)).collect()
}

/// Compares the names with those of all tests, as `cargo test -- --list` prints them.
///
/// # Errors
/// For names that no test has.
pub(super) fn check(listed: &str) -> Result<()> {
    let tests: BTreeSet<&str> = listed.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let named = RUN_APART.iter().chain(&LEFT_OUT).map(|(test, _)| *test);
    let unknown: Vec<&str> = named.filter(|test| !tests.contains(test)).collect();
    ensure!(unknown.is_empty(), "of {} tests none is called {unknown:?}; mend the list", tests.len());
    Ok(())
}

/// Says what ran apart, and adds what was left out to the account.
pub(super) fn account(count: &mut Count) {
    for (test, reason) in RUN_APART {
        println!("run apart: {test}: {reason}");
    }
    count.left_out.extend(LEFT_OUT.map(|(test, reason)| (test.to_owned(), reason.to_owned())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_test_has_is_told() {
        let listed: String =
            RUN_APART.iter().chain(&LEFT_OUT).map(|(test, _)| format!("{test}: test\n")).collect();
        check(&listed).unwrap();
        let one_less = listed.replace("one_gib: test", "one_gib_renamed: test");
        assert!(check(&one_less).unwrap_err().to_string().contains("one_gib"));
    }
}
