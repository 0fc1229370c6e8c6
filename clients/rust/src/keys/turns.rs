//! The turns that one process was told by a bucket.

use std::collections::VecDeque;
use std::time::Duration;

/// Units that the server counts for this process, and that it may use once they are due.
#[derive(Clone, Debug)]
pub struct Turn<V> {
    pub due: Duration,
    pub verdict: V,
    /// Whether the server did not take it back, since others stand behind it.
    stays: bool,
}

impl<V> Turn<V> {
    pub fn new(due: Duration, verdict: V) -> Turn<V> {
        Turn { due, verdict, stays: false }
    }
}

/// What follows from an event.
#[derive(Debug)]
pub struct Says<W, V> {
    /// Those whose turn has come.
    pub served: Vec<(W, Turn<V>)>,
    /// Turns to give back: [`Turns::returned`] is to be told whether they went.
    pub back: Vec<Turn<V>>,
    /// Whether whoever comes needs a command.
    pub asks: bool,
    /// Whether the turn is too late for whoever asked.
    pub late: bool,
}

/// Those of a process who wait for a bucket, and its turns: the first has the first turn, and so on.
///
/// When somebody leaves, those behind move up, and the turn that nobody has is the last. That one goes back. Where it cannot, it
/// is kept for the next who comes. Times are those of this process.
#[derive(Debug)]
pub struct Turns<W, V> {
    waiting: VecDeque<W>,
    turns: VecDeque<Turn<V>>,
    /// How many ask, and how many turns are on their way back.
    asking: usize,
    returning: usize,
}

impl<W, V> Default for Turns<W, V> {
    fn default() -> Turns<W, V> {
        Turns { waiting: VecDeque::new(), turns: VecDeque::new(), asking: 0, returning: 0 }
    }
}

impl<W: PartialEq, V> Turns<W, V> {
    /// Somebody comes, who waits until `end` at most.
    pub fn asks(&mut self, now: Duration, waiter: W, end: Duration) -> Says<W, V> {
        let says = self.tick(now);
        let asks = self.turns.get(self.waiting.len()).is_none_or(|kept| kept.due > end);
        if asks {
            self.asking += 1;
        } else {
            self.waiting.push_back(waiter);
        }
        Says { asks, ..says }
    }

    /// The server has told a turn to one who asked, or who has left since.
    pub fn told(&mut self, now: Duration, turn: Turn<V>, waiter: Option<W>, end: Duration) -> Says<W, V> {
        self.asking -= 1;
        let index = self.add(turn).min(self.waiting.len());
        let late = waiter.is_some() && self.turns[index].due > end;
        if let Some(waiter) = waiter.filter(|_| !late) {
            self.waiting.insert(index, waiter);
        }
        Says { late, ..self.tick(now) }
    }

    /// The server has refused one who asked, or no reply came.
    pub fn refused(&mut self, now: Duration) -> Says<W, V> {
        self.asking -= 1;
        self.tick(now)
    }

    /// One who waits goes without its turn.
    pub fn leaves(&mut self, now: Duration, waiter: &W) -> Says<W, V> {
        self.waiting.retain(|other| other != waiter);
        self.tick(now)
    }

    /// One who was served does not use its turn.
    pub fn unused(&mut self, now: Duration, turn: Turn<V>) -> Says<W, V> {
        self.asking += 1;
        self.told(now, turn, None, Duration::MAX)
    }

    /// Whether a turn that was to go back did. If no reply came, it did.
    pub fn returned(&mut self, now: Duration, turn: Turn<V>, is_back: bool) -> Says<W, V> {
        self.returning -= 1;
        if !is_back {
            self.add(Turn { stays: true, ..turn });
        }
        self.tick(now)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) -> Says<W, V> {
        let (mut served, mut back) = (Vec::new(), Vec::new());
        // While somebody asks, its turn stands behind these.
        while self.asking == 0
            && self.turns.len() > self.waiting.len()
            && self.turns.back().is_some_and(|last| !last.stays)
        {
            back.extend(self.turns.pop_back());
        }
        while self.turns.front().is_some_and(|first| first.due <= now)
            && let Some(turn) = self.turns.pop_front()
        {
            match self.waiting.pop_front() {
                Some(waiter) => served.push((waiter, turn)),
                None if turn.stays => {}
                None => back.push(turn),
            }
        }
        self.returning += back.len();
        Says { served, back, asks: false, late: false }
    }

    /// When the next tick is due, if somebody waits for it.
    #[must_use]
    pub fn next_tick(&self) -> Option<Duration> {
        self.turns.front().filter(|_| !self.waiting.is_empty()).map(|first| first.due)
    }

    /// Whether nobody waits, nothing is kept, and no reply is due.
    #[must_use]
    pub fn is_over(&self, now: Duration) -> bool {
        self.asking + self.returning == 0 && self.turns.iter().all(|turn| turn.due <= now)
    }

    /// Puts a turn where it belongs by its time. Returns its index.
    fn add(&mut self, turn: Turn<V>) -> usize {
        let index = self.turns.partition_point(|other| other.due <= turn.due);
        self.turns.insert(index, turn);
        index
    }
}
