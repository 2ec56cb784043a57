//! Bytes between a file and memory, however they were asked for.
//!
//! They pass through a small buffer of the calling thread's in every mode: what tells the modes apart is what the statistics
//! say. Real GPUDirect Storage writes device memory unordered with every stream, and so does this, in every mode.
//!
//! Descriptors with `O_DIRECT` are read in whole blocks, and written so where offset and size allow; what is left is written
//! through a second, buffered description of the same file.

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::Instant;

use cufile_sys::{
    CU_FILE_CUDA_POINTER_RANGE_ERROR, CU_FILE_HANDLE_NOT_REGISTERED, CU_FILE_INVALID_FILE_OPEN_FLAG,
    CU_FILE_INVALID_MAPPING_RANGE, CU_FILE_INVALID_VALUE,
};

use crate::cuda::{self, Memory, Place};
use crate::error::Errno;
use crate::faults::{Effect, hang};
use crate::ffi::{Address, Handle};
use crate::gate;
use crate::state::{File, Kind, Transferred, state};

/// A multiple of every file system's block for direct I/O.
const BLOCK: usize = 4096;

/// Bytes moved at once.
const PIECE: usize = 1 << 20;

/// One transfer, checked.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    file: File,
    memory: Memory,
    len: usize,
    offset: u64,
    writes: bool,
    bounced: bool,
    unregistered: bool,
    kind: Kind,
}

/// A transfer as the program asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) file: Handle,
    pub(crate) base: Address,
    pub(crate) len: usize,
    pub(crate) file_offset: i64,
    pub(crate) base_offset: i64,
    pub(crate) writes: bool,
    pub(crate) kind: Kind,
    /// Whose memory it is, where that was found out before: on a stream's thread the driver cannot be asked.
    pub(crate) place: Option<Place>,
}

impl Request {
    /// Checks it against what is registered, as NVIDIA's was seen to.
    pub(crate) fn check(self) -> Result<Job, Errno> {
        let Self { file, base, len, file_offset, base_offset, writes, kind, place } = self;
        if file == 0 || base == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let mut state = state();
        let opened = state.open_if_closed()?;
        let file = state.files.get(&file).cloned().ok_or(CU_FILE_HANDLE_NOT_REGISTERED)?;
        if !(if writes { file.writable } else { file.readable }) {
            return Err(CU_FILE_INVALID_FILE_OPEN_FLAG.into());
        }
        let offset = u64::try_from(file_offset).map_err(|_| Errno::from(CU_FILE_INVALID_VALUE))?;
        // NVIDIA's returns -EPERM for ranges that are not in one allocation, which reads as -1 with that number.
        let outside = Errno(libc::EPERM);
        let start = usize::try_from(base_offset).map_err(|_| outside)?;
        let buffer = state.buffers.get(base);
        drop(state);

        let end = start.checked_add(len).ok_or(outside)?;
        let address = base.checked_add(start as u64).ok_or(outside)?;
        let place = match (buffer, place) {
            (Some(buffer), _) if end > buffer.len => return Err(CU_FILE_INVALID_MAPPING_RANGE.into()),
            (Some(buffer), _) => buffer.place,
            (None, Some(Place::Device(_))) if !cuda::is_one_allocation(base, end) => return Err(outside),
            (None, Some(place)) => place,
            (None, None) => cuda::place(base, end).map_err(|failure| match failure.code {
                CU_FILE_CUDA_POINTER_RANGE_ERROR => outside,
                _ => failure.into(),
            })?,
        };
        // Without O_DIRECT only whole blocks go straight.
        let in_blocks = offset.is_multiple_of(BLOCK as u64) && len.is_multiple_of(BLOCK);
        let bounced = opened.bounces || place == Place::Host || (!file.direct && !in_blocks);
        let unregistered = buffer.is_none();
        Ok(Job { file, memory: Memory { place, address }, len, offset, writes, bounced, unregistered, kind })
    }
}

