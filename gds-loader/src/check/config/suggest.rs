//! A cufile.json for this machine: NVIDIA's defaults, but for what its findings call for.

/// The text of a cufile.json. `direct` says whether reads can go direct here, `p2pdma` whether by the kernel's
/// peer-to-peer DMA.
pub(in crate::check) fn suggest(direct: bool, p2pdma: bool) -> String {
    let (why, slabs) = if direct {
        ("// Go direct or say that it cannot be done: nothing is copied through host memory unseen.", 64)
    } else {
        ("// Nothing can go direct here, so let cuFile copy through host memory.", 128)
    };
    let compat = !direct;
    format!(
        r#"{{
    // Suggested by `gds check`. Use it by CUFILE_ENV_PATH_JSON=/path/of/this/file, or as /etc/cufile.json.
    "logging": {{
        // The folder is the working directory unless CUFILE_LOGFILE_PATH names a file.
        "level": "ERROR"
    }},
    "profile": {{
        "nvtx": false,
        "cufile_stats": 0
    }},
    "execution": {{
        // For batches and stream-ordered reads in compatibility mode.
        "parallel_io": true,
        "max_io_threads": 4,
        "max_io_queue_depth": 128,
        "min_io_threshold_size_kb": 8192,
        "max_request_parallelism": 4
    }},
    "properties": {{
        {why}
        "allow_compat_mode": {compat},
        // The kernel's PCI peer-to-peer DMA instead of nvidia-fs, for NVMe drives.
        "use_pci_p2pdma": {p2pdma},
        // Polling is for reads of a few KiB.
        "use_poll_mode": false,
        // nvidia-fs takes no larger reads.
        "max_direct_io_size_kb": 16384,
        // cuFile's own buffers on each GPU: as many as a batch has operations.
        "max_device_cache_size_kb": 131072,
        "per_buffer_cache_size_kb": 1024,
        "io_batchsize": 128,
        "max_device_pinned_mem_size_kb": 33554432,
        // Host buffers of compatibility mode; batches have hung when the largest ran out.
        "posix_pool_slab_size_kb": [4, 1024, 16384],
        "posix_pool_slab_count": [128, 64, {slabs}],
        "rdma_dynamic_routing": false
    }}
}}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::config::{Config, comments};
    use crate::check::finding::Level;
    use crate::check::probes::Probes;

    #[test]
    fn what_is_suggested_is_json_and_gives_no_cause_for_complaint() {
        for (direct, p2pdma) in [(true, false), (true, true), (false, false)] {
            let settings = serde_json::from_str(&comments::strip(&suggest(direct, p2pdma))).unwrap();
            let config = Config { settings, ..Config::default() };
            assert_eq!(config.p2pdma(), p2pdma);
            let complaints: Vec<&str> = config
                .findings(&Probes::default())
                .into_iter()
                .filter(|finding| finding.level >= Level::Warning)
                .map(|finding| finding.id)
                .collect();
            assert_eq!(complaints, if direct { vec![] } else { vec!["config.allow_compat_mode"] });
        }
    }
}
