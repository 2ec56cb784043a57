//! Statistics in the three levels of 1.20, and totals for the report.
//!
//! As seen on NVIDIA's: counting begins with opening where a level is set, starting it is not needed; after a stop nothing can
//! be read, nor started again until a level is set; closing forgets the level. Per GPU it counts where level 3 was set before
//! the driver opened, or statistics were started since; set later, and after a reset, those counters stay 0. What batches
//! move is in level 1 alone.

use std::ffi::c_char;
use std::time::Duration;

use cufile_sys::{
    CU_FILE_DRIVER_NOT_INITIALIZED, CU_FILE_INTERNAL_ERROR, CU_FILE_INVALID_VALUE, CUfileOpCounter,
    CUfilePerGpuStats, CUfileStatsLevel3,
};

use super::State;
use super::segment::Segment;
use crate::cuda::{self, Place};
use crate::error::Result;

/// One finished transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transferred {
    pub(crate) kind: Kind,
    pub(crate) writes: bool,
    pub(crate) place: Place,
    /// Bytes moved; `None` where it failed.
    pub(crate) bytes: Option<u64>,
    /// The bytes went through the host.
    pub(crate) bounced: bool,
    /// Offset or size are no multiples of 4 KiB.
    pub(crate) unaligned: bool,
    /// The memory is not registered.
    pub(crate) unregistered: bool,
    pub(crate) elapsed: Duration,
}

/// How a transfer was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// By itself, in a call or on a stream.
    Single,
    /// As a part of a vectored call.
    Vector,
    /// As an entry of a batch.
    Batch,
}

/// What the report says about transfers, whatever the level of the statistics.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Totals {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) failed: u64,
    pub(crate) straight_bytes: u64,
    pub(crate) bounced_bytes: u64,
    pub(crate) unregistered: u64,
}

/// The counters, and whether they count.
#[derive(Default)]
pub(crate) struct Statistics {
    level: i32,
    stopped: bool,
    per_gpu: bool,
    segment: Option<Segment>,
    counters: Box<CUfileStatsLevel3>,
    pub(crate) totals: Totals,
}

/// Adds to one of the two counts.
pub(crate) fn count(counter: &mut CUfileOpCounter, ok: bool) {
    let count = if ok { &mut counter.ok } else { &mut counter.err };
    *count += 1;
}

/// The place of a size in the histograms.
fn bucket(bytes: u64) -> usize {
    (u64::BITS - (bytes >> 12).leading_zeros()).min(31) as usize
}

impl Statistics {
    /// What opening does; `profile` is the parameter of that name, which sets a level too.
    pub(super) fn open(&mut self, profile: usize) {
        if self.level == 0 {
            self.level = i32::try_from(profile).unwrap_or(0).min(3);
        }
        if self.level > 0 {
            self.segment = Segment::make();
            if self.segment.is_none() {
                self.level = 0;
            }
        }
        self.per_gpu = self.level == 3 && !self.stopped;
    }

    /// What the last close does.
    pub(super) fn close(&mut self) {
        // At level 0 NVIDIA's forgets it.
        if let Some(segment) = self.segment.take().filter(|_| self.level > 0) {
            segment.remove();
        }
        (self.level, self.stopped) = (0, false);
        self.reset();
    }

    pub(crate) fn level(&self) -> i32 {
        self.level
    }

    pub(crate) fn set_level(&mut self, level: i32) -> Result {
        if !(0..=3).contains(&level) {
            return Err(CU_FILE_INVALID_VALUE.into());
        }
        (self.level, self.stopped) = (level, false);
        self.per_gpu &= level == 3;
        Ok(())
    }

