//! Lesson 6: many reads with one call.
//!
//!     cargo run --release --example 06_batch -- [FILE]
//!
//! Needs a CUDA device and libcufile, as lesson 5 does.

mod support;

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use cuda_staging::Device;
use gds_loader::cufile::{Batch, CuFile, Driver, Mode, Operation, RegisteredBuffer};

const PIECE: u64 = 256 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let driver = Driver::open(Mode::Direct).or_else(|_| Driver::open(Mode::Compat))?;
    let file = CuFile::open(&driver, support::model()?)?;
    let pieces = file.file().metadata()?.len() / PIECE;

    // 1. One registration, split into a part for each operation in flight.
    let memory = Device::cuda(0)?.allocate(8 * PIECE, 4096)?;
    let mut rest = RegisteredBuffer::register(&driver, memory).map_err(|(_, error)| error)?;
    let mut free = Vec::new();
    while !rest.is_empty() {
        let (part, after) = rest.split_at(PIECE)?;
        free.push(part);
        rest = after;
    }

    // 2. An operation owns its file and its part until it is over.
    let mut batch = Batch::new(&driver, free.len() as u32)?;
    let mut open = BTreeMap::new();
    let mut again = Vec::new();
    let (mut next, mut done) = (0, 0);
    while next < pieces || !open.is_empty() {
        let mut operations = Vec::new();
        let first = next;
        while next < pieces
            && let Some(part) = free.pop()
        {
            operations.push(Operation::read(&file, next * PIECE, PIECE, part, 0)?);
            next += 1;
        }
        let tickets = batch.submit(operations).map_err(|refused| refused.error)?;
        open.extend(tickets.into_iter().zip(first..));

        // 3. They end in any order. Each has an outcome of its own, and gives its part back.
        let mut completions = batch.wait(1, Duration::from_secs(2))?;
        if completions.is_empty() {
            // The library owes us ends: give up what is in flight, which ends it here.
            batch.cancel()?;
            completions = batch.wait(1, Duration::ZERO)?;
        }
        for completion in completions {
            let piece = open.remove(&completion.ticket).ok_or("an end too many")?;
            match completion.outcome {
                Ok(()) => done += 1,
                Err(error) => {
                    println!("{error}");
                    again.push(piece);
                }
            }
            free.extend(completion.operation.and_then(|operation| operation.into_buffer().into_registered()));
        }
    }
    println!("{done} pieces of {PIECE} bytes, at most 8 at a time");

    // 4. What did not work in a batch is read by itself.
    let mut memory = vec![0; PIECE as usize];
    for piece in again {
        file.read_exact(&mut memory[..], piece * PIECE)?;
        println!("piece {piece} by a plain read");
    }
    Ok(())
}
