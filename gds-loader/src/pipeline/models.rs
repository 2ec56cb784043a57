//! Models of a load's threads, for `cargo xtask loom`: [`run`](super::run) itself, with two workers that read a real file into host
//! memory and one that touches ahead, in every order of events within a bound. A model in which a thread waits for ever
//! fails.

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_staging::{Device, RegionMut};

use super::{CancelToken, Measure, OnProgress, Touching, Work};
use crate::error::{Error, Result};
use crate::facts::{FileFacts, Places, Root};
use crate::plan::{Landing, Piece, Plan, Scatter};
use crate::policy::{Backend, CuFilePaths, Memory, Route, Terms};
use crate::source::ShardFile;
use crate::transport::PathKind;

/// Bytes of a piece.
const LEN: u64 = 4096;

/// Distance of pieces in the destination: so far that who touches ahead must wait for those before.
const APART: u64 = 80 << 20;

/// A file of so many pieces, each byte its piece's number from 1 on, and the load of it.
struct Load {
    file: File,
    routes: Vec<Route>,
    plan: Plan,
}

impl Load {
    fn new(pieces: u64) -> Self {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..pieces).flat_map(|piece| [piece as u8 + 1; LEN as usize]).collect();
        file.write_all(&bytes).unwrap();
        let facts = FileFacts::at(&file, pieces * LEN, &Places::new(Root::system()));
        let terms = Terms {
            backend: Backend::Only(PathKind::Buffered),
            cufile: &CuFilePaths::default(),
            memory: Memory { needed: 0, available: None },
            share: false,
            keep_pages: true,
        };
        let kept = ShardFile::kept(file.try_clone().unwrap());
        let route = Route::open("model".as_ref(), &kept, None, &facts, &terms).unwrap();
        let each = |index: u64| Piece {
            file: 0,
            extent: index * LEN..(index + 1) * LEN,
            landing: Landing::Straight,
            scatter: index as usize..index as usize + 1,
            parts: index as usize..index as usize + 1,
            bytes: LEN,
        };
        let plan = Plan {
            pieces: (0..pieces).map(each).collect(),
            scatter: (0..pieces).map(|index| Scatter { offset: 0, at: index * APART, len: LEN }).collect(),
            parts: (0..pieces).map(|index| index * APART..index * APART + LEN).collect(),
            bytes: pieces * LEN,
        };
        Self { file, routes: vec![route], plan }
    }

    /// Loads it once; the destination, whole again whatever happened.
    fn run(&self, cancel: CancelToken, on_progress: Option<OnProgress>) -> (Result<u64>, RegionMut) {
        let device = Device::cpu();
        let region = device.allocate(self.plan.parts.last().unwrap().end, 1).unwrap();
        // Two cores, of which reading needs none: one thread touches ahead.
        let touching = Touching::new(region.toucher(), u64::MAX, 2, 0, None);
        let (carved, parts) = region.carve(&self.plan.parts).unwrap();
        let work = Work {
            plan: &self.plan,
            routes: &self.routes,
            device: &device,
            workers: 2,
            ring: None,
            on_progress,
            cancel,
            batches: None,
            queue: None,
            after: None,
            measure: Measure::Pipelined,
            touching,
            sums: None,
        };
        let outcome = super::run(&work, parts, vec![]).map(|tally| tally.placed);
        (outcome, carved.reunite().expect("no part outlives the load"))
    }
}

/// Runs `body` in every order of events that takes at most one thread off the processor before it would wait.
fn model(load: Load, body: impl Fn(&Load) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(1);
    builder.max_branches = 10_000;
    let orders = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&orders);
    // The file and what is known of it are the same in every run.
    let both = Arc::new((load, body));
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let both = Arc::clone(&both);
        // Reading files and formatting errors need more of a stack than the first thread of a model has.
        let run = move || both.1(&both.0);
        loom::thread::Builder::new().stack_size(0x8000).spawn(run).unwrap().join().unwrap();
    });
    println!("{} orders", orders.load(Ordering::Relaxed));
}

fn assert_placed(load: &Load, region: &RegionMut) {
    let bytes = region.host_bytes().unwrap();
    for (part, value) in load.plan.parts.iter().zip(1..) {
        let part = &bytes[part.start as usize..part.end as usize];
        assert!(part.iter().all(|byte| *byte == value), "piece {value}");
    }
}

#[test]
fn two_workers_and_who_touches_ahead_of_them_all_end() {
    model(Load::new(3), |load| {
        let (placed, region) = load.run(CancelToken::new(), None);
        assert_eq!(placed.unwrap(), load.plan.bytes);
        assert_placed(load, &region);
    });
}

#[test]
fn a_load_that_is_cancelled_ends_and_says_so_unless_it_was_done() {
    model(Load::new(3), |load| {
        let cancel = CancelToken::new();
        let token = cancel.clone();
        let on_progress: OnProgress = Arc::new(move |_| token.cancel());
        match load.run(cancel, Some(on_progress)) {
            (Ok(placed), region) => {
                assert_eq!(placed, load.plan.bytes);
                assert_placed(load, &region);
            }
            (Err(Error::Cancelled { placed, planned }), _) => {
                assert!((LEN..planned).contains(&placed), "{placed} of {planned}");
            }
            (Err(error), _) => panic!("{error}"),
        }
    });
}

#[test]
fn a_piece_that_cannot_be_read_stops_everybody_and_is_the_error() {
    let load = Load::new(3);
    load.file.set_len(LEN).unwrap();
    model(load, |load| {
        let (outcome, _) = load.run(CancelToken::new(), None);
        assert!(matches!(outcome, Err(Error::Read { .. })), "{outcome:?}");
    });
}
