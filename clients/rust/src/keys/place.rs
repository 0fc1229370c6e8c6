//! A place in flight: what a block of code holds while it runs.

/// A place, from its first request to its end. It says what to ask for and what to give back.
///
/// A renewal takes before it gives back, so the place is never free for others in between. Times are milliseconds of a clock
/// that never runs back.
#[derive(Clone, Debug)]
pub struct Place {
    for_ms: u64,
    state: State,
    /// When the newest request was sent.
    asked: u64,
    /// When it is to be renewed.
    due: u64,
    /// When others may have it, if it is not renewed before.
    over_at: u64,
    /// Whether [`Say::Late`] was said: it stays said, since others may have it from then on.
    is_late: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// It is asked for.
    Asked,
    /// It is asked for, and the block of code has ended.
    Gone,
    /// It is held.
    Held,
    /// It is held and asked for again.
    Renewing,
    /// It is held and asked for again, and the block of code has ended.
    Ending,
    /// It was refused, or given back.
    Over,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// The newest request took a unit.
    Taken,
    /// The newest request was refused.
    Refused,
    /// The newest request failed. Its unit may be counted nevertheless, until the time of a place is over.
    Failed,
    /// Time has passed.
    Tick,
    /// The block of code has ended.
    End,
}

/// What a place wants done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Say {
    /// Ask for another unit, with the largest limit there is.
    Take,
    /// Give back what the request before the newest took, or the only one.
    GiveBackOld,
    /// Give back what the newest request took.
    GiveBackNew,
    /// Tell the hook that the place was not renewed in time, so that others may have it.
    Late,
}

impl Place {
    /// A place that is asked for now, and lasts for `for_ms` if it is not renewed.
    #[must_use]
    pub fn new(for_ms: u64, now: u64) -> Place {
        Place { for_ms, state: State::Asked, asked: now, due: 0, over_at: 0, is_late: false }
    }

    /// What to do after an event, in this order.
    pub fn happens(&mut self, event: Event, now: u64) -> Vec<Say> {
        use Event::{End, Failed, Refused, Taken, Tick};
        use State::{Asked, Ending, Gone, Held, Over, Renewing};
        let (state, says) = match (self.state, event) {
            (Asked, Taken) => (self.hold(), vec![]),
            (Asked, Refused | Failed) => (Over, vec![]),
            (Asked, End) => (Gone, vec![]),
            (Gone, Taken | Refused | Failed) => (Over, vec![Say::GiveBackNew]),
            (Held | Renewing, Tick) => self.tick(now),
            (Held, End) => (Over, vec![Say::GiveBackOld]),
            (Renewing, Taken) => (self.hold(), vec![Say::GiveBackOld]),
            (Renewing, Refused | Failed) => {
                self.due = now + (self.for_ms / 12).max(1);
                (Held, vec![])
            }
            (Renewing, End) => (Ending, vec![]),
            (Ending, Taken) => (Over, vec![Say::GiveBackOld, Say::GiveBackNew]),
            (Ending, Refused | Failed) => (Over, vec![Say::GiveBackOld]),
            (state, _) => (state, vec![]),
        };
        self.state = state;
        says
    }

    /// Holds the place by the newest request.
    fn hold(&mut self) -> State {
        self.due = self.asked + (self.for_ms / 3).max(1);
        self.over_at = self.asked + self.for_ms;
        State::Held
    }

    fn tick(&mut self, now: u64) -> (State, Vec<Say>) {
        let mut says = Vec::new();
        if now >= self.over_at && !self.is_late {
            self.is_late = true;
            says.push(Say::Late);
        }
        if self.state == State::Held && now >= self.due {
            self.asked = now;
            says.push(Say::Take);
            return (State::Renewing, says);
        }
        (self.state, says)
    }

    /// When the next tick is due, if any is.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        let renewed = (self.state == State::Held).then_some(self.due);
        let is_held = matches!(self.state, State::Held | State::Renewing);
        let late = (is_held && !self.is_late).then_some(self.over_at);
        renewed.into_iter().chain(late).min()
    }

    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether it was ever not renewed in time, so that others may have it.
    #[must_use]
    pub fn is_late(&self, now: u64) -> bool {
        self.is_late || (matches!(self.state, State::Held | State::Renewing) && now >= self.over_at)
    }
}
