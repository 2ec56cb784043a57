//! Loads: a legal file on a disk, sizes of any kind, and whichever path gives the bytes that the file has. And plans alone, of files that
//! claim to be larger than any machine.

use std::fs;
use std::path::Path;

use arbitrary::{Result, Unstructured};
use cuda_staging::Device;
use gds_loader::format::Header;
use gds_loader::plan::{Cut, FileShape, Landing, LayoutRule, Plan, Wanted, cut, lay_out, runs};
use gds_loader::{Backend, Destination, Engine, ErrorKind, Loader, PathKind};

use crate::model::Model;
use crate::scratch;

/// Every way into host memory.
const WAYS: [(Backend, Engine); 6] = [
    (Backend::Auto, Engine::Auto),
    (Backend::Only(PathKind::Buffered), Engine::Auto),
    (Backend::Only(PathKind::Mmap), Engine::Auto),
    (Backend::Only(PathKind::Direct), Engine::IoUring),
    (Backend::Only(PathKind::Direct), Engine::Threads),
    (Backend::Prefetch, Engine::Auto),
];

/// An input that is too short for a case is none.
pub fn run(data: &[u8]) {
    let u = &mut Unstructured::new(data);
    let _short = if u.ratio(1, 4).unwrap_or_default() { claimed(u) } else { loaded(u) };
}

/// Whose memory a load fills.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    Ours,
    Callers,
}

/// What a load is told.
#[derive(Debug)]
struct Sizes {
    threads: usize,
    depth: usize,
    slots: usize,
    slot_size: u64,
    read_size: u64,
    alignment: u64,
}

impl Sizes {
    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        let bytes = |u: &mut Unstructured<'_>| {
            Ok(match u.int_in_range(0..=15)? {
                0 => u.arbitrary()?,
                1 => u.int_in_range(0..=20_000)?,
                _ => 4096 * u.int_in_range(1..=40)?,
            })
        };
        Ok(Self {
            threads: u.int_in_range(0..=6)?,
            depth: u.int_in_range(0..=5)?,
            slots: u.int_in_range(0..=9)?,
            read_size: bytes(u)?,
            slot_size: bytes(u)?,
            alignment: 1 << u.int_in_range(0..=13)?,
        })
    }

    /// Whether they can be meant by a load into `memory`.
    fn fit_together(&self, memory: Memory) -> bool {
        // The caller's memory is where it is.
        let aligned = memory == Memory::Callers || self.alignment <= 4096;
        let reads = self.read_size > 0
            && self.read_size.is_multiple_of(4096)
            && u32::try_from(self.read_size).is_ok();
        aligned
            && reads
            && self.slot_size >= self.read_size
            && self.threads > 0
            && self.depth > 0
            && self.slots > 0
    }

    fn loader(&self, (backend, engine): (Backend, Engine)) -> Loader {
        Loader::new()
            .device(Device::cpu())
            .backend(backend)
            .engine(engine)
            .threads(self.threads)
            .depth(self.depth)
            .slots(self.slots)
            .slot_size(self.slot_size)
            .read_size(self.read_size)
            .alignment(self.alignment)
    }
}

/// A file, loaded in one of the ways.
fn loaded(u: &mut Unstructured<'_>) -> Result<()> {
    let way = *u.choose(&WAYS)?;
    let sizes = Sizes::arbitrary(u)?;
    let model = Model::arbitrary(u)?;
    let path = scratch::on_disk().join("model.safetensors");
    fs::write(&path, model.bytes()).unwrap();
    // What is on the disk is the oracle, not what was meant to be there.
    let bytes = fs::read(&path).unwrap();
    let text = &bytes[8..][..u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize];
    let header = Header::parse(text, bytes.len() as u64).unwrap();
    into_our_memory(&sizes, way, &path, &header, &bytes);
    into_the_callers_memory(&sizes, way, &path, &header, &bytes);
    Ok(())
}

fn into_our_memory(sizes: &Sizes, way: (Backend, Engine), path: &Path, header: &Header, bytes: &[u8]) {
    let model = match sizes.loader(way).load(path) {
        Ok(model) => model,
        Err(error) => return refused(sizes, Memory::Ours, way, &error),
    };
    assert!(sizes.fit_together(Memory::Ours), "{sizes:?}");
    assert_eq!(model.len(), header.tensors.len());
    for entry in &header.tensors {
        let tensor = model.get(&entry.name).unwrap();
        assert!(
            tensor.is_empty()
                || tensor.device_address().is_multiple_of(sizes.alignment.max(entry.dtype.alignment()))
        );
        assert_eq!(
            tensor.host_bytes().unwrap(),
            &bytes[entry.offset as usize..][..entry.len as usize],
            "{way:?}"
        );
    }
}

fn into_the_callers_memory(
    sizes: &Sizes,
    way: (Backend, Engine),
    path: &Path,
    header: &Header,
    bytes: &[u8],
) {
    // A byte more on either side, which must stay as it is.
    const GUARD: u8 = 0xa5;
    let mut memory: Vec<Vec<u8>> =
        header.tensors.iter().map(|entry| vec![GUARD; entry.len as usize + 2]).collect();
    let destinations = header.tensors.iter().zip(&mut memory).map(|(entry, memory)| {
        let len = entry.len as usize;
        Destination::host(&*entry.name, &mut memory[1..=len]).unwrap()
    });
    let destinations = destinations.collect();
    if let Err(error) = sizes.loader(way).load_into(path, destinations) {
        return refused(sizes, Memory::Callers, way, &error);
    }
    assert!(sizes.fit_together(Memory::Callers), "{sizes:?}");
    for (entry, memory) in header.tensors.iter().zip(&memory) {
        let len = entry.len as usize;
        assert_eq!(&memory[1..=len], &bytes[entry.offset as usize..][..len], "{way:?}");
        assert_eq!((memory[0], memory[len + 1]), (GUARD, GUARD));
    }
}

