//! One read at a time by each thread.

use std::time::Instant;

use super::blocks::Blocks;
use super::sink::Sink;
use super::{Done, Opened, RawOptions, Reader, rest};
use crate::error::{Error, Result};
use crate::transport::PathKind;

/// One of the threads.
pub(super) struct Thread<'a> {
    files: &'a [Opened],
    by: PathKind,
    sink: Sink,
}

impl<'a> Thread<'a> {
    pub(super) fn reader(files: &'a [Opened], options: &RawOptions) -> Result<Box<dyn Reader + 'a>> {
        let sink = Sink::new(&options.device, 1, options.block_size as usize)?;
        Ok(Box::new(Self { files, by: options.path, sink }))
    }
}

impl Reader for Thread<'_> {
    fn run(&mut self, blocks: &Blocks) -> Result<Done> {
        let mut done = Done::new()?;
        while let Some(block) = blocks.deal() {
            let slot = self.sink.take()?;
            let start = Instant::now();
            let file = &self.files[block.file];
            let filled = slot.fill(|into| {
                rest(file, self.by, into, block, 0)?;
                Ok::<usize, Error>(block.len as usize)
            });
            match filled {
                Ok(filled) => {
                    done.read(block.len, start.elapsed());
                    self.sink.accept(filled, block.len)?;
                }
                Err((slot, error)) => {
                    self.sink.put_back(slot);
                    return Err(error);
                }
            }
        }
        self.sink.finish()?;
        done.end = Instant::now();
        Ok(done)
    }

    fn pinned_bytes(&self) -> u64 {
        self.sink.pinned_bytes()
    }
}
