//! The `gds` command line.
fn main() {}
