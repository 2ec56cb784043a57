//! Runs cut into pieces: aligned extents no longer than one read, each with the stretches that scatter it.

use std::ops::Range;

use super::{Run, align_down, align_up};

/// What the planner needs to know of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileShape {
    /// Length in bytes.
    pub len: u64,
    /// Alignment of extents (offset, length and memory) in bytes: a power of two, 1 where reads may be anywhere.
    pub alignment: u64,
}

/// How runs are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Longest extent in bytes: a multiple of every file's alignment.
    pub read_size: u64,
    /// Bytes of one slot, at least `read_size`.
    pub slot_size: u64,
    /// Whether extents may be read straight into the destination (host memory, base aligned to every file's alignment).
    pub straight: bool,
    /// Whether bytes between two tensors of the destination are padding that a copy may overwrite.
    pub gather: bool,
    /// Whether a run that fits into one extent must not be cut in two: to compare with one copy a tensor.
    pub whole: bool,
}

/// Where a piece's bytes land first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// In the destination: the extent is one stretch of a run, aligned alike on both sides.
    Straight,
    /// In a slot, from where each stretch is copied on its own.
    Slot,
    /// In a slot, where the stretches are first put side by side as the destination wants them, then copied at once.
    Gathered,
}

/// One stretch of a piece: bytes of the extent and their place in the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scatter {
    /// Offset of its first byte in the extent.
    pub offset: u64,
    /// Its place in the destination.
    pub at: u64,
    /// Length in bytes, never 0.
    pub len: u64,
}

/// One read and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the file.
    pub file: u32,
    /// What is read, aligned to the file's alignment; its end may lie past the end of the file.
    pub extent: Range<u64>,
    /// Where the bytes land.
    pub landing: Landing,
    /// Its stretches: a range of [`Plan::scatter`].
    pub scatter: Range<usize>,
    /// The destination ranges it writes: a range of [`Plan::parts`]. One per stretch, or one in all where gathered.
    pub parts: Range<usize>,
    /// Sum of the lengths of its stretches, in bytes.
    pub bytes: u64,
}

/// Every read of a load, in file order. Piece, stretch and part lists are flat, so that a hundred thousand tiny tensors cost
/// a few vectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The pieces.
    pub pieces: Vec<Piece>,
    /// All stretches.
    pub scatter: Vec<Scatter>,
    /// All destination ranges, pairwise disjoint.
    pub parts: Vec<Range<u64>>,
    /// Bytes that will be placed in the destination.
    pub bytes: u64,
}

impl Plan {
    /// The stretches of `piece`.
    pub fn scatter_of(&self, piece: &Piece) -> &[Scatter] {
        &self.scatter[piece.scatter.clone()]
    }

    /// Bytes a slot must hold for the largest piece that lands in one; 0 where every piece is straight.
    pub fn slot_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| self.slot_bytes_of(piece)).max().unwrap_or(0)
    }

    /// Number of pieces that land in a slot.
    pub fn slot_pieces(&self) -> usize {
        self.pieces.iter().filter(|piece| piece.landing != Landing::Straight).count()
    }

    fn slot_bytes_of(&self, piece: &Piece) -> u64 {
        let extent = piece.extent.end - piece.extent.start;
        match piece.landing {
            Landing::Straight => 0,
            Landing::Slot => extent,
            Landing::Gathered => {
                extent + self.parts[piece.parts.start].end - self.parts[piece.parts.start].start
            }
        }
    }
}

/// A gap between two runs up to this many bytes is read through rather than sought over.
const BRIDGED_GAP: u64 = 64 << 10;

/// Stretches shorter than this on average are gathered on the host: a device copy costs some microseconds to launch, in
/// which a host core moves about as many bytes.
const GATHERED_MEAN: u64 = 64 << 10;

/// A run shorter than this goes through a slot even where it could be read straight: small reads cost more than small copies.
const STRAIGHT_LEN: u64 = 64 << 10;

/// Cuts `runs`, in (file, offset) order, into pieces. `files` is indexed by [`Run::file`].
pub fn cut(runs: &[Run], files: &[FileShape], rule: Cut) -> Plan {
    let mut cutter = Cutter { rule, alignment: 1, plan: Plan::default(), open: None };
    for run in runs {
        if cutter.open.as_ref().is_some_and(|open| open.file != run.file) {
            cutter.close();
        }
        cutter.alignment = files.get(run.file as usize).map_or(1, |file| file.alignment);
        cutter.add(*run);
    }
    cutter.close();
    cutter.plan
}

