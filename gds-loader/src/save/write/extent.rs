//! Files cut into extents: what is written in one go, and where its bytes are.
//!
//! An extent owns its sources, or borrows them for the length of the save; once it has been written, or copied to where it is
//! written from, they are let go. What counts as "staged" follows from that: a save needs the tensors' memory no longer when no extent
//! has a source.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::mpsc::{self, Receiver, Sender};

use cuda_staging::Region;

use crate::plan::align_down;

/// Bytes of a tensor or a header.
#[derive(Clone, Debug)]
pub(crate) enum Bytes<'a> {
    /// Of a device, or owned bytes of the host.
    Region(Region),
    /// Of the host.
    Host(&'a [u8]),
}

impl Bytes<'_> {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Region(region) => region.len(),
            Self::Host(bytes) => bytes.len() as u64,
        }
    }

    /// The bytes, where they are in host memory.
    pub(crate) fn host(&self) -> Option<&[u8]> {
        match self {
            Self::Region(region) => region.host_bytes(),
            Self::Host(bytes) => Some(bytes),
        }
    }

    fn slice(&self, range: Range<u64>) -> cuda_staging::Result<Self> {
        Ok(match self {
            Self::Region(region) => Self::Region(region.slice(range)?),
            Self::Host(bytes) => {
                let inside = bytes.get(range.start as usize..range.end as usize);
                // Nothing of it, where it is not inside: no caller asks for that.
                Self::Host(inside.unwrap_or_default())
            }
        })
    }
}

/// A file before it is cut: its bytes in order, without holes.
#[derive(Debug)]
pub(crate) struct Image<'a> {
    /// The header with its padding.
    pub(crate) header: Region,
    /// The tensors' bytes, back to back after the header.
    pub(crate) tensors: Vec<Bytes<'a>>,
}

/// Part of an extent.
#[derive(Debug)]
pub(super) struct Piece<'a> {
    /// Where it begins in the extent, in bytes.
    pub(super) at: usize,
    pub(super) bytes: Bytes<'a>,
}

/// The sources of an extent, until they are needed no longer.
#[derive(Debug)]
pub(super) struct Sources<'a> {
    pub(super) pieces: Vec<Piece<'a>>,
    /// After the pieces: who waits for every one of these to be gone finds the pieces gone.
    _hold: Hold,
}

/// Held by what still needs the tensors' memory.
pub(crate) type Hold = Sender<Infallible>;

/// What needs the tensors' memory, and its hold, which outlives it.
#[derive(Debug)]
pub(crate) struct Held<T> {
    // In this order: who finds every hold gone finds the memory free.
    value: T,
    hold: Hold,
}

impl<T> Held<T> {
    /// The value under a first hold, and who waits for the last.
    pub(crate) fn new(value: T) -> (Self, Staged) {
        let (hold, staged) = mpsc::channel();
        (Self { value, hold }, staged)
    }

    /// The value under a hold that nobody waits for.
    pub(crate) fn anew(self) -> Self {
        Self::new(self.value).0
    }

    pub(crate) fn get(&self) -> &T {
        &self.value
    }

    /// Another value under the same hold.
    pub(crate) fn try_map<U, E>(self, map: impl FnOnce(T) -> Result<U, E>) -> Result<Held<U>, E> {
        let Self { value, hold } = self;
        // Where it fails, the value is gone before the hold is.
        Ok(Held { value: map(value)?, hold })
    }
}

/// Ends when no hold is left: nothing needs the tensors' memory any longer.
pub(crate) type Staged = Receiver<Infallible>;

/// Where an extent is in its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Position of the file.
    pub(super) file: usize,
    /// In bytes from the start of the file, a multiple of a page.
    pub(super) offset: u64,
    /// In bytes; a multiple of a page, but at the file's end.
    pub(super) len: usize,
    /// Bytes of it that are tensors', not a header's.
    pub(super) payload: u64,
}

/// What is written in one go.
#[derive(Debug)]
pub(super) struct Extent<'a> {
    pub(super) place: Place,
    pub(super) sources: Sources<'a>,
}

impl Extent<'_> {
    /// Its bytes, where they are in one piece of host memory.
    pub(super) fn in_place(&self) -> Option<&[u8]> {
        match self.sources.pieces.as_slice() {
            [piece] => piece.bytes.host(),
            _ => None,
        }
    }

    /// Whether all of it is memory of a device.
    pub(super) fn is_device(&self) -> bool {
        self.sources.pieces.iter().all(|piece| piece.bytes.host().is_none())
    }
}

