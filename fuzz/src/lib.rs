//! What cargo-fuzz runs: one module a target, each a function of an input's bytes that panics where something is wrong.
//!
//! `cargo xtask fuzz` runs them all, as CI does; `cargo fuzz run header` one, for who has cargo-fuzz. Without the instrumentation of
//! either, a target is a program that replays the inputs it is given: `cargo run -p gds-fuzz --bin header -- FILE`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is how a target tells")]

pub mod arguments;
pub mod header;
pub mod index;
pub mod manifest;
pub mod plan;
pub mod save;

mod captured;
mod edit;
mod model;
mod reference;
mod scratch;

/// Makes a program of the module's target.
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::$name::run(data));

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            $crate::replay($crate::$name::run)
        }
    };
}

/// Runs a target on each file that the command line names.
///
/// # Errors
/// Where one cannot be read.
pub fn replay(target: fn(&[u8])) -> std::io::Result<()> {
    for path in std::env::args_os().skip(1) {
        target(&std::fs::read(&path)?);
        println!("nothing wrong with {}", path.display());
    }
    Ok(())
}
