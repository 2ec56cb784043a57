//! The library's own statistics: the only proof of how bytes travelled.
//!
//! Level 1 counts operations and bytes, level 2 adds histograms of their sizes, level 3 tells for each GPU how its
//! requests were served: by nvidia-fs, by peer-to-peer DMA, or by POSIX calls and the host.

use cufile_sys as sys;
use cufile_sys::{StatisticsBuffer, StatisticsLayout};
use serde::Serialize;

use super::driver::{self, Driver};
use super::error::{CuFileError, CuFileResult};
use super::library::{check, need};

/// Successes and failures of one kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Operations {
    /// Those that succeeded.
    pub ok: u64,
    /// Those that failed.
    pub failed: u64,
}

/// One kind of transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Transfers {
    /// How many.
    pub operations: Operations,
    /// Bytes transferred.
    pub bytes: u64,
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// Operations per second.
    pub operations_per_second: u64,
    /// Average latency in microseconds.
    pub latency_us: u64,
    /// Sum of the latencies in microseconds.
    pub latency_sum_us: u64,
}

/// Batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the counters' own names; the header says no more about them")]
pub struct BatchStatistics {
    pub submit: Operations,
    pub complete: Operations,
    pub set_up: Operations,
    pub cancel: Operations,
    pub destroy: Operations,
    pub enqueued: Operations,
    pub posix_enqueued: Operations,
    pub processed: Operations,
    pub posix_processed: Operations,
    pub nvfs_submit: Operations,
    pub p2p_submit: Operations,
    pub aio_submit: Operations,
    pub io_uring_submit: Operations,
    pub mixed_submit: Operations,
    pub total_submit: Operations,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub read_bytes_per_second: u64,
    pub write_bytes_per_second: u64,
    pub submit_latency_us: u64,
    pub completion_latency_us: u64,
    pub submits_per_second: u64,
    pub completions_per_second: u64,
    pub submit_latency_sum_us: u64,
    pub completion_latency_sum_us: u64,
    pub last_read_bytes: u64,
    pub last_write_bytes: u64,
}

/// Level 1: operations and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Level1 {
    /// `cuFileRead`.
    pub read: Transfers,
    /// `cuFileWrite`.
    pub write: Transfers,
    /// `cuFileReadv`; always 0 before 1.19.
    pub readv: Transfers,
    /// `cuFileWritev`; always 0 before 1.19.
    pub writev: Transfers,
    /// Files registered.
    pub file_registrations: Operations,
    /// Files deregistered.
    pub file_deregistrations: Operations,
    /// Buffers registered.
    pub buffer_registrations: Operations,
    /// Buffers deregistered.
    pub buffer_deregistrations: Operations,
    /// Batches.
    pub batch: BatchStatistics,
}

/// Level 2: level 1, and how large the requests were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Level2 {
    /// Operations and bytes.
    pub level1: Level1,
    /// Reads by size: one class for each power of two of KiB.
    pub read_sizes_kib: [u64; 32],
    /// Writes by size.
    pub write_sizes_kib: [u64; 32],
}

/// One way of moving data on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Routes {
    /// Bytes.
    pub bytes: u64,
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// Share of the time in use, in percent.
    pub utilization: u64,
    /// Time, in microseconds.
    pub duration_us: u64,
    /// Requests.
    pub total: u64,
    /// Of these, by peer-to-peer DMA.
    pub p2p: u64,
    /// By nvidia-fs.
    pub nvfs: u64,
    /// By POSIX calls and the host.
    pub posix: u64,
    /// Not aligned.
    pub unaligned: u64,
    /// By another GPU, near the storage (dynamic routing).
    pub dynamic: u64,
    /// Failed.
    pub failed: u64,
}

