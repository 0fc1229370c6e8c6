//! The state of the demo, without a clock, a server or a terminal. Times are parameters, in Unix
//! milliseconds.

use std::collections::VecDeque;

/// The commands that receive the same traffic.
pub use harness::COMMANDS;
/// Requests allowed in a window.
pub const LIMIT: u64 = 20;
/// The window's length in milliseconds.
pub const WINDOW_MS: u64 = 5_000;
/// Milliseconds in a column of the charts.
pub const SLICE_MS: u64 = WINDOW_MS / 10;

const HIGHEST_RATE: u64 = 50;
/// How many columns are kept: enough for a wide terminal.
const SLICES: usize = 120;

/// The traffic and its outcome.
pub struct Tour {
    /// Requests a second.
    pub rate: u64,
    /// The edge of a window at which a burst is planned. No other traffic is sent until then.
    pub burst_at: Option<u64>,
    /// One for each of `COMMANDS`.
    pub lanes: [Lane; COMMANDS.len()],
    /// All requests up to this time have been sent.
    now: u64,
    /// Thousandths of a request that are due, less than a whole request.
    thousandths: u64,
}

/// The outcome of the traffic at one limiter.
#[derive(Clone, Default)]
pub struct Lane {
    /// Requests allowed.
    pub allowed: u64,
    /// Requests refused.
    pub refused: u64,
    /// Units remaining, from the limiter's reply.
    pub remaining: u64,
    /// The most requests allowed in any span as long as a window.
    pub most: u64,
    /// The latest columns, newest first.
    pub slices: VecDeque<Slice>,
    /// The times of the requests allowed in the last window length.
    times: VecDeque<u64>,
}

/// A column of the charts.
#[derive(Clone, Copy, Default)]
pub struct Slice {
    /// Its time divided by `SLICE_MS`.
    pub number: u64,
    /// Requests allowed in it.
    pub allowed: u64,
    /// Requests refused in it.
    pub refused: u64,
}

impl Slice {
    /// Whether a window of the clock begins with it.
    pub fn begins_a_window(&self) -> bool {
        self.number.is_multiple_of(WINDOW_MS / SLICE_MS)
    }
}

impl Tour {
    /// Starts at `now` with slightly more traffic than the limit allows.
    pub fn new(now: u64) -> Tour {
        let lane = Lane { remaining: LIMIT, ..Lane::default() };
        Tour { rate: 6, burst_at: None, lanes: COMMANDS.map(|_| lane.clone()), now, thousandths: 0 }
    }

    /// Starts over at the same rate.
    pub fn restart(&mut self) {
        *self = Tour { rate: self.rate, ..Tour::new(self.now) };
    }

    /// All requests up to this time have been sent.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Raises the rate by one request a second.
    pub fn faster(&mut self) {
        self.rate = (self.rate + 1).min(HIGHEST_RATE);
    }

    /// Lowers the rate by one request a second.
    pub fn slower(&mut self) {
        self.rate = self.rate.saturating_sub(1);
    }

    /// Plans a burst for the edge between two windows: the whole limit in the last millisecond of one window, and
    /// again in the first millisecond of the next. No traffic is sent before, so that the limit is free.
    pub fn burst(&mut self) {
        self.burst_at = Some((self.now / WINDOW_MS + 2) * WINDOW_MS);
    }

    /// Advances to `now`. Returns the times of the requests to send, in order.
    pub fn advance(&mut self, now: u64) -> Vec<u64> {
        let mut due = Vec::new();
        // After a long pause, such as a suspended laptop, only the last window is caught up on.
        self.now = self.now.max(now.saturating_sub(WINDOW_MS));
        let rate = if self.burst_at.is_some() { 0 } else { self.rate };
        while self.now < now {
            self.now += 1;
            self.thousandths += rate;
            if self.thousandths >= 1_000 {
                self.thousandths -= 1_000;
                due.push(self.now);
            }
        }
        if let Some(edge) = self.burst_at.filter(|edge| *edge <= self.now) {
            due.extend((0..LIMIT).flat_map(|_| [edge - 1, edge]));
            due.sort_unstable();
            self.burst_at = None;
        }
        for lane in &mut self.lanes {
            lane.advance(self.now);
        }
        due
    }
}

