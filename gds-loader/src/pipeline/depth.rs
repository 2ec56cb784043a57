//! How many reads a worker keeps in flight: found out while reading.
//!
//! A climb. Bytes are counted over a window of reads; then the depth goes up and the next window is compared. What brings more
//! than a few percent is kept, anything else is undone, and from time to time both neighbours are tried again, since storage
//! that others use is not the same a second later. Going down must bring something, too: the slots are there anyway, and were
//! "no slower" enough, noise would take the depth down step by step. Trade-off: a window is long enough to average over and
//! short enough that a load of a second sees several; a controller of one number needs no model of the device.

use std::time::Duration;

/// A change is kept only where it brings more than this share.
const GAIN: f64 = 0.05;

/// Reads that a window counts, for each read in flight in all.
const READS_A_WINDOW: usize = 6;

/// Windows that a depth is left alone after its neighbours were no better: at first, and at most.
const REST: (u32, u32) = (4, 64);

/// What the window that is counted now is for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// To learn what the present depth brings.
    Measuring,
    /// To compare with this rate (bytes per second) at this depth.
    Trying { rate: f64, depth: usize },
    /// Nothing, for so many windows more.
    Resting { windows: u32 },
}

/// Where the depth of every worker begins, and between what it may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DepthRange {
    pub(crate) least: usize,
    pub(crate) start: usize,
    pub(crate) most: usize,
}

impl DepthRange {
    /// This depth, whatever it brings.
    pub(crate) fn fixed(depth: usize) -> Self {
        Self { least: depth, start: depth, most: depth }
    }
}

/// The depth of every worker.
#[derive(Debug)]
pub(super) struct Depth {
    now: usize,
    least: usize,
    most: usize,
    workers: usize,
    phase: Phase,
    /// Whether the next try goes up.
    up: bool,
    /// How long the next rest will be.
    rest: u32,
    /// Reads to come before the window begins: those that were in flight when the depth changed.
    skip: usize,
    reads: usize,
    bytes: u64,
    began: Option<Duration>,
}

impl Depth {
    /// For so many workers.
    pub(super) fn new(range: DepthRange, workers: usize) -> Self {
        let least = range.least.max(1);
        let most = range.most.max(least);
        let (now, workers) = (range.start.clamp(least, most), workers.max(1));
        Self {
            now,
            least,
            most,
            workers,
            phase: Phase::Measuring,
            up: true,
            rest: REST.0,
            skip: now * workers,
            reads: 0,
            bytes: 0,
            began: None,
        }
    }

    /// Reads that each worker may have in flight.
    pub(super) fn now(&self) -> usize {
        self.now
    }

