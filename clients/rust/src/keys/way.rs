//! When a process that takes places of a key gives way to others.

/// After so many places for each that there is, a process looks who else waits.
const PLACES: u64 = 8;
/// It also does after so many milliseconds in which all places that are held were its own.
const ALONE_MS: u64 = 100;
/// For so long it gives way to one other: whoever waits asks within this time.
const GIVES_WAY_MS: u64 = 60;
/// For each further one it gives way for longer, so that all have had their turn before it asks again.
const FURTHER_MS: u64 = 100;
const MOST_MS: u64 = 360;

/// Now and then a process looks whether others wait for a place, and leaves them one for a while. Who gives a place back and
/// takes it again is faster than whoever waits in another process, and would else take each of them. Times are milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Way {
    /// Places that were taken since it looked last.
    taken: u64,
    /// Since when all places that are held are its own.
    alone: u64,
    /// When it has given back a place.
    ended: Option<u64>,
    until: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Does {
    /// Ask for a place.
    Ask,
    /// Look who else waits.
    Look,
    /// Ask by one place less than there are.
    GiveWay,
}

impl Way {
    /// It is about to ask for one of `limit` places, and holds `held`.
    pub fn asks(&mut self, now: u64, limit: u64, held: u64) -> Does {
        if now < self.until {
            return Does::GiveWay;
        }
        // A place was free for long enough.
        if held == 0 && self.ended.is_none_or(|ended| now >= ended + GIVES_WAY_MS) {
            self.begin(now);
        }
        if self.taken < PLACES.saturating_mul(limit) && now < self.alone + ALONE_MS {
            return Does::Ask;
        }
        self.begin(now);
        Does::Look
    }

    /// It has looked how many others wait.
    pub fn looked(&mut self, now: u64, others: i64) -> Does {
        let Some(further) = u64::try_from(others).ok().and_then(|others| others.checked_sub(1)) else {
            return Does::Ask;
        };
        self.until = now + MOST_MS.min(GIVES_WAY_MS + FURTHER_MS.saturating_mul(further));
        Does::GiveWay
    }

    /// It has taken a place, and holds `held` of the `used` by now.
    pub fn taken(&mut self, now: u64, held: u64, used: u64) {
        self.taken += 1;
        if used > held {
            self.alone = now;
        }
    }

    /// It has given back a place.
    pub fn ended(&mut self, now: u64) {
        self.ended = Some(now);
    }

    fn begin(&mut self, now: u64) {
        (self.taken, self.alone) = (0, now);
    }
}
