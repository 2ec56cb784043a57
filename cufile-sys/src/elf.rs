//! Whether a file holds all that the dynamic linker would map of it.
//!
//! The linker believes the file's own table of segments. A file cut short, as by a download or an installation that did not end, has
//! pages that nothing is behind, and touching one ends the process by a signal (SIGBUS) within `dlopen`.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Length of the header of a 64-bit file, in bytes.
const HEADER: usize = 64;
/// How such a file of this machine's byte order begins: magic, 64 bits, the order.
const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, if cfg!(target_endian = "little") { 1 } else { 2 }];
/// Length of an entry in the table of segments, in bytes.
const ENTRY: usize = 56;
/// The type of a segment that is mapped.
const PT_LOAD: u32 = 1;

/// Why the library at `path` must not be opened. `None` for one that is whole, and for what is none: of that the linker says why.
pub(crate) fn cut_short(path: &Path) -> Option<String> {
    let metadata = path.metadata().ok().filter(|metadata| metadata.is_file())?;
    let needed = mapped(&File::open(path).ok()?)?;
    let len = metadata.len();
    (len < needed).then(|| format!("is cut short: it has {len} bytes of {needed}; install it again"))
}

/// How long the file must be for its segments, in bytes.
fn mapped(file: &File) -> Option<u64> {
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0).ok()?;
    let offset = u64::from_ne_bytes(field(&header, 32)?);
    let [size, count] = [54, 56].map(|at| field(&header, at).map(u16::from_ne_bytes));
    if !header.starts_with(&MAGIC) || usize::from(size?) != ENTRY {
        return None;
    }
    let mut table = vec![0; ENTRY * usize::from(count?)];
    file.read_exact_at(&mut table, offset).ok()?;
    let end = |entry: &[u8]| {
        let is_mapped = u32::from_ne_bytes(field(entry, 0)?) == PT_LOAD;
        let [offset, len] = [8, 32].map(|at| field(entry, at).map(u64::from_ne_bytes));
        is_mapped.then_some(offset?.saturating_add(len?))
    };
    table.chunks_exact(ENTRY).filter_map(end).max()
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}
