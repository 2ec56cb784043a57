//! Where each tensor lands: offsets in the destination, and the runs that follow from them.

use super::{Wanted, align_up};

/// How tensors are placed in a destination of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutRule {
    /// Alignment every tensor gets at least, in bytes: a power of two. 256 on a GPU (what its vector loads and
    /// libraries expect), 1 on the CPU, where a tensor's own alignment is enough.
    pub alignment: u64,
    /// Bytes modulo which a long well-aligned stretch keeps its file offset, so that direct I/O can read it
    /// straight into place: a power of two, 1 for "does not matter". Must be at least every alignment in use.
    pub congruence: u64,
}

/// The place of each wanted tensor in the destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Offset of each tensor in the destination, in the order of the wanted list.
    pub offsets: Vec<u64>,
    /// Length of the destination in bytes.
    pub len: u64,
}

/// A maximal stretch of wanted file bytes whose distance to the destination is constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index of the file.
    pub file: u32,
    /// First byte in the file.
    pub offset: u64,
    /// Its place in the destination.
    pub at: u64,
    /// Length in bytes, never 0.
    pub len: u64,
}

impl Run {
    /// The byte after its last one in the file.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// A stretch shorter than this many times the congruence is packed instead: the padding would cost more than a copy.
const STRETCHES_WORTH_CONGRUENCE: u64 = 16;

/// Places every tensor of `wanted`, which is in (file, offset) order.
///
/// Neighbours in a file stay neighbours where their alignment allows, so that a file of well-shaped tensors is one run.
///
/// Sparse files can claim more than 64 bits address together: then the length is `u64::MAX`, which no memory has.
pub fn lay_out(wanted: &[Wanted], rule: LayoutRule) -> Layout {
    let stretches = aligned_stretches(wanted, rule);
    let mut offsets = Vec::with_capacity(wanted.len());
    let mut end = 0;
    let mut previous: Option<&Wanted> = None;
    for (tensor, stretch) in wanted.iter().zip(stretches) {
        let alignment = tensor.alignment.max(rule.alignment);
        let follows = previous.is_some_and(|p| p.file == tensor.file && p.offset + p.len == tensor.offset);
        let offset = if follows && end % alignment == 0 {
            end
        } else if stretch >= rule.congruence.saturating_mul(STRETCHES_WORTH_CONGRUENCE) {
            congruent_from(end, tensor.offset, rule.congruence)
        } else {
            align_up(end, alignment)
        };
        offsets.push(offset);
        end = offset.saturating_add(tensor.len);
        previous = Some(tensor);
    }
    Layout { offsets, len: end }
}

/// For each tensor, the bytes from its start to where a run that kept its file offset's remainder would have to end.
fn aligned_stretches(wanted: &[Wanted], rule: LayoutRule) -> Vec<u64> {
    let mut stretches = vec![0; wanted.len()];
    if rule.congruence <= 1 {
        return stretches;
    }
    for index in (0..wanted.len()).rev() {
        let tensor = &wanted[index];
        let alignment = tensor.alignment.max(rule.alignment);
        if alignment > rule.congruence || !tensor.offset.is_multiple_of(alignment) {
            continue;
        }
        let next = wanted.get(index + 1);
        let follows = next.is_some_and(|n| n.file == tensor.file && tensor.offset + tensor.len == n.offset);
        stretches[index] = tensor.len + if follows { stretches[index + 1] } else { 0 };
    }
    stretches
}

/// The first offset from `end` on that leaves the same remainder as `offset` modulo `modulus`.
fn congruent_from(end: u64, offset: u64, modulus: u64) -> u64 {
    end.saturating_add(offset.wrapping_sub(end) & (modulus - 1))
}

/// The runs of `wanted` placed at `offsets`: neighbours with the same distance become one.
pub fn runs(wanted: &[Wanted], offsets: &[u64]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (tensor, &at) in wanted.iter().zip(offsets) {
        if tensor.len == 0 {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.file == tensor.file && run.end() == tensor.offset && run.at + run.len == at => {
                run.len += tensor.len;
            }
            _ => runs.push(Run { file: tensor.file, offset: tensor.offset, at, len: tensor.len }),
        }
    }
    runs
}

/// The same with a run for each tensor: what moving them one by one takes.
pub fn runs_apart(wanted: &[Wanted], offsets: &[u64]) -> Vec<Run> {
    let run = |(tensor, &at): (&Wanted, &u64)| Run {
        file: tensor.file,
        offset: tensor.offset,
        at,
        len: tensor.len,
    };
    wanted.iter().zip(offsets).map(run).filter(|run| run.len > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: LayoutRule = LayoutRule { alignment: 1, congruence: 4096 };
    const GPU: LayoutRule = LayoutRule { alignment: 256, congruence: 1 };

    fn tensor(offset: u64, len: u64, alignment: u64) -> Wanted {
        Wanted { file: 0, offset, len, alignment }
    }

    #[test]
    fn a_well_shaped_file_is_one_run_on_either_device() {
        let wanted: Vec<_> = (0..10).map(|i| tensor(1000 + i * 65536, 65536, 2)).collect();
        for rule in [CPU, GPU] {
            let layout = lay_out(&wanted, rule);
            assert_eq!(runs(&wanted, &layout.offsets).len(), 1, "{rule:?}");
        }
        assert_eq!(lay_out(&wanted, CPU).offsets[0] % 4096, 1000);
        assert_eq!(lay_out(&wanted, GPU).offsets[0], 0);
    }

    #[test]
    fn an_odd_tensor_starts_a_new_run_and_later_ones_are_aligned() {
        let wanted = [tensor(104, 3, 1), tensor(107, 8, 4), tensor(115, 8, 8)];
        let layout = lay_out(&wanted, GPU);
        assert_eq!(layout.offsets, [0, 256, 512]);
        assert_eq!(runs(&wanted, &layout.offsets).len(), 3);
        let layout = lay_out(&wanted, CPU);
        assert_eq!(layout.offsets, [0, 4, 16]);
    }

    #[test]
    fn empty_tensors_get_a_place_and_no_run() {
        let wanted = [tensor(8, 0, 4), tensor(8, 4, 4), tensor(12, 0, 8)];
        let layout = lay_out(&wanted, GPU);
        assert_eq!(
            runs(&wanted, &layout.offsets),
            [Run { file: 0, offset: 8, at: layout.offsets[1], len: 4 }]
        );
    }

    #[test]
    fn claims_beyond_64_bits_do_not_wrap_round_to_a_small_destination() {
        let most = i64::MAX as u64 - 1000;
        let wanted: Vec<_> =
            (0..3).map(|file| Wanted { file, offset: 1000, len: most, alignment: 2 }).collect();
        for rule in [CPU, GPU] {
            assert_eq!(lay_out(&wanted, rule).len, u64::MAX, "{rule:?}");
        }
    }

    #[test]
    fn tensors_not_wanted_leave_no_hole_in_the_destination() {
        let wanted = [tensor(4096, 100, 4), tensor(1 << 30, 100, 4)];
        assert!(lay_out(&wanted, CPU).len < 1 << 16);
    }
}
