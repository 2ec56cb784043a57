//! Lesson 3: follow a load, and stop it.
//!
//!     cargo run --release --example 03_progress_and_cancel -- [PATH]

mod support;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gds_loader::{CancelToken, Error as LoadError, Loader};

fn main() -> Result<(), Box<dyn Error>> {
    let path = support::model()?;

    // The callback runs on the worker threads, after each piece: it must be quick.
    let percent = Arc::new(AtomicU64::new(0));
    let shown = Arc::clone(&percent);
    let loader = Loader::new().read_size(256 << 10).on_progress(move |progress| {
        let now = progress.bytes_done * 100 / progress.bytes_total;
        if now / 25 > shown.fetch_max(now, Ordering::Relaxed) / 25 {
            println!("{now} % of {} bytes", progress.bytes_total);
        }
    });
    let model = loader.load(&path)?;
    println!("loaded {} tensors", model.len());

    // A token stops a load from anywhere: a signal handler, another thread, or, here, the callback itself.
    let token = CancelToken::new();
    let trigger = token.clone();
    let impatient = Loader::new().read_size(64 << 10).cancel(token).on_progress(move |progress| {
        if progress.bytes_done > progress.bytes_total / 2 {
            trigger.cancel();
        }
    });
    match impatient.load(&path) {
        Err(LoadError::Cancelled { placed, planned }) => {
            println!("cancelled after {placed} of {planned} bytes; nothing of it is left");
        }
        Ok(model) => println!("all {} bytes had arrived before it could be cancelled", model.report().bytes),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