impl Lane {
    /// Records the outcome of a request made at `at`.
    pub fn record(&mut self, at: u64, allowed: bool) {
        self.advance(at);
        let slice = self.slices.iter_mut().find(|slice| slice.number == at / SLICE_MS);
        if allowed {
            self.allowed += 1;
            self.times.push_back(at);
            // A span as long as a window that ends at `at` begins after `at - WINDOW_MS`.
            self.times.retain(|time| time + WINDOW_MS > at);
            self.most = self.most.max(self.times.len() as u64);
        } else {
            self.refused += 1;
        }
        if let Some(slice) = slice {
            slice.allowed += u64::from(allowed);
            slice.refused += u64::from(!allowed);
        }
    }

    /// Adds columns up to `now`.
    fn advance(&mut self, now: u64) {
        let number = now / SLICE_MS;
        let mut next = self.slices.front().map_or(number, |newest| newest.number + 1);
        // After a long pause, only those that will be kept.
        next = next.max((number + 1).saturating_sub(SLICES as u64));
        for number in next..=number {
            self.slices.push_front(Slice { number, ..Slice::default() });
        }
        self.slices.truncate(SLICES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window's edge.
    const EDGE: u64 = 1_000 * WINDOW_MS;

    #[test]
    fn requests_come_evenly_at_the_rate() {
        let mut tour = Tour::new(EDGE);
        tour.rate = 4;
        assert_eq!(tour.advance(EDGE + 1_000), [250, 500, 750, 1_000].map(|ms| EDGE + ms));
        assert!(tour.advance(EDGE + 1_249).is_empty());
        assert_eq!(tour.advance(EDGE + 1_250), [EDGE + 1_250]);
    }

    #[test]
    fn a_burst_is_the_limit_on_either_side_of_an_edge_after_a_quiet_window() {
        let mut tour = Tour::new(EDGE - WINDOW_MS - 1);
        tour.burst();
        assert!(tour.advance(EDGE - WINDOW_MS).is_empty());
        assert!(tour.advance(EDGE - 1).is_empty());
        let due = tour.advance(EDGE + 30);
        assert_eq!(due, [[EDGE - 1; LIMIT as usize], [EDGE; LIMIT as usize]].concat());
        assert_eq!(tour.advance(EDGE + 1_030).len() as u64, tour.rate);
    }

    #[test]
    fn a_long_pause_is_not_made_up_for() {
        let mut tour = Tour::new(EDGE);
        tour.rate = 1;
        assert_eq!(tour.advance(EDGE * 1_000).len() as u64, WINDOW_MS / 1_000);
    }

    #[test]
    fn a_clock_that_steps_back_sends_nothing() {
        let mut tour = Tour::new(EDGE);
        assert!(tour.advance(EDGE - 5_000).is_empty());
        assert_eq!(tour.now(), EDGE);
    }

    #[test]
    fn the_rate_stays_between_nothing_and_the_highest() {
        let mut tour = Tour::new(EDGE);
        (0..100).for_each(|_| tour.slower());
        assert_eq!(tour.rate, 0);
        (0..100).for_each(|_| tour.faster());
        assert_eq!(tour.rate, HIGHEST_RATE);
    }

    #[test]
    fn the_most_in_a_window_counts_across_its_edge_but_no_longer_than_its_length() {
        let mut lane = Lane::default();
        for at in [EDGE - 1, EDGE, EDGE + WINDOW_MS - 2] {
            lane.record(at, true);
        }
        assert_eq!(lane.most, 3);
        lane.record(EDGE + WINDOW_MS - 1, true);
        assert_eq!(lane.most, 3);
    }

    #[test]
    fn a_request_counts_in_its_own_column_even_if_later_ones_have_begun() {
        let mut lane = Lane::default();
        lane.advance(EDGE - 1);
        lane.advance(EDGE);
        lane.record(EDGE - 1, true);
        lane.record(EDGE, false);
        let columns: Vec<_> = lane.slices.iter().map(|slice| (slice.allowed, slice.refused)).collect();
        assert_eq!(columns, [(0, 1), (1, 0)]);
        assert!(lane.slices[0].begins_a_window() && !lane.slices[1].begins_a_window());
    }

    #[test]
    fn a_long_pause_keeps_no_more_columns_than_the_widest_terminal_shows() {
        let mut lane = Lane::default();
        lane.advance(EDGE);
        lane.advance(EDGE * 1_000);
        assert_eq!(lane.slices.len(), SLICES);
        assert_eq!(lane.slices[0].number, EDGE * 1_000 / SLICE_MS);
    }
}
