//! Counters for INFO, since the module was loaded: requests allowed, limited and forced, the units that they
//! counted, and error replies.
//!
//! Only requests of clients count, not commands from a master or an append-only file. Errors count wherever they
//! come from.

// What single commands call is inlined: see `command/take.rs`.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

use redis_rl_core::limiter::{Algorithm, Change, Cost, Verdict};

/// Adds to a counter. A load and a store suffice: one command runs at a time, whichever thread it runs on.
#[inline(always)]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

struct Outcomes {
    allowed: AtomicU64,
    limited: AtomicU64,
    forced: AtomicU64,
}

impl Outcomes {
    const fn none() -> Outcomes {
        Outcomes { allowed: AtomicU64::new(0), limited: AtomicU64::new(0), forced: AtomicU64::new(0) }
    }

    #[inline(always)]
    fn note(&self, limited: bool, counted: bool) {
        let outcome = match (limited, counted) {
            (false, _) => &self.allowed,
            (true, false) => &self.limited,
            (true, true) => &self.forced,
        };
        add(outcome, 1);
    }
}

static OUTCOMES: [Outcomes; Algorithm::ALL.len()] = [const { Outcomes::none() }; Algorithm::ALL.len()];
static ALL: Outcomes = Outcomes::none();
static PEEK: Outcomes = Outcomes::none();
static UNITS_COUNTED: AtomicU64 = AtomicU64::new(0);
static UNITS_GIVEN_BACK: AtomicU64 = AtomicU64::new(0);
static ERRORS: AtomicU64 = AtomicU64::new(0);

/// Every figure with its name in INFO.
pub fn figures() -> impl Iterator<Item = (&'static CStr, u64)> {
    let of_algorithms = Algorithm::ALL.into_iter().flat_map(|algorithm| {
        let Outcomes { allowed, limited, forced } = outcomes(algorithm);
        names(algorithm).into_iter().zip([allowed, limited, forced])
    });
    let all = of_algorithms.chain([
        (c"all_allowed", &ALL.allowed),
        (c"all_limited", &ALL.limited),
        (c"all_forced", &ALL.forced),
        (c"peek_allowed", &PEEK.allowed),
        (c"peek_limited", &PEEK.limited),
        (c"units_counted", &UNITS_COUNTED),
        (c"units_given_back", &UNITS_GIVEN_BACK),
        (c"errors", &ERRORS),
    ]);
    all.map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
}

fn names(algorithm: Algorithm) -> [&'static CStr; 3] {
    match algorithm {
        Algorithm::Fixed => [c"fixed_allowed", c"fixed_limited", c"fixed_forced"],
        Algorithm::Sliding => [c"sliding_allowed", c"sliding_limited", c"sliding_forced"],
        Algorithm::Log => [c"log_allowed", c"log_limited", c"log_forced"],
        Algorithm::Bucket => [c"bucket_allowed", c"bucket_limited", c"bucket_forced"],
    }
}

/// Notes the outcome of a request. One that is limited and yet `counted` all of its units was forced. [`units`] notes how many.
#[inline(always)]
pub fn answered(algorithm: Algorithm, limited: bool, counted: bool) {
    outcomes(algorithm).note(limited, counted);
}

#[inline(always)]
fn outcomes(algorithm: Algorithm) -> &'static Outcomes {
    &OUTCOMES[algorithm as usize]
}

/// Notes the outcome of RL.ALL, as [`answered`] does. [`units`] notes how many units each key counted.
pub fn all_answered(limited: bool, counted: bool) {
    ALL.note(limited, counted);
}

/// Notes the units counted or given back in one key.
#[inline(always)]
pub fn units(cost: Cost, change: Change) {
    if change.units > 0 {
        let counter = if cost.get() > 0 { &UNITS_COUNTED } else { &UNITS_GIVEN_BACK };
        add(counter, change.units);
    }
}

#[inline(always)]
pub fn peeked(verdict: &Verdict) {
    PEEK.note(verdict.limited, false);
}

pub fn refused() {
    add(&ERRORS, 1);
}