/// A slot piece being built.
struct Open {
    file: u32,
    /// Start of the extent, aligned.
    start: u64,
    /// The byte after the last wanted one, not aligned.
    end: u64,
    /// Index of its first stretch.
    first: usize,
    /// Destination range from its first stretch to its last.
    span: Range<u64>,
    /// Bytes of its stretches.
    bytes: u64,
}

struct Cutter {
    rule: Cut,
    /// Alignment of the current file.
    alignment: u64,
    plan: Plan,
    open: Option<Open>,
}

impl Cutter {
    fn add(&mut self, run: Run) {
        let straight = align_up(run.offset, self.alignment)..align_down(run.end(), self.alignment);
        let congruent = run.at % self.alignment == run.offset % self.alignment;
        let worth_it = straight.end.saturating_sub(straight.start) >= STRAIGHT_LEN.max(self.alignment);
        if !(self.rule.straight && congruent && worth_it) {
            return self.add_to_slots(run);
        }
        let part = |range: Range<u64>| Run {
            file: run.file,
            offset: range.start,
            at: run.at + (range.start - run.offset),
            len: range.end - range.start,
        };
        self.add_to_slots(part(run.offset..straight.start));
        self.close();
        let mut start = straight.start;
        while start < straight.end {
            // Cut at multiples of the read size in the file, so that the next run's extents fall in step.
            let end = (align_down_to(start, self.rule.read_size) + self.rule.read_size).min(straight.end);
            self.push_straight(part(start..end));
            start = end;
        }
        self.add_to_slots(part(straight.end..run.end()));
    }

    fn add_to_slots(&mut self, mut run: Run) {
        while run.len > 0 {
            if self.open.as_ref().is_some_and(|open| !self.can_take(open, &run)) {
                self.close();
            }
            let first = self.plan.scatter.len();
            let start = align_down(run.offset, self.alignment);
            let open = self.open.get_or_insert(Open {
                file: run.file,
                start,
                end: run.offset,
                first,
                span: run.at..run.at,
                bytes: 0,
            });
            let limit = open.start + self.rule.read_size;
            let len = run.len.min(limit - run.offset);
            open.end = run.offset + len;
            open.span.end = run.at + len;
            open.bytes += len;
            self.plan.scatter.push(Scatter { offset: run.offset - open.start, at: run.at, len });
            if open.end == limit {
                self.close();
            }
            run = Run { file: run.file, offset: run.offset + len, at: run.at + len, len: run.len - len };
        }
    }

    fn can_take(&self, open: &Open, run: &Run) -> bool {
        let limit = open.start + self.rule.read_size;
        if run.offset >= limit || run.offset - open.end > BRIDGED_GAP {
            return false;
        }
        if self.rule.whole && run.end() > limit {
            return false;
        }
        let len = run.len.min(limit - run.offset);
        let stretches = (self.plan.scatter.len() - open.first + 1) as u64;
        if !self.gathers(stretches, open.bytes + len) {
            return true;
        }
        let extent = align_up(run.offset + len, self.alignment) - open.start;
        let span = (run.at + len).saturating_sub(open.span.start);
        extent + span <= self.rule.slot_size
    }

    fn gathers(&self, stretches: u64, bytes: u64) -> bool {
        self.rule.gather && stretches >= 2 && bytes / stretches < GATHERED_MEAN
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let scatter = open.first..self.plan.scatter.len();
        let first_part = self.plan.parts.len();
        let landing = if self.gathers(scatter.len() as u64, open.bytes) {
            self.plan.parts.push(open.span);
            Landing::Gathered
        } else {
            let stretches = &self.plan.scatter[scatter.clone()];
            self.plan.parts.extend(stretches.iter().map(|s| s.at..s.at + s.len));
            Landing::Slot
        };
        self.plan.bytes += open.bytes;
        self.plan.pieces.push(Piece {
            file: open.file,
            extent: open.start..align_up(open.end, self.alignment),
            landing,
            scatter,
            parts: first_part..self.plan.parts.len(),
            bytes: open.bytes,
        });
    }

    fn push_straight(&mut self, run: Run) {
        let (scatter, part) = (self.plan.scatter.len(), self.plan.parts.len());
        self.plan.scatter.push(Scatter { offset: 0, at: run.at, len: run.len });
        self.plan.parts.push(run.at..run.at + run.len);
        self.plan.bytes += run.len;
        self.plan.pieces.push(Piece {
            file: run.file,
            extent: run.offset..run.end(),
            landing: Landing::Straight,
            scatter: scatter..scatter + 1,
            parts: part..part + 1,
            bytes: run.len,
        });
    }
}

