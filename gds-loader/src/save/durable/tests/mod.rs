//! What a save must survive.

mod checkpoint;
mod circumstances;
mod conditions;
mod crash;
mod disk;
mod faults;
mod foreign;
mod group;
mod kill;
mod rivals;
mod scenario;
pub(in crate::save) mod tap;
mod trace;
