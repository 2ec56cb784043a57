//! How many reads a worker keeps in flight: found out while reading.
//!
//! A climb. Bytes are counted over a window of reads; then the depth goes up and the next window is compared. What brings more
//! than a few percent is kept, anything else is undone, and from time to time both neighbours are tried again, since storage
//! that others use is not the same a second later. A shallower depth that is as fast is kept too: each read in flight holds
//! memory. Trade-off: a window is long enough to average over and short enough that a load of a second sees many; a
//! controller of one number needs no model of the device.

use std::time::Duration;

/// A change is kept only where it brings more than this share.
const GAIN: f64 = 0.04;

/// Reads that a window counts, for each read in flight in all.
const READS_A_WINDOW: usize = 4;

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

/// The depth of every worker.
#[derive(Debug)]
pub(super) struct Depth {
    now: usize,
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
    /// Begins with `start` reads in flight for each of `workers` workers; never more than `most`, never fewer than 1.
    pub(super) fn new(start: usize, most: usize, workers: usize) -> Self {
        let most = most.max(1);
        let (now, workers) = (start.clamp(1, most), workers.max(1));
        Self {
            now,
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
        if self.most == 1 {
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
                let kept = match self.now > depth {
                    true => rate > before * (1.0 + GAIN),
                    false => rate > before * (1.0 - GAIN / 2.0),
                };
                if kept {
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
        let (up, down) = ((depth + step).min(self.most), (depth - depth.min(step / 2 + 1)).max(1));
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
            let mut depth = Depth::new(start, 32, workers);
            let seen = device.run(&mut depth, 6000, noise);
            let best = device.rate(usize::MAX >> 1);
            let rates: f64 = seen.iter().map(|&now| device.rate(now * workers)).sum();
            prop_assert!(rates / seen.len() as f64 > 0.85 * best, "{seen:?} for {device:?}");
        }

        #[test]
        fn it_never_leaves_its_bounds(start in 0_usize..100, most in 0_usize..40, steps in prop::collection::vec(0.0..2.0, 0..500)) {
            let mut depth = Depth::new(start, most, 1);
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
        let seen = device.run(&mut Depth::new(1, 64, 1), 4000, 0.0);
        assert!(mean(&seen) > 12.0, "{seen:?}");
    }

    #[test]
    fn it_shrinks_where_depth_brings_nothing_or_costs() {
        for penalty in [0.0, 0.05] {
            let device = Device { latency: 0.008, parallel: 2, penalty };
            let seen = device.run(&mut Depth::new(16, 32, 1), 4000, 0.0);
            assert!(mean(&seen) < 5.0, "{penalty}: {seen:?}");
        }
    }

    #[test]
    fn a_device_that_changes_is_followed() {
        let mut depth = Depth::new(4, 32, 1);
        let slow = Device { latency: 0.002, parallel: 2, penalty: 0.02 };
        assert!(mean(&slow.run(&mut depth, 4000, 0.0)) < 5.0);
        let fast = Device { latency: 0.002, parallel: 16, penalty: 0.0 };
        assert!(mean(&fast.run(&mut depth, 8000, 0.0)) > 10.0);
    }

    #[test]
    fn one_read_at_a_time_stays_one() {
        let device = Device { latency: 0.002, parallel: 16, penalty: 0.0 };
        assert!(device.run(&mut Depth::new(1, 1, 1), 500, 0.0).iter().all(|&now| now == 1));
    }
}