    pub(crate) fn start(&mut self) -> Result {
        if self.level == 0 || self.stopped {
            return Err(CU_FILE_INTERNAL_ERROR.into());
        }
        self.per_gpu = self.level == 3;
        if self.segment.is_none() {
            self.segment = Segment::make();
        }
        Ok(())
    }

    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.reset();
    }

    pub(crate) fn reset(&mut self) {
        self.per_gpu = false;
        *self.counters = CUfileStatsLevel3::default();
    }

    /// Changes the counters, where they count.
    pub(crate) fn update(&mut self, change: impl FnOnce(&mut CUfileStatsLevel3)) {
        if self.level > 0 && !self.stopped {
            change(&mut self.counters);
        }
    }

    pub(crate) fn record(&mut self, done: &Transferred) {
        self.totals.add(done);
        if self.level == 0 || self.stopped {
            return;
        }
        let per_gpu = self.per_gpu;
        let counters = &mut *self.counters;
        let (ok, bytes) = (done.bytes.is_some(), done.bytes.unwrap_or(0));
        let micros = u64::try_from(done.elapsed.as_micros()).unwrap_or(u64::MAX);
        let basic = &mut counters.detailed.basic;
        match (done.kind, done.writes) {
            (Kind::Single, false) => {
                count(&mut basic.read_ops, ok);
                basic.read_bytes += bytes;
                basic.read_lat_sum_us += micros;
            }
            (Kind::Single, true) => {
                count(&mut basic.write_ops, ok);
                basic.write_bytes += bytes;
                basic.write_lat_sum_us += micros;
            }
            // Vectored calls are counted as a whole, by the call.
            (Kind::Vector, false) => basic.readv_bytes += bytes,
            (Kind::Vector, true) => basic.writev_bytes += bytes,
            (Kind::Batch, writes) => {
                let processed = if done.bounced {
                    &mut basic.batch_posix_processed_ops
                } else {
                    &mut basic.batch_processed_ops
                };
                count(processed, ok);
                let sum = if writes { &mut basic.batch_write_bytes } else { &mut basic.batch_read_bytes };
                *sum += bytes;
                basic.batch_completion_lat_sum_us += micros;
                return;
            }
        }
        if done.kind == Kind::Single && ok {
            let detailed = &mut counters.detailed;
            let histogram =
                if done.writes { &mut detailed.write_size_kb_hist } else { &mut detailed.read_size_kb_hist };
            if let Some(place) = histogram.get_mut(bucket(bytes)) {
                *place += 1;
            }
        }
        if let (Place::Device(device), true) = (done.place, per_gpu)
            && let Some(gpu) = counters.per_gpu_stats.get_mut(device as usize)
        {
            count_gpu(gpu, done, micros);
        }
    }
}

fn count_gpu(gpu: &mut CUfilePerGpuStats, done: &Transferred, micros: u64) {
    let bytes = done.bytes.unwrap_or(0);
    let (failed, unaligned) = (u64::from(done.bytes.is_none()), u64::from(done.unaligned));
    let (posix, nvfs) = (u64::from(done.bounced), u64::from(!done.bounced));
    if done.writes {
        gpu.writes_bytes += bytes;
        gpu.write_duration_us += micros;
        gpu.n_total_writes += 1;
        gpu.n_posix_writes += posix;
        gpu.n_nvfs_writes += nvfs;
        gpu.n_unaligned_writes += unaligned;
        gpu.n_writes_err += failed;
    } else {
        gpu.read_bytes += bytes;
        gpu.read_duration_us += micros;
        gpu.n_total_reads += 1;
        gpu.n_posix_reads += posix;
        gpu.n_nvfs_reads += nvfs;
        gpu.n_unaligned_reads += unaligned;
        gpu.n_reads_err += failed;
    }
}

impl Totals {
    fn add(&mut self, done: &Transferred) {
        let bytes = done.bytes.unwrap_or(0);
        let (number, sum) = if done.writes {
            (&mut self.writes, &mut self.write_bytes)
        } else {
            (&mut self.reads, &mut self.read_bytes)
        };
        *number += 1;
        *sum += bytes;
        let way = if done.bounced { &mut self.bounced_bytes } else { &mut self.straight_bytes };
        *way += bytes;
        self.failed += u64::from(done.bytes.is_none());
        self.unregistered += u64::from(done.unregistered);
    }
}

impl State {
    /// The counters for a reader of `level`, with what is derived from them.
    pub(crate) fn statistics_of(&self, level: i32) -> Result<CUfileStatsLevel3> {
        if self.driver.opened.is_none() {
            return Err(CU_FILE_DRIVER_NOT_INITIALIZED.into());
        }
        let statistics = &self.statistics;
        if statistics.level < level || statistics.stopped {
            return Err(CU_FILE_INVALID_VALUE.into());
        }
        let mut counters = *statistics.counters;
        let basic = &mut counters.detailed.basic;
        let average =
            |sum: u64, counter: CUfileOpCounter| sum.checked_div(counter.ok + counter.err).unwrap_or(0);
        basic.read_lat_avg_us = average(basic.read_lat_sum_us, basic.read_ops);
        basic.write_lat_avg_us = average(basic.write_lat_sum_us, basic.write_ops);
        basic.batch_submit_lat_avg_us = average(basic.batch_submit_lat_sum_us, basic.batch_submit_ops);
        if let (true, Some(driver)) = (statistics.per_gpu, cuda::driver()) {
            counters.num_gpus = driver.devices().min(counters.per_gpu_stats.len() as u32);
            for (device, gpu) in (0..counters.num_gpus).zip(&mut counters.per_gpu_stats) {
                gpu.uuid = driver.uuid(device).map(|byte| byte as c_char);
                gpu.reg_bytes = self.buffers.pinned_bytes(device);
            }
        }
        Ok(counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_into_buckets_by_doubling() {
        let places = [0, 100, 4095, 4096, 8191, 8192, 16 << 20, u64::MAX].map(bucket);
        assert_eq!(places, [0, 0, 0, 1, 1, 2, 13, 31]);
    }
}
