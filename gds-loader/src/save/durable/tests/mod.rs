//! What a save must survive.

mod checkpoint;
mod crash;
mod disk;
mod scenario;
mod tap;