/// What one GPU did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuStatistics {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Reads.
    pub read: Routes,
    /// Writes.
    pub write: Routes,
    /// Holes that were read.
    pub sparse_regions: u64,
    /// Data inlined in inodes that was read.
    pub inline_regions: u64,
    /// Buffers mapped.
    pub maps: Operations,
    /// Buffers unmapped.
    pub unmaps: u64,
    /// Bytes registered.
    pub registered_bytes: u64,
}

/// Level 3: level 2, and each GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Level3 {
    /// Operations, bytes and sizes.
    pub level2: Level2,
    /// The GPUs in use.
    pub gpus: Vec<GpuStatistics>,
}

impl Level3 {
    /// Reads that bounced through the host, on all GPUs, since gathering began.
    pub fn posix_reads(&self) -> u64 {
        self.gpus.iter().map(|gpu| gpu.read.posix).sum()
    }

    /// Reads that went straight from storage to a GPU, since gathering began.
    pub fn direct_reads(&self) -> u64 {
        self.gpus.iter().map(|gpu| gpu.read.nvfs + gpu.read.p2p).sum()
    }
}

impl Driver {
    /// The level of statistics gathered: 0 to 3.
    ///
    /// # Errors
    /// [`CuFileError::Missing`] before cuFile 1.15, and those of [`Driver::health`], as for everything below.
    pub fn statistics_level(&self) -> CuFileResult<u32> {
        let library = self.enter()?;
        let function = need!(library, cuFileGetStatsLevel)?;
        let mut level = 0;
        // SAFETY: `level` is writable for the call.
        let answer = unsafe { function(&mut level) };
        check("cuFileGetStatsLevel", answer, || "reading the level of statistics".into())?;
        Ok(level.max(0).unsigned_abs())
    }

    /// Sets the level of statistics gathered, 0 to 3.
    ///
    /// # Errors
    /// As for [`Driver::statistics_level`]; [`CuFileError::NotTaken`] where the library accepted it and did nothing.
    pub fn set_statistics_level(&self, level: u32) -> CuFileResult<()> {
        let library = self.enter()?;
        let function = need!(library, cuFileSetStatsLevel)?;
        let number =
            i32::try_from(level).map_err(|_| CuFileError::usage(format!("statistics level {level}")))?;
        // SAFETY: takes a number.
        let answer = unsafe { function(number) };
        check("cuFileSetStatsLevel", answer, || format!("setting the level of statistics to {level}"))?;
        let found = self.statistics_level()?;
        if found != level {
            return Err(CuFileError::NotTaken {
                setting: "the level of statistics".into(),
                asked: level.to_string(),
                found: found.to_string(),
            });
        }
        Ok(())
    }

    /// Starts gathering.
    ///
    /// # Errors
    /// As for [`Driver::statistics_level`].
    pub fn start_statistics(&self) -> CuFileResult<()> {
        let library = self.enter()?;
        let function = need!(library, cuFileStatsStart)?;
        driver::make_room();
        // SAFETY: takes nothing.
        check("cuFileStatsStart", unsafe { function() }, || "starting statistics".into())
    }

    /// Stops gathering.
    ///
    /// # Errors
    /// As for [`Driver::statistics_level`].
    pub fn stop_statistics(&self) -> CuFileResult<()> {
        let library = self.enter()?;
        let function = need!(library, cuFileStatsStop)?;
        // SAFETY: takes nothing.
        check("cuFileStatsStop", unsafe { function() }, || "stopping statistics".into())
    }

    /// Sets all counters to 0. With NVIDIA's 1.20 those of the GPUs (level 3) then stay at 0 for good: whoever needs them
    /// takes differences instead.
    ///
    /// # Errors
    /// As for [`Driver::statistics_level`].
    pub fn reset_statistics(&self) -> CuFileResult<()> {
        let library = self.enter()?;
        let function = need!(library, cuFileStatsReset)?;
        // SAFETY: takes nothing.
        check("cuFileStatsReset", unsafe { function() }, || "resetting statistics".into())
    }