    /// Takes note that a read of `bytes` bytes ended, at `at` on any clock.
    pub(super) fn ended(&mut self, bytes: u64, at: Duration) {
        if self.most == self.least {
            return;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        let Some(began) = self.began else {
            // Its end begins the window, its bytes came before.
            self.began = Some(at);
            return;
        };
        self.reads += 1;
        self.bytes += bytes;
        if self.reads >= READS_A_WINDOW * self.now * self.workers {
            let rate = self.bytes as f64 / at.saturating_sub(began).as_secs_f64().max(1e-9);
            (self.reads, self.bytes, self.began) = (0, 0, None);
            self.decide(rate);
        }
    }

    fn decide(&mut self, rate: f64) {
        match self.phase {
            Phase::Measuring => self.try_another(rate),
            Phase::Trying { rate: before, depth } => {
                if rate > before * (1.0 + GAIN) {
                    // On in the same direction, as far as it leads.
                    self.rest = REST.0;
                    self.try_another(rate);
                } else {
                    self.up = !self.up;
                    self.go_to(depth);
                    self.take_rest();
                }
            }
            Phase::Resting { windows: 0 } => self.try_another(rate),
            Phase::Resting { windows } => self.phase = Phase::Resting { windows: windows - 1 },
        }
    }

    /// Tries the next depth in the present direction, or in the other where this one ends.
    fn try_another(&mut self, rate: f64) {
        let depth = self.now;
        let step = (depth / 2).max(1);
        let (up, down) = ((depth + step).min(self.most), depth.saturating_sub(step / 2 + 1).max(self.least));
        let next = if self.up { up } else { down };
        if next == depth {
            self.up = !self.up;
            self.take_rest();
        } else {
            self.phase = Phase::Trying { rate, depth };
            self.go_to(next);
        }
    }

    fn take_rest(&mut self) {
        self.phase = Phase::Resting { windows: self.rest };
        self.rest = (self.rest * 2).min(REST.1);
    }

    fn go_to(&mut self, depth: usize) {
        self.skip = self.now.max(depth) * self.workers;
        self.now = depth;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A device: reads take `latency` seconds each while at most `parallel` are in flight, and no more bytes per second than
    /// `parallel` of them bring, of which each read beyond takes the share `penalty` away.
    #[derive(Clone, Copy, Debug)]
    struct Device {
        latency: f64,
        parallel: usize,
        penalty: f64,
    }

    const READ: u64 = 4 << 20;

    fn adaptive(start: usize, most: usize, workers: usize) -> Depth {
        Depth::new(DepthRange { least: 1, start, most }, workers)
    }

    impl Device {
        fn rate(&self, in_flight: usize) -> f64 {
            let busy = in_flight.min(self.parallel) as f64;
            let beyond = in_flight.saturating_sub(self.parallel) as f64;
            busy * READ as f64 / self.latency / (1.0 + self.penalty * beyond)
        }

        /// Reads so often, each time with noise of up to `noise`, and says which depths there were at the end.
        fn run(&self, depth: &mut Depth, reads: usize, noise: f64) -> Vec<usize> {
            let (mut at, mut seen) = (0.0, Vec::new());
            for read in 0..reads {
                let jitter = 1.0 + noise * ((read * 2_654_435_761 % 1000) as f64 / 500.0 - 1.0);
                at += READ as f64 / self.rate(depth.now() * depth.workers) * jitter;
                depth.ended(READ, Duration::from_secs_f64(at));
                seen.push(depth.now());
            }
            seen.split_off(reads / 2)
        }
    }

    fn mean(depths: &[usize]) -> f64 {
        depths.iter().sum::<usize>() as f64 / depths.len() as f64
    }

    proptest! {
        #[test]
        fn it_finds_what_the_device_can_do_from_wherever_it_starts(
            start in 1_usize..32,
            parallel in 1_usize..24,
            workers in 1_usize..3,
            noise in 0.0..0.2,
        ) {
            let device = Device { latency: 0.002, parallel, penalty: 0.0 };
            let mut depth = adaptive(start, 32, workers);
            let seen = device.run(&mut depth, 6000, noise);
            let best = device.rate(usize::MAX >> 1);
            let rates: f64 = seen.iter().map(|&now| device.rate(now * workers)).sum();
            prop_assert!(rates / seen.len() as f64 > 0.85 * best, "{seen:?} for {device:?}");
        }

        #[test]
        fn it_never_leaves_its_bounds(start in 0_usize..100, most in 0_usize..40, steps in prop::collection::vec(0.0..2.0, 0..500)) {
            let mut depth = adaptive(start, most, 1);
            let mut at = 0.0;
            for step in steps {
                at += step;
                depth.ended(READ, Duration::from_secs_f64(at));
                prop_assert!((1..=most.max(1)).contains(&depth.now()));
            }
        }
    }

    #[test]
    fn it_grows_while_throughput_grows() {
        let device = Device { latency: 0.002, parallel: 16, penalty: 0.0 };
        let seen = device.run(&mut adaptive(1, 64, 1), 4000, 0.0);
        assert!(mean(&seen) > 12.0, "{seen:?}");
    }

    #[test]
    fn it_shrinks_where_depth_costs_and_stays_where_it_brings_nothing() {
        let device = Device { latency: 0.008, parallel: 2, penalty: 0.05 };
        let seen = device.run(&mut adaptive(16, 32, 1), 4000, 0.0);
        assert!(mean(&seen) < 6.0, "{seen:?}");
        let device = Device { penalty: 0.0, ..device };
        let seen = device.run(&mut adaptive(8, 32, 1), 4000, 0.1);
        assert!((6.0..10.0).contains(&mean(&seen)), "{seen:?}");
    }

    #[test]
    fn a_device_that_changes_is_followed() {
        let mut depth = adaptive(4, 32, 1);
        let slow = Device { latency: 0.002, parallel: 2, penalty: 0.2 };
        assert!(mean(&slow.run(&mut depth, 4000, 0.0)) < 4.0);
        let fast = Device { latency: 0.002, parallel: 16, penalty: 0.0 };
        assert!(mean(&fast.run(&mut depth, 8000, 0.0)) > 10.0);
    }

    #[test]
    fn a_depth_that_was_asked_for_stays() {
        let device = Device { latency: 0.002, parallel: 4, penalty: 0.2 };
        for asked in [1, 8] {
            let mut depth = Depth::new(DepthRange::fixed(asked), 2);
            assert!(device.run(&mut depth, 1000, 0.1).iter().all(|&now| now == asked));
        }
    }
}
