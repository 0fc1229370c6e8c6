//! A counter in 15 bytes, as nearly every key has.

use super::super::lifetime::TimeSource;
use super::super::quota::WindowMs;
use super::counter::Counter;

/// A counter with small numbers: a window below 50 days, a window number below 2^32 (until the year 2106 for
/// windows of a second or more) and counts below 2^24.
///
/// Stored as little-endian bytes, so that it needs no alignment and leaves room for an enum tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedCounter {
    window: [u8; 4],
    number: [u8; 4],
    current: Count24,
    previous: Count24,
    /// Where the time that set the key's expiry came from.
    pub source: TimeSource,
}

/// A count below 2^24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count24([u8; 2], u8);

impl Count24 {
    fn new(units: u64) -> Count24 {
        Count24((units as u16).to_le_bytes(), (units >> 16) as u8)
    }

    fn get(self) -> u64 {
        u64::from(u16::from_le_bytes(self.0)) | u64::from(self.1) << 16
    }
}

impl PackedCounter {
    /// Packs a counter; `None` if a number is too large.
    pub fn pack(counter: &Counter, source: TimeSource) -> Option<PackedCounter> {
        let Counter { window, number, current, previous } = *counter;
        if (current | previous) >> 24 != 0 || (window.get() | number) >> 32 != 0 {
            return None;
        }
        Some(PackedCounter {
            window: (window.get() as u32).to_le_bytes(),
            number: (number as u32).to_le_bytes(),
            current: Count24::new(current),
            previous: Count24::new(previous),
            source,
        })
    }

    /// The counter, if its window is `window`.
    pub fn if_window(&self, window: WindowMs) -> Option<Counter> {
        let counter = Counter {
            window,
            number: self.number(),
            current: self.current.get(),
            previous: self.previous.get(),
        };
        (self.window_ms() == window.get()).then_some(counter)
    }

    /// The counter, whatever its window.
    pub fn unpack(&self) -> Option<Counter> {
        WindowMs::new(self.window_ms()).and_then(|window| self.if_window(window))
    }

    /// The first millisecond of the current window, since the Unix epoch.
    pub fn start_ms(&self) -> u64 {
        self.window_ms() * self.number()
    }

    fn window_ms(&self) -> u64 {
        u64::from(u32::from_le_bytes(self.window))
    }

    fn number(&self) -> u64 {
        u64::from(u32::from_le_bytes(self.number))
    }
}