    /// Operations and bytes.
    ///
    /// # Errors
    /// As for [`Driver::statistics_level`]; [`CuFileError::Unavailable`] for a version whose layout is not known.
    pub fn statistics_level1(&self) -> CuFileResult<Level1> {
        let library = self.enter()?;
        let layout = self.layout()?;
        let function = need!(library, cuFileGetStatsL1)?;
        let mut buffer = StatisticsBuffer::new();
        // SAFETY: the buffer is writable for the call, and longer than any library's.
        let answer = unsafe { function(buffer.level1_mut()) };
        check("cuFileGetStatsL1", answer, || "reading statistics of level 1".into())?;
        Ok(level1(&buffer.read(layout).detailed.basic))
    }

    /// Level 1, and the sizes.
    ///
    /// # Errors
    /// As for [`Driver::statistics_level1`].
    pub fn statistics_level2(&self) -> CuFileResult<Level2> {
        let library = self.enter()?;
        let layout = self.layout()?;
        let function = need!(library, cuFileGetStatsL2)?;
        let mut buffer = StatisticsBuffer::new();
        // SAFETY: as for level 1.
        let answer = unsafe { function(buffer.level2_mut()) };
        check("cuFileGetStatsL2", answer, || "reading statistics of level 2".into())?;
        Ok(level2(&buffer.read(layout).detailed))
    }

    /// Level 2, and each GPU.
    ///
    /// # Errors
    /// As for [`Driver::statistics_level1`].
    pub fn statistics_level3(&self) -> CuFileResult<Level3> {
        let library = self.enter()?;
        let layout = self.layout()?;
        let function = need!(library, cuFileGetStatsL3)?;
        let mut buffer = StatisticsBuffer::new();
        // SAFETY: as for level 1.
        let answer = unsafe { function(buffer.level3_mut()) };
        check("cuFileGetStatsL3", answer, || "reading statistics of level 3".into())?;
        let raw = buffer.read(layout);
        let gpus = raw.per_gpu_stats.iter().take(raw.num_gpus as usize).map(gpu).collect();
        Ok(Level3 { level2: level2(&raw.detailed), gpus })
    }

    fn layout(&self) -> CuFileResult<StatisticsLayout> {
        let version = self.library().version();
        version.and_then(|version| StatisticsLayout::of(version.number())).ok_or_else(|| {
            let version = version.map_or_else(|| "an unknown version".into(), |version| version.to_string());
            CuFileError::unavailable(format!("the layout of the statistics of {version} is not known"))
        })
    }
}

fn operations(raw: sys::CUfileOpCounter) -> Operations {
    Operations { ok: raw.ok, failed: raw.err }
}

