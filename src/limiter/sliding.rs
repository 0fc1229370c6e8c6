//! RL.SLIDING: the current window's count, plus the previous one's weighted by its overlap with a window that
//! ends now: `current + floor(previous * (window - elapsed) / window)`.
//!
//! All functions except [`advance`] and [`refund`] expect a counter that was advanced to the present. Everything is exact: a
//! count of 63 bits times a window of 39 bits fits in 128 bits.

use super::counter::Counter;
use super::quota::{MAX_COUNT, UnixMs, WindowMs};

/// Returns the counter as of `now`. In the next window its current units become the previous ones; in a later
/// window it is empty; at an earlier time it is unchanged.
#[inline(always)]
pub fn advance(counter: Counter, now: UnixMs) -> Counter {
    let number = now.window_number(counter.window);
    if number <= counter.number {
        return counter;
    }
    let previous = if number == counter.number + 1 { counter.current } else { 0 };
    Counter { number, current: 0, previous, ..counter }
}

/// Units that count at `now`, at most [`MAX_COUNT`].
#[inline(always)]
pub fn used(counter: &Counter, now: UnixMs) -> u64 {
    let window = counter.window.get();
    let elapsed = now.since(counter.start());
    (counter.current + scale(counter.previous, window - elapsed, window)).min(MAX_COUNT)
}

/// Takes up to `units` from the window of `as_of` and then from the one before it, if the counter still holds
/// them. Returns how many were taken. The counter stays in its window, also if `as_of` is in the next.
pub fn refund(counter: &mut Counter, units: u64, as_of: UnixMs) -> u64 {
    let number = as_of.window_number(counter.window);
    if number == counter.number {
        let refunded = counter.refund_current(units);
        refunded + counter.refund_previous(units - refunded)
    } else if number == counter.number + 1 {
        // As of then, the current units are those of the previous window.
        counter.refund_current(units)
    } else if number + 1 == counter.number {
        counter.refund_previous(units)
    } else {
        0
    }
}

/// Milliseconds from `now` until at most `room` units count, if more do now.
///
/// The previous units fade during the current window, the current ones during the next.
#[inline(always)]
pub fn wait_until(counter: &Counter, room: u64, now: UnixMs) -> u64 {
    let fits = if counter.current <= room {
        let faded = fades_to(room - counter.current, counter.previous, counter.window);
        counter.start() + faded
    } else {
        counter.end() + fades_to(room, counter.current, counter.window)
    };
    fits.since(now)
}

/// The first millisecond at which the counter no longer counts.
#[inline(always)]
pub fn ends(counter: &Counter) -> UnixMs {
    if counter.current > 0 { counter.end() + counter.window } else { counter.end() }
}

/// The smallest `elapsed`, at most `window`, for which `floor(units * (window - elapsed) / window) <= room`.
fn fades_to(room: u64, units: u64, window: WindowMs) -> u64 {
    if units <= room {
        return 0;
    }
    // units * (window - elapsed) < (room + 1) * window
    let overlap = ((u128::from(room) + 1) * u128::from(window.get()) - 1) / u128::from(units);
    window.get() - overlap as u64
}

/// `floor(units * part / whole)`; `part` is at most `whole`.
#[inline(always)]
fn scale(units: u64, part: u64, whole: u64) -> u64 {
    match units.checked_mul(part) {
        // Spares nearly every request a 128-bit division, which takes much longer.
        Some(product) => product / whole,
        None => (u128::from(units) * u128::from(part) / u128::from(whole)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_at_which_a_count_has_faded_is_exact() {
        for window in 1..=12 {
            for units in 0..=30 {
                for room in 0..=31 {
                    let first = (0..=window).find(|e| scale(units, window - e, window) <= room).unwrap();
                    let window = WindowMs::new(window).unwrap();
                    assert_eq!(fades_to(room, units, window), first, "{units} in {window:?} to {room}");
                }
            }
        }
    }

    #[test]
    fn scaling_is_exact_when_the_product_exceeds_64_bits() {
        let window = WindowMs::MAX.get();
        assert_eq!(scale(MAX_COUNT, window, window), MAX_COUNT);
        assert_eq!(scale(MAX_COUNT, window - 1, window), MAX_COUNT - MAX_COUNT / window - 1);
        assert_eq!(fades_to(MAX_COUNT - 1, MAX_COUNT, WindowMs::MAX), 1);
        assert_eq!(fades_to(0, MAX_COUNT, WindowMs::MAX), window);
    }
}