/// `value` rounded down to a multiple of `step`, which need not be a power of two.
fn align_down_to(value: u64, step: u64) -> u64 {
    value - value % step
}

#[cfg(test)]
mod tests {
    use super::super::{LayoutRule, Wanted, lay_out, runs, runs_apart};
    use super::*;
    use proptest::prelude::*;

    /// A file's byte at `offset`: every position of every file looks different.
    fn byte(file: u32, offset: u64) -> u8 {
        (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) >> 56) as u8
            ^ (file as u8).wrapping_mul(37)
    }

    /// Carries the plan out on imagined files and checks every rule a piece must keep; returns the destination.
    fn carry_out(plan: &Plan, files: &[FileShape], rule: Cut, len: u64) -> Vec<Option<u8>> {
        let mut destination = vec![None; len as usize];
        let mut written = vec![false; len as usize];
        for part in &plan.parts {
            for at in part.clone() {
                assert!(!std::mem::replace(&mut written[at as usize], true), "parts overlap at {at}");
            }
        }
        for piece in &plan.pieces {
            let file = files[piece.file as usize];
            let extent = piece.extent.end - piece.extent.start;
            assert_eq!(piece.extent.start % file.alignment, 0);
            assert_eq!(piece.extent.end % file.alignment, 0);
            assert!(extent > 0 && extent <= rule.read_size);
            assert!(plan.slot_bytes_of(piece) <= rule.slot_size);
            let stretches = plan.scatter_of(piece);
            assert_eq!(piece.bytes, stretches.iter().map(|s| s.len).sum::<u64>());
            if piece.landing == Landing::Straight {
                assert!(rule.straight && stretches.len() == 1);
                assert_eq!((stretches[0].offset, stretches[0].len), (0, extent));
                assert_eq!(stretches[0].at % file.alignment, piece.extent.start % file.alignment);
            }
            if piece.landing == Landing::Gathered {
                assert!(rule.gather && piece.parts.len() == 1);
            }
            for s in stretches {
                assert!(s.len > 0 && s.offset + s.len <= extent);
                for k in 0..s.len {
                    let offset = piece.extent.start + s.offset + k;
                    assert!(offset < file.len, "wants a byte past the end of the file");
                    let place = &mut destination[(s.at + k) as usize];
                    assert_eq!(*place, None, "a byte is placed twice");
                    *place = Some(byte(piece.file, offset));
                    assert!(plan.parts[piece.parts.clone()].iter().any(|p| p.contains(&(s.at + k))));
                }
            }
        }
        destination
    }

    fn tensors() -> impl Strategy<Value = Vec<Vec<(u64, u64, bool)>>> {
        let len = prop_oneof![3 => 0_u64..40, 3 => 0_u64..3000, 1 => 0_u64..300_000];
        let tensor = (len, prop_oneof![Just(1_u64), Just(2), Just(4), Just(8)], prop::bool::weighted(0.8));
        prop::collection::vec(prop::collection::vec(tensor, 0..12), 1..4)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
        #[test]
        fn every_wanted_byte_lands_once_in_its_place(
            files in tensors(),
            header in 8_u64..5000,
            alignment in prop_oneof![Just(1_u64), Just(512), Just(4096)],
            reads in 1_u64..40,
            spare in 0_u64..3,
            gpu in any::<bool>(),
        ) {
            let read_size = reads * 4096;
            let rule = Cut { read_size, slot_size: read_size * (spare + 1), straight: !gpu, gather: true, whole: false };
            let layout_rule = if gpu {
                LayoutRule { alignment: 256, congruence: 1 }
            } else {
                LayoutRule { alignment: 1, congruence: 4096 }
            };
            let mut wanted = Vec::new();
            let mut shapes = Vec::new();
            for (file, tensors) in files.iter().enumerate() {
                let mut offset = header;
                for &(len, alignment, selected) in tensors {
                    if selected {
                        wanted.push(Wanted { file: file as u32, offset, len, alignment });
                    }
                    offset += len;
                }
                shapes.push(FileShape { len: offset, alignment });
            }
            let layout = lay_out(&wanted, layout_rule);
            let plan = cut(&runs(&wanted, &layout.offsets), &shapes, rule);
            prop_assert_eq!(plan.bytes, wanted.iter().map(|w| w.len).sum::<u64>());
            let destination = carry_out(&plan, &shapes, rule, layout.len);
            for (tensor, &at) in wanted.iter().zip(&layout.offsets) {
                prop_assert_eq!(at % tensor.alignment.max(layout_rule.alignment), 0);
                for k in 0..tensor.len {
                    prop_assert_eq!(destination[(at + k) as usize], Some(byte(tensor.file, tensor.offset + k)));
                }
            }
            prop_assert!(layout.len <= plan.bytes + wanted.len() as u64 * (256 + 4096));
        }
    }

    const DIRECT: Cut =
        Cut { read_size: 1 << 20, slot_size: 1 << 20, straight: true, gather: true, whole: false };

    #[test]
    fn a_well_shaped_file_is_read_straight_but_for_the_sectors_it_shares() {
        let shape = [FileShape { len: 10_000_008, alignment: 512 }];
        let run = [Run { file: 0, offset: 1000, at: 1000, len: 9_999_008 }];
        let plan = cut(&run, &shape, DIRECT);
        let slots: Vec<_> = plan.pieces.iter().filter(|p| p.landing != Landing::Straight).collect();
        assert_eq!(slots.len(), 2, "head and tail");
        assert!(slots.iter().all(|p| p.bytes < 512));
        assert_eq!(plan.bytes, 9_999_008);
    }

    #[test]
    fn no_direct_extent_starts_where_alignment_forbids_even_if_the_head_is_exactly_one_sector() {
        for offset in [511, 512, 513, 4095, 4096, 4097, 65536] {
            let shape = [FileShape { len: offset + 516 * 1024, alignment: 4096 }];
            let run = [Run { file: 0, offset, at: offset % 4096, len: 516 * 1024 }];
            carry_out(&cut(&run, &shape, DIRECT), &shape, DIRECT, 516 * 1024 + 4096);
        }
    }

    #[test]
    fn tiny_tensors_are_gathered_and_large_ones_are_not() {
        let shape = [FileShape { len: 1 << 30, alignment: 512 }];
        let gpu = Cut { straight: false, ..DIRECT };
        let tiny: Vec<_> =
            (0..1000).map(|i| Run { file: 0, offset: 100 + i * 40, at: i * 256, len: 40 }).collect();
        let plan = cut(&tiny, &shape, gpu);
        assert!(plan.pieces.iter().all(|p| p.landing == Landing::Gathered));
        assert_eq!(plan.parts.len(), plan.pieces.len());
        let large: Vec<_> =
            (0..10).map(|i| Run { file: 0, offset: i * 200_001, at: i * 200_192, len: 200_001 }).collect();
        assert!(cut(&large, &shape, gpu).pieces.iter().all(|p| p.landing == Landing::Slot));
        let apart = Cut { gather: false, ..gpu };
        assert!(cut(&tiny, &shape, apart).pieces.iter().all(|p| p.landing == Landing::Slot));
    }

    #[test]
    fn whole_runs_are_cut_only_where_no_extent_holds_them() {
        let shape = [FileShape { len: 1 << 30, alignment: 1 }];
        let lens = [700_000, 600_000, 10, 1 << 20, 3 << 20, 5];
        let (mut offset, mut wanted) = (100, Vec::new());
        for len in lens {
            wanted.push(Wanted { file: 0, offset, len, alignment: 1 });
            offset += len;
        }
        let layout = lay_out(&wanted, LayoutRule { alignment: 1, congruence: 1 });
        assert_eq!(runs(&wanted, &layout.offsets).len(), 1);
        let apart = runs_apart(&wanted, &layout.offsets);
        assert_eq!(apart.len(), lens.len());
        let rule = Cut { straight: false, gather: false, whole: true, ..DIRECT };
        let plan = cut(&apart, &shape, rule);
        assert_eq!(plan.scatter.iter().map(|s| s.len).sum::<u64>(), lens.iter().sum::<u64>());
        assert_eq!(plan.parts.len(), lens.len() + 2, "only the longest takes three");
        carry_out(&plan, &shape, rule, layout.len);
    }

    #[test]
    fn far_apart_tensors_are_not_read_through() {
        let shape = [FileShape { len: 1 << 30, alignment: 4096 }];
        let sparse = [
            Run { file: 0, offset: 100, at: 0, len: 10 },
            Run { file: 0, offset: 500_000, at: 256, len: 10 },
        ];
        let plan = cut(&sparse, &shape, Cut { straight: false, ..DIRECT });
        assert_eq!(plan.pieces.iter().map(|p| p.extent.end - p.extent.start).sum::<u64>(), 8192);
    }
}
