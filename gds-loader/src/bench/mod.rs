//! Measuring loads so that the figures mean something: `gds bench` is this and its printing.
//!
//! Four rules. Everything that is compared runs in the same rounds, in a shuffled order, and ratios are taken within a round, because
//! a disk drifts by a factor of two within minutes. A round counts as cold only where the page cache was looked at just before.
//! What no load can beat (the storage, the memory, the link) is measured in the same rounds. And what was left out, failed or cannot
//! be is in the report too, with its reason.
//!
//! The trade-off: rounds cost time, since the files are evicted and filled again for each. One number from one run would be quicker
//! and would be wrong.

mod cache;
mod case;
mod judge;
mod limits;
mod machine;
mod memory;
mod raw;
mod report;
mod schedule;
mod statistics;

pub use cache::{Asked, CacheState};
pub use case::{Case, Lane};
pub use judge::{BoundBy, Claim, Copies, PriceOfCopies};
pub use limits::{MemoryCopy, pinned_copies};
pub use machine::{Gpu, Machine, Storage};
pub use memory::take_and_give_back;
pub use raw::{Latency, Pattern, RawOptions, RawReport, read};
pub use report::{
    Headline, Limit, LimitKind, LimitRound, Overlap, Round, Row, ShareOfLimit, Start, Subject, TwoWays,
};
pub use schedule::schedule;
pub use statistics::{Summary, paired};