/// What offsets of extents are multiples of, in bytes.
pub(crate) const PAGE: u64 = 4096;

/// Cuts files into extents of at most `most` bytes, a multiple of [`PAGE`], in the order of their bytes. A header shares an
/// extent with tensors only where it ends within a page.
///
/// # Errors
/// None for images whose tensors are what they say.
pub(super) fn cut(images: Held<Vec<Image<'_>>>, most: u64) -> cuda_staging::Result<Vec<Extent<'_>>> {
    let Held { value: images, hold } = images;
    cut_all(images, most, &hold)
}

fn cut_all<'a>(images: Vec<Image<'a>>, most: u64, hold: &Hold) -> cuda_staging::Result<Vec<Extent<'a>>> {
    let mut extents = Vec::new();
    for (file, Image { header, tensors }) in images.into_iter().enumerate() {
        let data = header.len();
        let border = align_down(data, PAGE);
        let mut open: Option<Extent<'a>> = None;
        let mut at = 0;
        for source in std::iter::once(Bytes::Region(header)).chain(tensors) {
            let mut done = 0;
            while done < source.len() {
                let extent = open.get_or_insert_with(|| Extent {
                    place: Place { file, offset: at, len: 0, payload: 0 },
                    sources: Sources { pieces: Vec::new(), _hold: hold.clone() },
                });
                let Extent { place, sources } = extent;
                let limit = if place.offset < border { border } else { u64::MAX };
                let end = place.offset.saturating_add(most).min(limit);
                let count = (source.len() - done).min(end - at);
                let bytes = source.slice(done..done + count)?;
                sources.pieces.push(Piece { at: place.len, bytes });
                place.len += count as usize;
                place.payload += if at < data { 0 } else { count };
                done += count;
                at += count;
                if at == end {
                    extents.extend(open.take());
                }
            }
        }
        extents.extend(open);
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use cuda_staging::RegionMut;
    use proptest::prelude::*;

    use super::*;

    fn region(len: usize, seed: usize) -> Region {
        RegionMut::from_vec((0..len).map(|at| (at * 7 + at / 251 + seed * 31) as u8).collect()).freeze()
    }

    proptest! {
        #[test]
        fn extents_are_the_file_in_order(
            header in prop_oneof![Just(4096_usize), Just(8192), 8_usize..20_000],
            lens in prop::collection::vec(prop_oneof![1_usize..100, 3_000_usize..30_000], 0..8),
            pages in 1_u64..5,
        ) {
            let header = region(header, 99);
            let sources: Vec<Region> = lens.iter().enumerate().map(|(seed, &len)| region(len, seed)).collect();
            let file: Vec<u8> =
                std::iter::once(&header).chain(&sources).flat_map(|region| region.host_bytes().unwrap()).copied().collect();
            let data = header.len();
            let tensors = sources
                .iter()
                .enumerate()
                .map(|(k, source)| if k % 2 == 0 { Bytes::Region(source.clone()) } else { Bytes::Host(source.host_bytes().unwrap()) })
                .collect();
            let (images, staged) = Held::new(vec![Image { header, tensors }]);
            let extents = cut(images, pages * PAGE).unwrap();
            let mut end = 0;
            for extent in &extents {
                prop_assert_eq!((extent.place.file, extent.place.offset), (0, end));
                prop_assert_eq!(extent.place.offset % PAGE, 0);
                prop_assert!(extent.place.len as u64 <= pages * PAGE && extent.place.len > 0);
                let mut at = 0;
                for piece in &extent.sources.pieces {
                    prop_assert_eq!(piece.at, at);
                    let bytes = piece.bytes.host().unwrap();
                    prop_assert!(bytes == &file[extent.place.offset as usize + at..][..bytes.len()]);
                    at += bytes.len();
                }
                prop_assert_eq!(at, extent.place.len);
                end += at as u64;
                if data.is_multiple_of(PAGE) {
                    prop_assert!(extent.place.payload == 0 || extent.place.payload == extent.place.len as u64);
                }
            }
            prop_assert_eq!(end, file.len() as u64);
            prop_assert_eq!(extents.iter().map(|extent| extent.place.payload).sum::<u64>(), end - data);
            prop_assert!(matches!(staged.try_recv(), Err(mpsc::TryRecvError::Empty)) || extents.is_empty());
            drop(extents);
            prop_assert!(matches!(staged.try_recv(), Err(mpsc::TryRecvError::Disconnected)));
        }
    }
}
