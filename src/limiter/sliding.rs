//! RL.SLIDING: this window's count and, of the one before, the share that still overlaps a
//! window that ends now: `current + floor(previous * (window - elapsed) / window)`.
//!
//! [`advance`] brings a counter to the present; every other function reads one that is there. A
//! count of 63 bits times a window of 39 fits 128 bits, so everything is exact.

use super::counter::Counter;
use super::quota::{MAX_COUNT, UnixMs, WindowMs};

/// The same counter as it stands at `now`: in the next window its units are those of the window
/// before, in a later one none are left; unchanged at an earlier time.
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

/// Takes up to `units` that were counted in the window of `as_of` or in the one before, the newer
/// first, as far as the counter still knows of them. Returns how many there were.
pub fn refund(counter: &mut Counter, units: u64, as_of: UnixMs) -> u64 {
    let number = as_of.window_number(counter.window);
    if number == counter.number {
        let refunded = counter.refund_current(units);
        refunded + counter.refund_previous(units - refunded)
    } else if number + 1 == counter.number {
        counter.refund_previous(units)
    } else {
        0
    }
}

/// Milliseconds from `now` until at most `room` units count, when more do.
///
/// What counts only shrinks: in this window the previous units fade, in the next the current.
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

/// The first millisecond at which nothing in it can count any more.
#[inline(always)]
pub fn ends(counter: &Counter) -> UnixMs {
    if counter.current > 0 { counter.end() + counter.window } else { counter.end() }
}

/// The first `elapsed`, at most `window`, with
/// `floor(units * (window - elapsed) / window) <= room`.
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
        // Spares nearly every request the much longer division of 128 bits.
        Some(product) => product / whole,
        None => (u128::from(units) * u128::from(part) / u128::from(whole)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_elapsed_at_which_a_count_has_faded_is_exact() {
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
    fn scaling_is_exact_where_64_bits_do_not_hold_the_product() {
        let day = WindowMs::MAX.get();
        assert_eq!(scale(MAX_COUNT, day, day), MAX_COUNT);
        assert_eq!(scale(MAX_COUNT, day - 1, day), MAX_COUNT - MAX_COUNT / day - 1);
        assert_eq!(fades_to(MAX_COUNT - 1, MAX_COUNT, WindowMs::MAX), 1);
        assert_eq!(fades_to(0, MAX_COUNT, WindowMs::MAX), day);
    }
}
