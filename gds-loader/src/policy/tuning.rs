//! How storage is read best: how long the reads, how many at a time, by how many workers.
//!
//! One table, [`ReadTuning::of`], from what the storage is to where the reads of a load begin. They are starting points: the
//! engine may go from `depth` up to `most_depth` where that turns out to be faster, and what the user says overrules all of
//! it. Trade-off: the table knows kinds of storage and no models of drives, so it is right within a factor of two and never
//! wrong by ten.

/// Where the reads of a load begin, and how far an engine may go from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadTuning {
    /// Longest extent read in one go, in bytes: a multiple of 4096.
    pub(crate) read_size: u64,
    /// Workers where each keeps several reads in flight.
    pub(crate) workers: usize,
    /// Reads that each of them keeps in flight to begin with.
    pub(crate) depth: usize,
    /// The most that may come to.
    pub(crate) most_depth: usize,
    /// Workers where each waits for its one read.
    pub(crate) threads: usize,
}

/// Longest extent read in one go where nothing speaks for another, in bytes: beyond it no storage gains, and slots grow.
const READ_SIZE: u64 = 4 << 20;

/// Threads that wait: a read waits more than it computes, so there may be more than cores.
const LEAST_THREADS: usize = 4;
const MOST_THREADS: usize = 16;

impl ReadTuning {
    /// For storage of which nothing is known.
    pub(crate) fn unknown(cores: usize) -> Self {
        Self {
            read_size: READ_SIZE,
            workers: cores.clamp(1, 2),
            depth: 4,
            most_depth: 16,
            threads: cores.clamp(LEAST_THREADS, MOST_THREADS),
        }
    }
}
