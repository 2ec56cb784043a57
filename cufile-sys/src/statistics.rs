//! The two layouts that cuFile's statistics have had.
//!
//! `CUfileStatsLevel1_t` grew from 512 to 624 bytes in 1.19, and the levels above it embed it: what an older library
//! writes lies 112 bytes lower than the current header says from level 2 on, and a newer library may write more than
//! the header's type has room for. So the library fills a [`StatisticsBuffer`], which has room to spare, and what it
//! wrote is read by the [`StatisticsLayout`] of its version.

use std::fmt;
use std::mem::size_of;
use std::ptr;

use crate::bindings::{
    CUfileStatsLevel1, CUfileStatsLevel1_t, CUfileStatsLevel2_t, CUfileStatsLevel3, CUfileStatsLevel3_t,
};

/// Where a library's version puts its statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatisticsLayout {
    /// Libraries 1.15 to 1.18: level 1 ends before the counters of vectored I/O.
    From1_15,
    /// Libraries 1.19 and 1.20: as in the bindings.
    From1_19,
}

impl StatisticsLayout {
    /// The layout of the library whose `cuFileGetVersion` says `version` (1000 × major + 10 × minor).
    ///
    /// `None` below 1.15, which has no statistics, and for versions newer than the bindings: their layout is not known,
    /// and figures read by a wrong one would be nonsense that looks like figures.
    pub fn of(version: i32) -> Option<StatisticsLayout> {
        match version {
            1150..1190 => Some(StatisticsLayout::From1_15),
            1190..1210 => Some(StatisticsLayout::From1_19),
            _ => None,
        }
    }

    /// The size of level 1 in bytes.
    fn level1_size(self) -> usize {
        match self {
            StatisticsLayout::From1_15 => 512,
            StatisticsLayout::From1_19 => size_of::<CUfileStatsLevel1>(),
        }
    }
}

/// Words in the buffer: 64 KiB, thirteen times the current level 3, so that no later library overruns it.
const WORDS: usize = 8 << 10;

/// Memory for `cuFileGetStatsL1`, `L2` or `L3` of a library of any version.
pub struct StatisticsBuffer {
    words: Box<[u64]>,
}

impl StatisticsBuffer {
    /// A buffer of zeros.
    pub fn new() -> StatisticsBuffer {
        StatisticsBuffer { words: vec![0; WORDS].into_boxed_slice() }
    }

    /// What to pass to `cuFileGetStatsL1`.
    pub fn level1_mut(&mut self) -> *mut CUfileStatsLevel1_t {
        self.words.as_mut_ptr().cast()
    }

    /// What to pass to `cuFileGetStatsL2`.
    pub fn level2_mut(&mut self) -> *mut CUfileStatsLevel2_t {
        self.words.as_mut_ptr().cast()
    }

    /// What to pass to `cuFileGetStatsL3`.
    pub fn level3_mut(&mut self) -> *mut CUfileStatsLevel3_t {
        self.words.as_mut_ptr().cast()
    }

    /// The statistics in the buffer, by the layout of the library that wrote them. What that library does not count,
    /// or did not write at the level it was asked for, is 0.
    pub fn read(&self, layout: StatisticsLayout) -> CUfileStatsLevel3 {
        let mut statistics = CUfileStatsLevel3::default();
        let level1 = layout.level1_size();
        let above = size_of::<CUfileStatsLevel3>() - size_of::<CUfileStatsLevel1>();
        let from = self.words.as_ptr().cast::<u8>();
        let to = (&raw mut statistics).cast::<u8>();
        // SAFETY:
        // - both ranges read end within the buffer: `level1` + `above` is at most the size of level 3;
        // - both ranges written lie within `statistics`, since `level1` is at most the size of its level 1;
        // - every field of it is an integer, so that any bytes are valid.
        unsafe {
            ptr::copy_nonoverlapping(from, to, level1);
            ptr::copy_nonoverlapping(from.add(level1), to.add(size_of::<CUfileStatsLevel1>()), above);
        }
        statistics
    }
}

const _: () = assert!(WORDS * 8 >= size_of::<CUfileStatsLevel3>());

impl Default for StatisticsBuffer {
    fn default() -> StatisticsBuffer {
        StatisticsBuffer::new()
    }
}

impl fmt::Debug for StatisticsBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatisticsBuffer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_layouts() {
        for (version, layout) in [
            (1140, None),
            (1150, Some(StatisticsLayout::From1_15)),
            (1181, Some(StatisticsLayout::From1_15)),
            (1190, Some(StatisticsLayout::From1_19)),
            (1200, Some(StatisticsLayout::From1_19)),
            (1210, None),
            (2000, None),
            (-1, None),
        ] {
            assert_eq!(StatisticsLayout::of(version), layout, "{version}");
        }
    }

    /// Offsets of 1.15 to 1.18, as the C compiler gives them for those headers: level 2's histograms at 512, the GPUs
    /// at 1032 of 248 bytes each, `n_posix_reads` at 72 of each.
    #[test]
    fn an_older_library_writes_lower() {
        let mut buffer = StatisticsBuffer::new();
        for (word, value) in buffer.words.iter_mut().zip(0..) {
            *word = value;
        }
        let old = buffer.read(StatisticsLayout::From1_15);
        assert_eq!(old.detailed.basic.read_ops.ok, 0);
        assert_eq!(old.detailed.basic.last_batch_write_bytes, 504 / 8);
        assert_eq!(old.detailed.basic.readv_ops.ok, 0, "not counted by that library");
        assert_eq!(old.detailed.read_size_kb_hist[0], 512 / 8);
        assert_eq!(u64::from(old.num_gpus), 1024 / 8);
        assert_eq!(old.per_gpu_stats[0].n_posix_reads, (1032 + 72) / 8);
        assert_eq!(old.per_gpu_stats[15].reg_bytes, (1032 + 15 * 248 + 240) / 8);

        let new = buffer.read(StatisticsLayout::From1_19);
        assert_eq!(new.detailed.basic.readv_ops.ok, 512 / 8);
        assert_eq!(new.per_gpu_stats[15].reg_bytes, (1144 + 15 * 248 + 240) / 8);
    }
}
