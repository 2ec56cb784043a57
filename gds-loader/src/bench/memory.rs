//! Memory for the next load: what it gets is to have been in use just now.
//!
//! A virtual machine gives memory that has been free for some seconds back to its host (free page reporting), and taking it
//! again costs ten times what first touches cost otherwise. A load that began after a pause would pay for the pause. Left out are
//! first touches themselves, which are part of every load.

use cuda_staging::limits;
use memmap2::{Advice, MmapMut};

use crate::facts::{Root, available_memory};

/// Takes `bytes` bytes of memory, or half of what can be had where that is less, touches every page and gives all of it back.
/// Returns how many bytes that were: 0 where none is to be had, which only makes the next load a less even match.
pub fn take_and_give_back(bytes: u64) -> u64 {
    let most = available_memory(&Root::system()).unwrap_or(0) / 2;
    let len = usize::try_from(bytes.min(most)).unwrap_or(0);
    let Ok(mut memory) = MmapMut::map_anon(len.max(1)) else { return 0 };
    // As most of a load's memory has them. Where there are none, ordinary pages do.
    if let Err(error) = memory.advise(Advice::HugePage) {
        tracing::debug!(%error, "no huge pages to take and give back");
    }
    memory.chunks_mut(limits::page_size()).for_each(|page| page[0] = 1);
    std::hint::black_box(&memory);
    len as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_half_of_what_there_is() {
        assert_eq!(take_and_give_back(1 << 20), 1 << 20);
        assert_eq!(take_and_give_back(0), 0);
    }
}
