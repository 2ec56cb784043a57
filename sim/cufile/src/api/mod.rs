//! The exported functions, as `cufile.h` of 1.20 declares them.

mod batch;
mod driver;
mod memory;
mod parameter;
mod statistics;
mod stream;
mod transfer;