/// A load of a legal file fails for the sizes, or because a path is not to be had here.
fn refused(sizes: &Sizes, memory: Memory, (backend, engine): (Backend, Engine), error: &gds_loader::Error) {
    match error.kind() {
        ErrorKind::Usage => assert!(!sizes.fit_together(memory), "{sizes:?}: {error}"),
        ErrorKind::Unavailable => {
            assert_eq!(backend, Backend::Only(PathKind::Direct), "{error}");
            static SAID: std::sync::Once = std::sync::Once::new();
            SAID.call_once(|| eprintln!("could not run: {backend} by {engine:?}: {error}"));
        }
        _ => panic!("{backend:?}, {engine:?}, {sizes:?}: {error}"),
    }
}

/// Files as headers may claim them, planned and not read.
fn claimed(u: &mut Unstructured<'_>) -> Result<()> {
    let mut wanted = Vec::new();
    let mut shapes = Vec::new();
    let huge = u.arbitrary()?;
    for file in 0..u.int_in_range(1..=4)? {
        let mut end: u64 = u.int_in_range(8..=9000)?;
        for _ in 0..u.int_in_range(0..=12)? {
            let len: u64 = match u.int_in_range(0..=9)? {
                0 => 0,
                1 if huge => u.arbitrary::<u64>()? >> 1,
                1 | 2 => u.int_in_range(0..=1 << 20)?,
                _ => u.int_in_range(0..=9000)?,
            };
            // No file is longer than a signed offset.
            let Some(next) = end.checked_add(len).filter(|&end| i64::try_from(end).is_ok()) else { break };
            if u.ratio(7, 8)? {
                wanted.push(Wanted { file, offset: end, len, alignment: 1 << u.int_in_range(0..=3)? });
            }
            end = next;
        }
        shapes.push(FileShape { len: end, alignment: *u.choose(&[1, 512, 4096])? });
    }
    let congruence = *u.choose(&[1, 4096, 65536])?;
    let rule = LayoutRule { alignment: 1 << u.int_in_range(0..=12)?, congruence };
    let layout = lay_out(&wanted, rule);
    assert_eq!(layout.offsets.len(), wanted.len());
    if layout.len == u64::MAX {
        // More than can be addressed; a load asks for the memory before anything else, and gets none.
        return Ok(());
    }
    let mut previous = 0;
    for (tensor, &at) in wanted.iter().zip(&layout.offsets) {
        assert!(at >= previous && at.is_multiple_of(tensor.alignment.max(rule.alignment)));
        previous = at.checked_add(tensor.len).unwrap();
    }
    assert_eq!(layout.len, previous);
    if layout.len > 64 << 20 {
        // As many pieces as that are more than memory holds, and no load gets so far.
        return Ok(());
    }
    let read_size = 4096 * u.int_in_range(1..=40)?;
    let slot_size = read_size + u.int_in_range(0..=100_000)?;
    let rule =
        Cut { read_size, slot_size, straight: u.arbitrary()?, gather: u.arbitrary()?, whole: u.arbitrary()? };
    let plan = cut(&runs(&wanted, &layout.offsets), &shapes, rule);
    judge(&plan, &wanted, &layout.offsets, &shapes, rule);
    Ok(())
}

/// Every wanted byte is read once, within what its file and a slot hold, and lands where its tensor is.
fn judge(plan: &Plan, wanted: &[Wanted], offsets: &[u64], shapes: &[FileShape], rule: Cut) {
    assert_eq!(plan.bytes, wanted.iter().map(|tensor| tensor.len).sum::<u64>());
    assert!(plan.slot_bytes() <= rule.slot_size);
    let mut placed: Vec<(u64, u64)> = Vec::new();
    for piece in &plan.pieces {
        let shape = shapes[piece.file as usize];
        let (extent, bytes) =
            (&piece.extent, plan.scatter_of(piece).iter().map(|stretch| stretch.len).sum::<u64>());
        assert!(extent.start.is_multiple_of(shape.alignment) && extent.end.is_multiple_of(shape.alignment));
        assert!(extent.end - extent.start <= rule.read_size && piece.bytes == bytes && bytes > 0);
        for stretch in plan.scatter_of(piece) {
            let from = extent.start + stretch.offset;
            assert!(stretch.len > 0 && from + stretch.len <= extent.end.min(shape.len));
            let mut rest = from..from + stretch.len;
            let mut at = stretch.at;
            let holders = wanted.iter().zip(offsets).filter(|(tensor, _)| tensor.file == piece.file);
            for (tensor, &offset) in holders {
                let holds = tensor.offset <= rest.start && rest.start < tensor.offset + tensor.len;
                if holds && !rest.is_empty() {
                    assert_eq!(at - offset, rest.start - tensor.offset, "a byte in another place");
                    let end = rest.end.min(tensor.offset + tensor.len);
                    at += end - rest.start;
                    rest.start = end;
                }
            }
            assert!(rest.is_empty(), "bytes that nobody wants");
            placed.push((stretch.at, stretch.at + stretch.len));
            if piece.landing == Landing::Straight {
                assert_eq!(stretch.at % shape.alignment, from % shape.alignment);
            }
        }
    }
    placed.sort_unstable();
    assert!(placed.windows(2).all(|pair| pair[0].1 <= pair[1].0), "a byte twice");
    let mut parts: Vec<_> = plan.parts.iter().map(|part| (part.start, part.end)).collect();
    parts.sort_unstable();
    assert!(parts.windows(2).all(|pair| pair[0].1 <= pair[1].0), "two pieces write the same place");
}
