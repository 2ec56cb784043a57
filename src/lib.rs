//! The `gds` command line: [`run`] is all of the program but its first statement, so that it can also be run within another
//! process, as fuzzing does. The work is done by `gds-loader` and `cuda-staging`.

mod cli;
mod ending;
mod interrupt;
mod leftovers;
mod synthetic;

pub use cli::{Exit, run};
