//! Whether a connection is worth waiting for.

use super::errors::Means;

/// Ticks in a timeout.
pub const TICKS: u32 = 20;
/// A new connection may take this many timeouts to come up: its handshake has several round trips.
const CONNECTING: u32 = 5;

/// A connection, from its making to its end.
///
/// Time is counted in ticks, and a tick is told after all that has arrived was read. So time in which the process was
/// busy counts as one tick at most, and a reply that waits to be read is never late.
#[derive(Clone, Debug, Default)]
pub struct Line {
    is_up: bool,
    /// The number of replies that are due.
    due: usize,
    /// Ticks without a reply, while one is due or the connection is being made.
    silent: u32,
    state: State,
}

/// Whether the connection is kept. A line that is over stays so: what was due has failed, and the connection is closed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum State {
    /// It is kept.
    #[default]
    GoOn,
    /// It is over, since the server was silent for too long.
    Late,
    /// It is over, since the connection is lost, or leads to a server that is not the one to ask.
    GiveUp,
}

impl Line {
    /// A connection that is being made.
    #[must_use]
    pub fn new() -> Line {
        Line::default()
    }

    /// The connection is made, handshake included.
    pub fn up(&mut self) -> State {
        if self.state == State::GoOn {
            (self.is_up, self.silent) = (true, 0);
        }
        self.state
    }

    /// A command was sent, or waits for the connection to be made.
    pub fn sent(&mut self) -> State {
        if self.state == State::GoOn {
            self.silent = if self.due == 0 { 0 } else { self.silent };
            self.due += 1;
        }
        self.state
    }

    /// A reply was received, with what it means for the server if it is an error of the table.
    pub fn replied(&mut self, means: Option<Means>) -> State {
        if self.state == State::GoOn {
            (self.due, self.silent) = (self.due.saturating_sub(1), 0);
            if means == Some(Means::Elsewhere) {
                self.state = State::GiveUp;
            }
        }
        self.state
    }

    /// A twentieth of the timeout has passed, in which this process read what arrived.
    pub fn tick(&mut self) -> State {
        if self.state == State::GoOn && self.is_ticking() {
            self.silent += 1;
            // More than that many ticks, since the first may have begun before the command was sent.
            let timeouts = if self.is_up { 1 } else { CONNECTING };
            if self.silent > timeouts * TICKS {
                self.state = State::Late;
            }
        }
        self.state
    }

    /// The connection was lost, or could not be made.
    pub fn closed(&mut self) -> State {
        if self.state == State::GoOn {
            self.state = State::GiveUp;
        }
        self.state
    }

    /// Whether ticks count.
    #[must_use]
    pub fn is_ticking(&self) -> bool {
        self.state == State::GoOn && (!self.is_up || self.due > 0)
    }
}
