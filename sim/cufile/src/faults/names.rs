//! The names that scripts use for calls: cuFile's own in lower case, without the prefix.

use std::borrow::Cow;

use cufile_sys::FUNCTIONS;

/// The call that stands for one entry of a batch.
pub(super) const BATCH_EVENT: &str = "batch_event";

/// What can go wrong with a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// Returns a `CUfileError_t`.
    Status,
    /// Returns the bytes moved.
    Transfer,
    /// Returns a `CUfileError_t`, moves bytes later, in the order of a stream.
    Async,
    /// Moves bytes later, tells by an event.
    Event,
    /// Returns nothing that could tell.
    Silent,
}

/// `cuFileBatchIOSetUp` is `batch_set_up`; a version suffix is no part of the name.
pub(super) fn short(name: &str) -> String {
    let name = name.strip_prefix("cuFile").unwrap_or(name);
    let name = name.strip_suffix("_v2").unwrap_or(name);
    let name: Vec<char> = name.replace("BatchIO", "Batch").replace("PCIe", "Pcie").chars().collect();
    let mut short = String::new();
    for (index, &c) in name.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|before| name.get(before));
        let after_lower = before.is_some_and(|c| c.is_ascii_lowercase());
        let before_lower = before.is_some() && name.get(index + 1).is_some_and(|c| c.is_ascii_lowercase());
        if c.is_ascii_uppercase() && (after_lower || before_lower) {
            short.push('_');
        }
        short.push(c.to_ascii_lowercase());
    }
    short
}

/// The short name of what a script calls `text`, a short or an exported name; `None` where there is no such call.
pub(super) fn known(text: &str) -> Option<String> {
    let name: Cow<'_, str> = match text {
        "open" => "driver_open".into(),
        "close" => "driver_close".into(),
        _ if text.starts_with("cuFile") => short(text).into(),
        _ => text.into(),
    };
    let exported = FUNCTIONS.iter().any(|function| short(function.name) == *name);
    (exported || name == BATCH_EVENT).then(|| name.into_owned())
}

/// What can go wrong with the call of this short name.
pub(super) fn class(short: &str) -> Class {
    match short {
        "read" | "write" | "readv" | "writev" => Class::Transfer,
        "read_async" | "write_async" => Class::Async,
        BATCH_EVENT => Class::Event,
        "handle_deregister" | "batch_destroy" | "use_count" => Class::Silent,
        _ => Class::Status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_read_well() {
        for (name, expected) in [
            ("cuFileRead", "read"),
            ("cuFileReadv", "readv"),
            ("cuFileReadAsync", "read_async"),
            ("cuFileDriverOpen", "driver_open"),
            ("cuFileDriverClose_v2", "driver_close"),
            ("cuFileHandleRegister", "handle_register"),
            ("cuFileBatchIOSubmit", "batch_submit"),
            ("cuFileBatchIOGetStatus", "batch_get_status"),
            ("cuFileGetStatsL3", "get_stats_l3"),
            ("cuFileDriverSetP2PFlags", "driver_set_p2p_flags"),
            ("cuFileGetBARSizeInKB", "get_bar_size_in_kb"),
            ("cuFileExportPCIeTopology", "export_pcie_topology"),
            ("cuFileSetParameterSizeT", "set_parameter_size_t"),
        ] {
            assert_eq!(short(name), expected);
        }
    }

    #[test]
    fn every_function_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = FUNCTIONS.iter().map(|f| short(f.name)).collect();
        // Both versions of cuFileDriverClose are one.
        assert_eq!(names.len(), FUNCTIONS.len() - 1);
        assert!(FUNCTIONS.iter().all(|f| known(f.name) == Some(short(f.name))));
        assert_eq!(known("open").as_deref(), Some("driver_open"));
        assert_eq!(known("nothing"), None);
    }
}
