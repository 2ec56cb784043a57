//! Lesson 4: the staging ring on its own.
//!
//! Bytes made on the host go to the device through two slots of 1 MiB: while one is copied, the next is filled. Then
//! they are read back and checked. Runs on the first CUDA device, or on the CPU where there is none.
//!
//!     cargo run --release --example 04_staging_ring

use std::io::{self, Read};

use anyhow::{Context, ensure};
use cuda_staging::{Device, DeviceSelector, RingOptions, SlotCopy};

const TOTAL: u64 = 64 << 20;
const SLOT: u64 = 1 << 20;

fn main() -> anyhow::Result<()> {
    let device = Device::open(&DeviceSelector::Auto)?;
    println!("device: {}", device.info().name);

    // 1. One destination, handed out in parts. Each part is the only access to its bytes, wherever it is moved to.
    let ranges: Vec<_> = (0..TOTAL / SLOT).map(|index| index * SLOT..(index + 1) * SLOT).collect();
    let (carved, parts) = device.allocate(TOTAL, 256)?.carve(&ranges)?;

    // 2. A free slot is filled, and its copy launched. The ring keeps slot and part until the copy is over; `take`
    //    waits when both slots are being copied.
    let mut ring = device.ring(RingOptions { slots: 2, slot_size: SLOT as usize })?;
    let mut source = Squares::default();
    for to in parts {
        let filled = ring.take()?.fill(|bytes| source.read(bytes)).map_err(|(_, error)| error)?;
        ensure!(filled.bytes().len() as u64 == to.len(), "the source ended early");
        ring.launch(filled, vec![SlotCopy { slot_offset: 0, to }])?;
    }

    // 3. Once every copy is over, every part is gone, and the whole comes back: to read, from now on.
    ring.drain()?;
    let whole = carved.reunite().ok().context("a part is still in use")?.freeze();

    // 4. What is on the device is what was sent.
    let mut received = vec![0; TOTAL as usize];
    device.copy_to_host(&whole, &mut received)?;
    let mut expected = vec![0; TOTAL as usize];
    Squares::default().read_exact(&mut expected)?;
    ensure!(received == expected, "the bytes on the device differ from those sent");

    let statistics = ring.statistics();
    println!(
        "{} MiB in {} copies, {} MiB pinned; {} waits for a slot, {:.1} ms in all",
        statistics.bytes_copied >> 20,
        statistics.copies,
        statistics.pinned_bytes >> 20,
        statistics.waits,
        statistics.waited.as_secs_f64() * 1e3
    );
    println!("every byte verified");
    Ok(())
}

/// The low bytes of the square numbers, shifted so that the blocks differ.
#[derive(Default)]
struct Squares {
    next: u64,
}

impl Read for Squares {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        for byte in &mut *bytes {
            *byte = (self.next.wrapping_mul(self.next) >> 8) as u8;
            self.next += 1;
        }
        Ok(bytes.len())
    }
}
