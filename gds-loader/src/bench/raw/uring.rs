//! Many reads at a time by each thread, kept in flight by the kernel's io_uring.
//!
//! Its own few lines rather than the loader's engine: a limit that is measured by the code it is to judge is none.

use std::io;
use std::os::fd::AsRawFd as _;
use std::time::Instant;

use cuda_staging::ReadingSlot;
use io_uring::{IoUring, opcode, types};

use super::blocks::{Block, Blocks};
use super::sink::Sink;
use super::{Done, Opened, RawOptions, Reader, rest};
use crate::error::{Error, Result};
use crate::transport::PathKind;

/// Whether the kernel lets us make one: containers and sandboxes often do not.
pub(super) fn probe() -> io::Result<()> {
    IoUring::new(1).map(|_| ())
}

/// One thread's queue.
pub(super) struct Uring<'a> {
    files: &'a [Opened],
    by: PathKind,
    queue: IoUring,
    /// Reads the kernel has. Before the sink, whose slots they are; a slot dropped here in flight is leaked, not freed.
    flying: Vec<Option<Flight>>,
    sink: Sink,
    block_size: u64,
}

struct Flight {
    slot: ReadingSlot,
    block: Block,
    start: Instant,
}

impl<'a> Uring<'a> {
    pub(super) fn reader(
        files: &'a [Opened],
        options: &RawOptions,
        depth: usize,
    ) -> Result<Box<dyn Reader + 'a>> {
        let queue = IoUring::new(depth as u32).map_err(|error| refused(&error))?;
        let sink = Sink::new(&options.device, depth, options.block_size as usize)?;
        let flying = (0..depth).map(|_| None).collect();
        Ok(Box::new(Self { files, by: options.path, queue, flying, sink, block_size: options.block_size }))
    }

    /// Gives the kernel a read of `block` in the free place `place`.
    fn submit(&mut self, place: usize, block: Block) -> Result<()> {
        let file = &self.files[block.file];
        let mut slot = self.sink.take()?.begin_read();
        // All of a block, at the end of a file too: a direct read must ask for whole sectors.
        let len = (self.block_size as usize).min(slot.capacity()) as u32;
        let read = opcode::Read::new(types::Fd(file.file.as_raw_fd()), slot.as_mut_ptr(), len)
            .offset(block.offset)
            .build()
            .user_data(place as u64);
        // SAFETY: the slot's memory holds `len` bytes and stays until the kernel is done with it: the slot is kept in `flying`
        // until its completion is seen, and leaks its memory where it is dropped before. The file lives longer than the queue.
        unsafe { self.queue.submission().push(&read) }
            .map_err(|_| Error::Worker { reason: "io_uring's queue is full".into() })?;
        self.flying[place] = Some(Flight { slot, block, start: Instant::now() });
        Ok(())
    }

    /// Takes all that has ended, and gives the free places back. The first failure is told after that: what is taken from the queue is
    /// in it no more, so that nobody could wait for it later.
    fn complete(&mut self, done: &mut Done, free: &mut Vec<usize>) -> Result<()> {
        let ended: Vec<(u64, i32)> =
            self.queue.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        let now = Instant::now();
        let mut outcome = Ok(());
        for (place, result) in ended {
            let place = place as usize;
            let landed = match self.flying.get_mut(place).and_then(Option::take) {
                Some(flight) => {
                    free.push(place);
                    self.land(flight, result, now, done)
                }
                None => Err(Error::Worker { reason: "io_uring ended a read that nobody asked for".into() }),
            };
            outcome = outcome.and(landed);
        }
        outcome
    }

    /// A read has ended with `result`.
    fn land(&mut self, flight: Flight, result: i32, now: Instant, done: &mut Done) -> Result<()> {
        let Flight { slot, block, start } = flight;
        let file = &self.files[block.file];
        let got = match result {
            0.. => result as u64,
            // Asked again below, where the kernel's word is final.
            _ if [libc::EINTR, libc::EAGAIN].contains(&-result) => 0,
            _ => {
                // SAFETY: the read has ended.
                self.sink.put_back(unsafe { slot.complete(0) }.release());
                let cause = io::Error::from_raw_os_error(-result).into();
                return Err(file.failed(self.by, block.offset, block.len, Some(cause)));
            }
        };
        // SAFETY: the read has ended; it wrote no more than `got` bytes, and what it did not write was initialised before.
        let mut filled = unsafe { slot.complete(got.min(block.len) as usize) };
        if got < block.len {
            rest(file, self.by, filled.bytes_mut(), block, got)?;
        }
        let time = if got < block.len { start.elapsed() } else { now - start };
        done.read(block.len, time);
        self.sink.accept(filled, block.len)
    }

    /// Waits for everything the kernel still has, so that no slot need be leaked.
    fn settle(&mut self) {
        while self.flying.iter().any(Option::is_some) {
            if self.queue.submit_and_wait(1).is_err() {
                return;
            }
            let ended: Vec<u64> = self.queue.completion().map(|entry| entry.user_data()).collect();
            for place in ended {
                if let Some(flight) = self.flying.get_mut(place as usize).and_then(Option::take) {
                    // SAFETY: the read has ended.
                    self.sink.put_back(unsafe { flight.slot.complete(0) }.release());
                }
            }
        }
    }

    fn read_all(&mut self, blocks: &Blocks) -> Result<Done> {
        let mut done = Done::new()?;
        let mut free: Vec<usize> = (0..self.flying.len()).collect();
        let mut more = true;
        loop {
            while more && let Some(place) = free.pop() {
                match blocks.deal() {
                    Some(block) => self.submit(place, block)?,
                    None => {
                        free.push(place);
                        more = false;
                    }
                }
            }
            if free.len() == self.flying.len() {
                break;
            }
            match self.queue.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(refused(&error)),
            }
            self.complete(&mut done, &mut free)?;
        }
        self.sink.finish()?;
        done.end = Instant::now();
        Ok(done)
    }
}

impl Reader for Uring<'_> {
    fn run(&mut self, blocks: &Blocks) -> Result<Done> {
        let done = self.read_all(blocks);
        self.settle();
        done
    }

    fn pinned_bytes(&self) -> u64 {
        self.sink.pinned_bytes()
    }
}

fn refused(error: &io::Error) -> Error {
    Error::Worker { reason: format!("io_uring: {error}") }
}
