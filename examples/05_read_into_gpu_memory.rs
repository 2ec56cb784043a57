//! Lesson 5: cuFile on its own: a file straight into GPU memory.
//!
//!     cargo run --release --example 05_read_into_gpu_memory -- [FILE]
//!
//! Needs a CUDA device and libcufile; where GPUDirect Storage does not work, it asks for compatibility mode, in which the
//! bytes bounce through the host. With no GPU at all: `cargo xtask sim -- target/release/examples/05_read_into_gpu_memory`.

mod support;

use std::error::Error;

use cuda_staging::Device;
use gds_loader::cufile::{CuFile, Driver, Mode, RegisteredBuffer};

fn main() -> Result<(), Box<dyn Error>> {
    // 1. The driver: one per process, in one mode. An error that says "not available here" is told by its type.
    let driver = match Driver::open(Mode::Direct) {
        Err(error) if error.is_unavailable() => {
            println!("{error}\nso in compatibility mode:");
            Driver::open(Mode::Compat)?
        }
        opened => opened?,
    };
    println!("{:?}, {}", driver.library(), driver.mode());

    // 2. A file that cuFile knows, and memory that it knows. Both are owned: neither can go while it is in use.
    let file = CuFile::open(&driver, support::model()?)?;
    let len = file.file().metadata()?.len();
    let memory = Device::cuda(0)?.allocate(len, 4096)?;
    let mut buffer = RegisteredBuffer::register(&driver, memory).map_err(|(_, error)| error)?;

    // 3. Every byte, or an error that says how many arrived. Offsets and lengths need no alignment.
    file.read_exact(&mut buffer, 0)?;
    println!("{len} bytes at {:#x}", buffer.address());
    let half = len / 2;
    file.read_exact_at(&mut buffer, 0..half, len - half)?;

    // 4. The memory comes back, and can be looked at.
    let region = buffer.into_region().freeze();
    let mut bytes = vec![0; half as usize];
    region.device().copy_to_host(&region.slice(0..half)?, &mut bytes)?;
    let expected = std::fs::read(file.path())?;
    assert_eq!(bytes, expected[expected.len() - half as usize..]);
    println!("every byte verified");
    Ok(())
}
