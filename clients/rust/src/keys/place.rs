//! A place in flight: what a block of code holds while it runs.

/// A place, from its first request to its end. It says what to ask for and what to give back.
///
/// A renewal takes before it gives back, so the place is never free for others in between. Times are milliseconds of a clock
/// that never runs back, except for the server's times of units.
#[derive(Clone, Debug)]
pub struct Place {
    ttl_ms: u64,
    state: State,
    /// As of when the unit is counted that is held.
    at: u64,
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
    /// The newest request took a unit, as of this time of the server.
    Taken { at: u64 },
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
    /// A place that is asked for now, and lasts for `ttl_ms` if it is not renewed.
    #[must_use]
    pub fn new(ttl_ms: u64, now: u64) -> Place {
        Place { ttl_ms, state: State::Asked, at: 0, asked: now, due: 0, over_at: 0, is_late: false }
    }

    /// What to do after an event, in this order. Whether the place is late is decided first: also a block that has kept its
    /// thread for longer than the place lasts, and ends before anything else happens, is told of.
    pub fn happens(&mut self, event: Event, now: u64) -> Vec<Say> {
        use Event::{End, Failed, Refused, Taken, Tick};
        use State::{Asked, Ending, Gone, Held, Over, Renewing};
        let late = (!self.is_late && self.is_late(now)).then_some(Say::Late);
        self.is_late |= late.is_some();
        let (state, says) = match (self.state, event) {
            (Asked, Taken { at }) => (self.hold(at), vec![]),
            (Asked, Refused | Failed) => (Over, vec![]),
            (Asked, End) => (Gone, vec![]),
            (Gone, Taken { .. } | Refused | Failed) => (Over, vec![Say::GiveBackNew]),
            (Held, Tick) if now >= self.due => {
                self.asked = now;
                (Renewing, vec![Say::Take])
            }
            (Held, End) => (Over, vec![Say::GiveBackOld]),
            (Renewing, Taken { at }) => {
                let old = self.old(at);
                (self.hold(at), old)
            }
            (Renewing, Refused | Failed) => {
                self.due = now + (self.ttl_ms / 12).max(1);
                (Held, vec![])
            }
            (Renewing, End) => (Ending, vec![]),
            (Ending, Taken { at }) => (Over, [self.old(at), vec![Say::GiveBackNew]].concat()),
            (Ending, Refused | Failed) => (Over, vec![Say::GiveBackOld]),
            (state, _) => (state, vec![]),
        };
        self.state = state;
        late.into_iter().chain(says).collect()
    }

    /// Holds the place by the newest request.
    fn hold(&mut self, at: u64) -> State {
        self.at = at;
        self.due = self.asked + (self.ttl_ms / 3).max(1);
        self.over_at = self.asked + self.ttl_ms;
        State::Held
    }

    /// Gives back the unit that is held, since another was taken as of `at`. If that is earlier, the server's clock was set
    /// back: the old unit leaves by itself, and giving back as of its time could take a place from others.
    fn old(&self, at: u64) -> Vec<Say> {
        if at < self.at { vec![] } else { vec![Say::GiveBackOld] }
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
