//! A limiter as bytes, for RDB files, DUMP and replicas: versioned, and one form for one content.
//!
//! Stored bytes are hostile. What [`encode`] could not have written is refused, and nothing is
//! allocated beyond the size of what is read.
//!
//! ```text
//! version: 1 byte, 1      tag: 1 byte      then integers as in limiter::varint
//! 1 fixed    for each counter: window in ms, window number, units
//! 2 sliding  for each counter: window in ms, window number, units, units of the window before
//! 3 log      window in ms, time of the first entry, its units,
//!            then for each entry: time since the one before, units
//! ```
//!
//! In a log an entry of one unit, the most frequent, leaves its units out; one of more has its
//! units first, after a zero, which no time between two entries is.

use crate::limiter::counters::{Counter, Counters, Method};
use crate::limiter::log::{Entry, Log};
use crate::limiter::{Limiter, MAX_TIERS, UnixMs, WindowMs, varint};

/// Comes first. A change of the format gets the next number, and the old ones stay readable.
const VERSION: u8 = 1;

/// Tags are never reused.
const FIXED: u8 = 1;
const SLIDING: u8 = 2;
const LOG: u8 = 3;

/// In place of a time between two entries: units follow.
const UNITS_FOLLOW: u64 = 0;

/// The one encoding of this content.
pub fn encode(limiter: &Limiter) -> Vec<u8> {
    let mut out = vec![VERSION];
    match limiter {
        Limiter::Counters(counters) => encode_counters(&mut out, counters),
        Limiter::Log(log) => encode_log(&mut out, log),
    }
    out
}

/// The limiter of this encoding; `None` if no limiter has it.
pub fn decode(bytes: &[u8]) -> Option<Limiter> {
    let [VERSION, tag, rest @ ..] = bytes else {
        return None;
    };
    let mut input = Input(rest);
    match *tag {
        FIXED => decode_counters(&mut input, Method::Fixed).map(Limiter::Counters),
        SLIDING => decode_counters(&mut input, Method::Sliding).map(Limiter::Counters),
        LOG => decode_log(&mut input).map(|log| Limiter::Log(Box::new(log))),
        _ => None,
    }
}

fn encode_counters(out: &mut Vec<u8>, counters: &Counters) {
    out.push(match counters.method() {
        Method::Fixed => FIXED,
        Method::Sliding => SLIDING,
    });
    for counter in counters.iter() {
        varint::put(out, counter.window.get());
        varint::put(out, counter.number);
        varint::put(out, counter.current);
        if counters.method() == Method::Sliding {
            varint::put(out, counter.previous);
        }
    }
}

fn decode_counters(input: &mut Input, method: Method) -> Option<Counters> {
    let mut counters = Vec::new();
    while !input.is_empty() {
        if counters.len() == MAX_TIERS {
            return None;
        }
        let window = WindowMs::new(input.integer()?)?;
        let number = input.integer().filter(|number| *number <= UnixMs::MAX.0 / window.get())?;
        let current = input.integer()?;
        let previous = if method == Method::Sliding { input.integer()? } else { 0 };
        counters.push(Counter { window, number, current, previous });
    }
    Counters::restore(method, counters)
}

fn encode_log(out: &mut Vec<u8>, log: &Log) {
    out.push(LOG);
    let mut entries = log.iter();
    let (Some(keep), Some(first)) = (log.keep(), entries.next()) else {
        return;
    };
    varint::put(out, keep.get());
    varint::put(out, first.at.0);
    varint::put(out, first.units);
    let mut before = first;
    for entry in entries {
        if entry.units > 1 {
            varint::put(out, UNITS_FOLLOW);
            varint::put(out, entry.units);
        }
        varint::put(out, entry.at.since(before.at));
        before = entry;
    }
}

fn decode_log(input: &mut Input) -> Option<Log> {
    let keep = WindowMs::new(input.integer()?)?;
    let first = Entry { at: UnixMs(input.integer()?), units: input.integer()? };
    let mut before = first;
    let rest = std::iter::from_fn(|| {
        if input.is_empty() {
            return None;
        }
        let entry = decode_entry(input, before.at);
        before = entry.unwrap_or(before);
        Some(entry)
    });
    let sound = |entry: Option<Entry>| entry.filter(|entry| entry.at <= UnixMs::MAX);
    // The first entry that is none ends it: `restore` stops there.
    Log::restore(keep, std::iter::once(Some(first)).chain(rest).map(sound))
}

fn decode_entry(input: &mut Input, before: UnixMs) -> Option<Entry> {
    let mut units = 1;
    let mut since = input.integer()?;
    if since == UNITS_FOLLOW {
        units = input.integer().filter(|units| *units > 1)?;
        since = input.integer()?;
    }
    Some(Entry { at: UnixMs(before.0.checked_add(since)?), units })
}

/// What is still to be read.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn integer(&mut self) -> Option<u64> {
        let (value, length) = varint::get(self.0)?;
        self.0 = &self.0[length..];
        Some(value)
    }
}
