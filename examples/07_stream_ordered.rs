//! Lesson 7: a read in the order of a CUDA stream.
//!
//!     cargo run --release --example 07_stream_ordered -- [FILE]
//!
//! Needs a CUDA device and libcufile, as lesson 5 does. On the simulated device NVIDIA's library answers such reads with the
//! count -5: an error here, after which a plain read takes over.

mod support;

use std::error::Error;
use std::time::Duration;

use cuda_staging::Device;
use gds_loader::cufile::{CuFile, CuFileStream, Driver, Mode, StreamFlags};

fn main() -> Result<(), Box<dyn Error>> {
    let driver = Driver::open(Mode::Direct).or_else(|_| Driver::open(Mode::Compat))?;
    let file = CuFile::open(&driver, support::model()?)?;
    let len = file.file().metadata()?.len();
    let device = Device::cuda(0)?;

    // 1. A stream that cuFile knows. Kernels go onto the same one, through `stream.raw()`.
    let stream = CuFileStream::register(&driver, device.stream()?, StreamFlags::FIXED)?;

    // 2. The call returns at once; the operation owns the memory until the stream has passed it. Dropping it waits.
    let read = stream.read(&file, 0, len, device.allocate(len, 4096)?, 0);
    let read = read.map_err(|(error, _)| error)?;

    // 3. The count comes at the end, or the error with its code; either way the memory comes back.
    match read.finish_exact(Duration::from_secs(60)) {
        Ok(_) => println!("{len} bytes in the stream's order"),
        Err((error, Some(memory))) => {
            println!("{error}\nso by a plain read:");
            let mut memory = memory.into_region().ok_or("it was not registered")?;
            file.read_exact(&mut memory, 0)?;
            println!("{len} bytes");
        }
        Err((error, None)) => return Err(error.into()),
    }
    Ok(())
}