impl Job {
    /// Moves the bytes; how many, up to the file's end. What hits it is heeded here.
    ///
    /// The program promised that its memory is valid until this is done.
    pub(crate) fn run(mut self, effect: Option<Effect>) -> Result<isize, Errno> {
        gate::pass();
        match effect {
            Some(Effect::Hang(duration)) => hang(duration),
            Some(Effect::Posix) => self.bounced = true,
            Some(Effect::AtMost(bytes)) => self.len = self.len.min(bytes),
            // At least one byte: none at all would be the end of the file.
            Some(Effect::Part(part)) => self.len = self.len.div_ceil(part),
            _ => {}
        }
        let began = Instant::now();
        let moved = match effect {
            Some(Effect::Fail(failure)) => Err(failure.into()),
            Some(Effect::Count(count)) => Ok(count),
            _ if self.writes => self.write(),
            _ => self.read(effect == Some(Effect::Corrupt)),
        };
        let bytes = moved.ok().and_then(|count| u64::try_from(count).ok());
        state().statistics.record(&Transferred {
            kind: self.kind,
            writes: self.writes,
            place: self.memory.place,
            bytes,
            bounced: self.bounced,
            unaligned: !self.offset.is_multiple_of(BLOCK as u64) || !self.len.is_multiple_of(BLOCK),
            unregistered: self.unregistered,
            elapsed: began.elapsed(),
        });
        moved
    }

    /// Whose memory it reads or writes.
    pub(crate) fn place(&self) -> Place {
        self.memory.place
    }

    /// Whether the bytes go through the host.
    pub(crate) fn is_bounced(&self) -> bool {
        self.bounced
    }

    fn read(&self, corrupt: bool) -> Result<isize, Errno> {
        let mut buffer = Aligned::new();
        let mut done = 0;
        while done < self.len {
            let offset = self.offset + done as u64;
            let bytes = buffer.fill(&self.file, offset, PIECE.min(self.len - done))?;
            if bytes.is_empty() {
                break;
            }
            if let (true, Some(byte)) = (corrupt && done == 0, bytes.first_mut()) {
                *byte ^= 0x10;
            }
            // SAFETY: by the program's promise; device memory checks itself.
            unsafe { self.memory.write(done, bytes) }?;
            done += bytes.len();
        }
        Ok(done.cast_signed())
    }

    fn write(&self) -> Result<isize, Errno> {
        let in_blocks = self.offset.is_multiple_of(BLOCK as u64) && self.len.is_multiple_of(BLOCK);
        let buffered = if self.file.direct && !in_blocks {
            let path = format!("/proc/self/fd/{}", self.file.fd);
            let file = OpenOptions::new().write(true).open(path);
            Some(file.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?)
        } else {
            None
        };
        let fd = buffered.as_ref().map_or(self.file.fd, |file| file.as_raw_fd());
        let mut buffer = Aligned::new();
        let mut done = 0;
        while done < self.len {
            let bytes = buffer.part(0, PIECE.min(self.len - done));
            // SAFETY: by the program's promise; device memory checks itself.
            unsafe { self.memory.read(done, bytes) }?;
            let mut bytes = &*bytes;
            while !bytes.is_empty() {
                let written = write_at(fd, bytes, self.offset + done as u64)?;
                bytes = bytes.get(written..).unwrap_or_default();
                done += written;
            }
        }
        Ok(done.cast_signed())
    }
}

/// Memory for one piece and the blocks around it, on a block's boundary.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new() -> Self {
        let bytes = vec![0; PIECE + 3 * BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        Self { bytes, start }
    }

    fn part(&mut self, from: usize, len: usize) -> &mut [u8] {
        self.bytes.get_mut(self.start + from..self.start + from + len).unwrap_or_default()
    }

    /// Reads up to `len` bytes of the file, at most a piece; fewer only at its end.
    fn fill(&mut self, file: &File, offset: u64, len: usize) -> Result<&mut [u8], Errno> {
        let before = if file.direct { (offset % BLOCK as u64) as usize } else { 0 };
        let whole = if file.direct { (before + len).next_multiple_of(BLOCK) } else { len };
        let mut filled = 0;
        while filled < before + len {
            let got =
                read_at(file.fd, self.part(filled, whole - filled), offset - before as u64 + filled as u64)?;
            filled += got;
            // Direct reads may only go on from a block's boundary; any other count is that of the end.
            if got == 0 || (file.direct && !got.is_multiple_of(BLOCK)) {
                break;
            }
        }
        let available = filled.saturating_sub(before).min(len);
        Ok(self.part(before, available))
    }
}

fn read_at(fd: RawFd, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
    // SAFETY: the bytes are valid for writing.
    again(|| unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), bytes.len(), offset.cast_signed()) })
}

fn write_at(fd: RawFd, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
    // SAFETY: the bytes are valid for reading.
    again(|| unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), offset.cast_signed()) })
}

/// Repeats what a signal interrupted.
fn again(mut call: impl FnMut() -> isize) -> Result<usize, Errno> {
    loop {
        let count = call();
        match usize::try_from(count) {
            Ok(count) => return Ok(count),
            Err(_) if Errno::last().0 == libc::EINTR => {}
            Err(_) => return Err(Errno::last()),
        }
    }
}
