//! Lesson 2: load tensors into memory of your own.
//!
//!     cargo run --release --example 02_load_into_your_memory -- [PATH]
//!
//! Useful where another library owns the memory: a framework's tensor, a pool, an inference engine's weight block. On a GPU,
//! give `Destination::device` an address instead, and `Loader::after_stream` the stream whose kernels may still use it.

mod support;

use std::error::Error;

use gds_loader::source::Source;
use gds_loader::{Destination, Loader};

fn main() -> Result<(), Box<dyn Error>> {
    let path = support::model()?;

    // What the model holds is known before any of its bytes are read.
    let source = Source::open(&path)?;
    let mut memory: Vec<(String, Vec<u8>)> =
        source.iter().map(|(_, entry)| (entry.name.to_string(), vec![0; entry.len as usize])).collect();
    drop(source);

    // Each destination borrows its memory for the load; exactly these tensors are read.
    let destinations: Result<Vec<_>, _> =
        memory.iter_mut().map(|(name, bytes)| Destination::host(name.as_str(), bytes)).collect();
    let report = Loader::new().load_into(&path, destinations?)?;

    println!("{} tensors, {} bytes, {:.2} GB/s", report.tensors, report.bytes, report.gb_per_s);
    for (name, bytes) in &memory {
        let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
        println!("{name}: {} bytes that add up to {sum}", bytes.len());
    }
    Ok(())
}
