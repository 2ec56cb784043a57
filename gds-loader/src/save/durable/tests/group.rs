//! Syncing as a group, on a disk whose every sync takes a while.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::Durability;
use super::checkpoint::{Checkpoint, find};
use super::scenario::root;
use super::tap::{Call, Tap, Tapped, Verdict};

/// A disk that takes this long for each sync, however many there are at once.
#[derive(Debug)]
struct Slow(Duration);

impl Tap for Slow {
    fn before(&self, call: &Call) -> Verdict {
        if matches!(call, Call::Sync { .. }) {
            std::thread::sleep(self.0);
        }
        Verdict::Go
    }

    fn after(&self, _: Call, _: Option<u64>) {}
}

#[test]
fn many_shards_are_synced_at_once() {
    const SHARDS: usize = 64;
    let folder = root("save-group");
    let set = folder.path().join("set");
    fs::create_dir(&set).unwrap();
    let checkpoint = Checkpoint { fill: 1, shards: SHARDS, tensor: 100 };
    let each = Duration::from_millis(20);
    let start = Instant::now();
    checkpoint.save_set(Arc::new(Tapped(Slow(each))), &set, Durability::Full).unwrap();
    let took = start.elapsed();
    let one_by_one = each * SHARDS as u32;
    assert!(took < one_by_one / 3, "{took:?}, one after another {one_by_one:?}");
    assert_eq!(find(&set), super::checkpoint::Found::set(checkpoint));
}
