//! The link between host and device: all copies of a device share its speed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::settings::Settings;
use crate::sync::lock;

/// Speed, latency and jitter of one device's copies.
pub(crate) struct Link {
    bytes_per_second: Option<f64>,
    latency: Duration,
    jitter: Duration,
    free_at: Mutex<Instant>,
    random: AtomicU64,
}

impl Link {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            bytes_per_second: settings.copy_bytes_per_second,
            latency: settings.copy_latency,
            jitter: settings.jitter,
            free_at: Mutex::new(Instant::now()),
            random: AtomicU64::new(0x9E37_79B9_7F4A_7C15),
        }
    }

    /// Carries `bytes`, taking as long as the settings say. The bytes move in the middle of that time: whoever changes the
    /// source before the copy is over, or reads the destination, is found out.
    pub(crate) fn carry(&self, bytes: usize, copy: impl FnOnce()) {
        if self.bytes_per_second.is_none() && self.latency.is_zero() && self.jitter.is_zero() {
            return copy();
        }
        let ready = Instant::now() + self.latency + self.random_delay();
        let time = Duration::from_secs_f64(self.bytes_per_second.map_or(0.0, |speed| bytes as f64 / speed));
        let start = {
            let mut free_at = lock(&self.free_at);
            let start = ready.max(*free_at);
            *free_at = start + time;
            start
        };
        sleep_until(start + time / 2);
        copy();
        sleep_until(start + time);
    }

    /// Up to the jitter, evenly distributed; the sequence is the same in every run (splitmix64).
    fn random_delay(&self) -> Duration {
        if self.jitter.is_zero() {
            return Duration::ZERO;
        }
        let mut mixed = self.random.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        self.jitter.mul_f64((mixed >> 11) as f64 / (1u64 << 53) as f64)
    }
}

fn sleep_until(time: Instant) {
    let left = time.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        thread::sleep(left);
    }
}