fn level1(raw: &sys::CUfileStatsLevel1) -> Level1 {
    let transfers =
        |counter, [bytes, bytes_per_second, operations_per_second, latency_us, latency_sum_us]: [u64; 5]| {
            Transfers {
                operations: operations(counter),
                bytes,
                bytes_per_second,
                operations_per_second,
                latency_us,
                latency_sum_us,
            }
        };
    Level1 {
        read: transfers(
            raw.read_ops,
            [
                raw.read_bytes,
                raw.read_bw_bytes_per_sec,
                raw.read_ops_per_sec,
                raw.read_lat_avg_us,
                raw.read_lat_sum_us,
            ],
        ),
        write: transfers(
            raw.write_ops,
            [
                raw.write_bytes,
                raw.write_bw_bytes_per_sec,
                raw.write_ops_per_sec,
                raw.write_lat_avg_us,
                raw.write_lat_sum_us,
            ],
        ),
        readv: transfers(
            raw.readv_ops,
            [
                raw.readv_bytes,
                raw.readv_bw_bytes_per_sec,
                raw.readv_ops_per_sec,
                raw.readv_lat_avg_us,
                raw.readv_lat_sum_us,
            ],
        ),
        writev: transfers(
            raw.writev_ops,
            [
                raw.writev_bytes,
                raw.writev_bw_bytes_per_sec,
                raw.writev_ops_per_sec,
                raw.writev_lat_avg_us,
                raw.writev_lat_sum_us,
            ],
        ),
        file_registrations: operations(raw.hdl_register_ops),
        file_deregistrations: operations(raw.hdl_deregister_ops),
        buffer_registrations: operations(raw.buf_register_ops),
        buffer_deregistrations: operations(raw.buf_deregister_ops),
        batch: BatchStatistics {
            submit: operations(raw.batch_submit_ops),
            complete: operations(raw.batch_complete_ops),
            set_up: operations(raw.batch_setup_ops),
            cancel: operations(raw.batch_cancel_ops),
            destroy: operations(raw.batch_destroy_ops),
            enqueued: operations(raw.batch_enqueued_ops),
            posix_enqueued: operations(raw.batch_posix_enqueued_ops),
            processed: operations(raw.batch_processed_ops),
            posix_processed: operations(raw.batch_posix_processed_ops),
            nvfs_submit: operations(raw.batch_nvfs_submit_ops),
            p2p_submit: operations(raw.batch_p2p_submit_ops),
            aio_submit: operations(raw.batch_aio_submit_ops),
            io_uring_submit: operations(raw.batch_iouring_submit_ops),
            mixed_submit: operations(raw.batch_mixed_io_submit_ops),
            total_submit: operations(raw.batch_total_submit_ops),
            read_bytes: raw.batch_read_bytes,
            write_bytes: raw.batch_write_bytes,
            read_bytes_per_second: raw.batch_read_bw_bytes,
            write_bytes_per_second: raw.batch_write_bw_bytes,
            submit_latency_us: raw.batch_submit_lat_avg_us,
            completion_latency_us: raw.batch_completion_lat_avg_us,
            submits_per_second: raw.batch_submit_ops_per_sec,
            completions_per_second: raw.batch_complete_ops_per_sec,
            submit_latency_sum_us: raw.batch_submit_lat_sum_us,
            completion_latency_sum_us: raw.batch_completion_lat_sum_us,
            last_read_bytes: raw.last_batch_read_bytes,
            last_write_bytes: raw.last_batch_write_bytes,
        },
    }
}

fn level2(raw: &sys::CUfileStatsLevel2) -> Level2 {
    Level2 {
        level1: level1(&raw.basic),
        read_sizes_kib: raw.read_size_kb_hist,
        write_sizes_kib: raw.write_size_kb_hist,
    }
}

fn gpu(raw: &sys::CUfilePerGpuStats) -> GpuStatistics {
    GpuStatistics {
        uuid: raw.uuid.map(|byte| byte as u8),
        read: Routes {
            bytes: raw.read_bytes,
            bytes_per_second: raw.read_bw_bytes_per_sec,
            utilization: raw.read_utilization,
            duration_us: raw.read_duration_us,
            total: raw.n_total_reads,
            p2p: raw.n_p2p_reads,
            nvfs: raw.n_nvfs_reads,
            posix: raw.n_posix_reads,
            unaligned: raw.n_unaligned_reads,
            dynamic: raw.n_dr_reads,
            failed: raw.n_reads_err,
        },
        write: Routes {
            bytes: raw.writes_bytes,
            bytes_per_second: raw.write_bw_bytes_per_sec,
            utilization: raw.write_utilization,
            duration_us: raw.write_duration_us,
            total: raw.n_total_writes,
            p2p: raw.n_p2p_writes,
            nvfs: raw.n_nvfs_writes,
            posix: raw.n_posix_writes,
            unaligned: raw.n_unaligned_writes,
            dynamic: raw.n_dr_writes,
            failed: raw.n_writes_err,
        },
        sparse_regions: raw.n_sparse_regions,
        inline_regions: raw.n_inline_regions,
        maps: Operations { ok: raw.n_mmap_ok, failed: raw.n_mmap_err },
        unmaps: raw.n_mmap_free,
        registered_bytes: raw.reg_bytes,
    }
}
