//! Conclusions from figures, with the figures they rest on: pure, and only as strong as those.

use serde::{Deserialize, Serialize};

/// Many copies of the same bytes, timed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Copies {
    /// How many copies.
    pub copies: u64,
    /// Bytes by all of them.
    pub bytes: u64,
    /// Time with at least one in flight, in seconds.
    pub seconds: f64,
}

impl Copies {
    /// So many.
    pub fn new(copies: u64, bytes: u64, seconds: f64) -> Self {
        Self { copies, bytes, seconds }
    }

    /// GB/s (GB = 10^9 bytes).
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }

    /// Copies per second.
    pub fn per_second(&self) -> f64 {
        self.copies as f64 / self.seconds
    }
}

/// What bounds copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum BoundBy {
    /// Their number.
    Calls,
    /// Their bytes.
    Bandwidth,
}

/// What the same bytes in few copies and in many say about the price of a copy.
///
/// Time = copies x price + bytes / bandwidth, for both; two equations, two unknowns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PriceOfCopies {
    /// Seconds a copy costs besides its bytes; 0 where many copies took no longer than few.
    pub seconds_per_copy: f64,
    /// Bandwidth without that price, in GB/s.
    pub gb_per_s_of_bytes: f64,
    /// Share of the time of one copy a piece that is the price of copies.
    pub share_of_pieces: f64,
    /// The same for one copy a tensor.
    pub share_of_tensors: f64,
    /// What bounds one copy a piece, as loads make them.
    pub pieces_bound_by: BoundBy,
    /// What bounds one copy a tensor.
    pub tensors_bound_by: BoundBy,
}

impl PriceOfCopies {
    /// From one copy a piece and one a tensor; `None` where the two are too alike in number to tell.
    pub fn of(pieces: Copies, tensors: Copies) -> Option<Self> {
        let more = tensors.copies as f64 - pieces.copies as f64;
        // Fewer than a tenth more or less, and noise would be taken for a price.
        let enough = more.abs() * 10.0 >= pieces.copies.max(1) as f64;
        let timed = pieces.seconds > 0.0 && tensors.seconds > 0.0 && pieces.bytes > 0;
        if !enough || !timed {
            return None;
        }
        let least = pieces.seconds / pieces.copies.max(1) as f64;
        let seconds_per_copy = ((tensors.seconds - pieces.seconds) / more).clamp(0.0, least);
        let share = |of: Copies| (seconds_per_copy * of.copies as f64 / of.seconds).min(1.0);
        let bound = |share: f64| if share > 0.5 { BoundBy::Calls } else { BoundBy::Bandwidth };
        let (share_of_pieces, share_of_tensors) = (share(pieces), share(tensors));
        let of_bytes = pieces.seconds * (1.0 - share_of_pieces);
        Some(Self {
            seconds_per_copy,
            gb_per_s_of_bytes: if of_bytes > 0.0 { pieces.bytes as f64 / of_bytes / 1e9 } else { 0.0 },
            share_of_pieces,
            share_of_tensors,
            pieces_bound_by: bound(share_of_pieces),
            tensors_bound_by: bound(share_of_tensors),
        })
    }
}

/// What is known about a rate that seems too high.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The rate in GB/s.
    pub gb_per_s: f64,
    /// What this machine's memory can do, in GB/s.
    pub memory_gb_per_s: f64,
    /// Bytes moved.
    pub bytes: u64,
    /// The processor's last cache, in bytes, where it is known.
    pub processor_cache: Option<u64>,
    /// Whether the bytes pass by the host's memory.
    pub passes_host: bool,
    /// Whether the device is a simulated one.
    pub simulated: bool,
}

/// Above the memory's own rate by this much is noise between two measurements.
const NOISE: f64 = 1.05;

impl Claim {
    /// Why the rate is above what this machine's memory can do; `None` where it is not.
    pub fn explain(&self) -> Option<String> {
        if self.gb_per_s <= self.memory_gb_per_s * NOISE {
            return None;
        }
        let above = format!(
            "{:.1} GB/s is above the {:.1} GB/s at which this machine's memory was copied",
            self.gb_per_s, self.memory_gb_per_s
        );
        let reason = if self.simulated && !self.passes_host {
            "the GPU is simulated, so this says nothing about hardware".to_owned()
        } else if !self.passes_host {
            "the bytes do not pass by the host's memory".to_owned()
        } else if self.processor_cache.is_some_and(|cache| self.bytes <= cache) {
            "all of it fits the processor's cache: use a larger model".to_owned()
        } else {
            "IMPLAUSIBLE: no reason is known, so do not believe it".to_owned()
        };
        Some(format!("{above}: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_price_of_a_copy_is_found(
            pieces in 1_u64..10_000,
            factor in 2_u64..100,
            price in 0.0_f64..1e-4,
            gb_per_s in 0.5_f64..100.0,
            bytes in 1_000_000_u64..100_000_000_000,
        ) {
            let time = |copies: u64| copies as f64 * price + bytes as f64 / gb_per_s / 1e9;
            let tensors = pieces * factor;
            let found = PriceOfCopies::of(
                Copies::new(pieces, bytes, time(pieces)),
                Copies::new(tensors, bytes, time(tensors)),
            ).unwrap();
            prop_assert!((found.seconds_per_copy - price).abs() <= 1e-6 * time(tensors));
            prop_assert!((found.gb_per_s_of_bytes / gb_per_s - 1.0).abs() < 1e-3);
            let by_calls = tensors as f64 * price > time(tensors) * 0.5001;
            let by_bytes = (tensors as f64 * price) < time(tensors) * 0.4999;
            prop_assert!(!by_calls || found.tensors_bound_by == BoundBy::Calls);
            prop_assert!(!by_bytes || found.tensors_bound_by == BoundBy::Bandwidth);
        }
    }

    #[test]
    fn figures_that_say_nothing_give_no_verdict() {
        let copies = |copies, seconds| Copies::new(copies, 1_000_000, seconds);
        assert_eq!(PriceOfCopies::of(copies(100, 1.0), copies(105, 1.1)), None);
        assert_eq!(PriceOfCopies::of(copies(100, 0.0), copies(1000, 1.0)), None);
        // Many copies that are faster than few have no price, rather than a negative one.
        let free = PriceOfCopies::of(copies(100, 1.0), copies(1000, 0.9)).unwrap();
        assert_eq!((free.seconds_per_copy, free.pieces_bound_by), (0.0, BoundBy::Bandwidth));
    }

    #[test]
    fn a_rate_above_memory_comes_with_its_reason() {
        let claim = Claim {
            gb_per_s: 30.0,
            memory_gb_per_s: 10.0,
            bytes: 1 << 30,
            processor_cache: Some(32 << 20),
            passes_host: true,
            simulated: false,
        };
        let says = |claim: Claim| claim.explain().unwrap();
        assert!(says(claim).contains("IMPLAUSIBLE"));
        assert!(
            says(Claim { simulated: true, ..claim }).contains("IMPLAUSIBLE"),
            "its copies pass by memory"
        );
        assert!(says(Claim { bytes: 1 << 20, ..claim }).contains("processor's cache"));
        assert!(says(Claim { passes_host: false, ..claim }).contains("do not pass"));
        assert!(says(Claim { passes_host: false, simulated: true, ..claim }).contains("simulated"));
        assert_eq!(Claim { gb_per_s: 10.4, ..claim }.explain(), None);
    }
}
