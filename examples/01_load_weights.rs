//! Lesson 1: load a model and use its tensors.
//!
//!     cargo run --release --example 01_load_weights -- [PATH]
//!
//! Without a GPU the tensors land in host memory; the code is the same.

mod support;

use std::error::Error;

use gds_loader::Loader;

fn main() -> Result<(), Box<dyn Error>> {
    let model = Loader::new().load(support::model()?)?;

    // A tensor keeps its memory alive: it may outlive the model.
    let largest = model.tensors().max_by_key(|tensor| tensor.len()).ok_or("the model has no tensors")?;
    println!(
        "{}: {} {:?}, {} bytes at {:#x}",
        largest.name(),
        largest.dtype(),
        largest.shape(),
        largest.len(),
        largest.device_address(),
    );

    // The report says what was done, and by which path.
    let report = model.report();
    println!(
        "{} tensors, {} bytes to {} in {:.3} s, {:.2} GB/s",
        report.tensors, report.bytes, report.device.name, report.seconds, report.gb_per_s,
    );
    drop(model);

    // Read back what is there, wherever it is.
    let bytes = largest.to_vec()?;
    println!("its first bytes: {:02x?}", &bytes[..bytes.len().min(8)]);
    Ok(())
}
