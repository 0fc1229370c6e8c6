//! A limiter as versioned bytes, for RDB files, DUMP and replicas. Each content has exactly one encoding.
//!
//! Stored bytes are hostile: whatever [`encode`] could not have written is refused, and memory is allocated
//! only in proportion to the input.
//!
//! ```text
//! version: 1 byte, 1      tag: 1 byte      then integers as in limiter::varint
//! 1 fixed    for each counter: window in ms, window number, units
//! 2 sliding  for each counter: window in ms, window number, units, units of the previous window
//! 3 log      longest window in ms, time of the first entry, its units,
//!            then for each later entry: ms since the previous one, units
//! ```
//!
//! A later log entry of one unit, the usual case, omits its units. One with more begins with a zero, which
//! no time between two entries is, then its units, then the time. A log holds its entries in the same form, so
//! they are copied.

use std::fmt;

use crate::limiter::counters::{Counter, Counters, Method};
use crate::limiter::log::entry::{self, UNITS_FOLLOW};
use crate::limiter::log::large::Large;
use crate::limiter::log::{Entries, Entry, varint};
use crate::limiter::{Algorithm, Form, Limiter, MAX_TIERS, UnixMs, WindowMs};

/// The first byte. A change of the format takes the next number; old formats stay readable.
const VERSION: u8 = 1;

/// Tags are never reused.
const FIXED: u8 = 1;
const SLIDING: u8 = 2;
const LOG: u8 = 3;

/// Why bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// Unknown version of the format.
    Version,
    /// Unknown algorithm.
    Algorithm,
    /// The bytes are truncated, or a number is not in the form that [`encode`] writes.
    Malformed,
    /// A window, time or count that no limiter can have, or no counter at all.
    OutOfRange,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Invalid::Version => "unknown version of its format",
            Invalid::Algorithm => "unknown algorithm",
            Invalid::Malformed => "truncated or malformed",
            Invalid::OutOfRange => "a window, time or count is out of range",
        })
    }
}

/// Returns the bytes of a limiter.
pub fn encode(limiter: &Limiter) -> Vec<u8> {
    let mut out = vec![VERSION];
    match limiter.form() {
        Form::Counters(counters) => encode_counters(&mut out, counters.counters()),
        Form::Short(short) => encode_log(&mut out, &short),
        Form::Large(large) => encode_log(&mut out, large),
    }
    out
}

/// Returns the limiter of these bytes, or why they are not valid.
pub fn decode(bytes: &[u8]) -> Result<Limiter, Invalid> {
    let (version, bytes) = bytes.split_first().ok_or(Invalid::Malformed)?;
    if *version != VERSION {
        return Err(Invalid::Version);
    }
    let (tag, bytes) = bytes.split_first().ok_or(Invalid::Malformed)?;
    let mut input = Input(bytes);
    match *tag {
        FIXED => decode_counters(&mut input, Method::Fixed).map(Limiter::Counters),
        SLIDING => decode_counters(&mut input, Method::Sliding).map(Limiter::Counters),
        LOG => decode_log(&mut input).map(Limiter::from),
        _ => Err(Invalid::Algorithm),
    }
}

/// A valid encoding that no longer counts anything: one unit in the first millisecond of 1970. Stored in
/// place of a limiter that cannot be encoded.
pub const fn spent(algorithm: Algorithm) -> &'static [u8] {
    match algorithm {
        Algorithm::Fixed => &[VERSION, FIXED, 1, 0, 1],
        Algorithm::Sliding => &[VERSION, SLIDING, 1, 0, 1, 0],
        Algorithm::Log => &[VERSION, LOG, 1, 0, 1],
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

fn decode_counters(input: &mut Input, method: Method) -> Result<Counters, Invalid> {
    let mut counters = Vec::new();
    while !input.is_empty() {
        if counters.len() == MAX_TIERS {
            return Err(Invalid::OutOfRange);
        }
        let window = input.window()?;
        let number = input.integer()?;
        if number > UnixMs::MAX.window_number(window) {
            return Err(Invalid::OutOfRange);
        }
        let current = input.integer()?;
        let previous = if method == Method::Sliding { input.integer()? } else { 0 };
        counters.push(Counter { window, number, current, previous });
    }
    Counters::restore(method, counters).ok_or(Invalid::OutOfRange)
}

fn encode_log(out: &mut Vec<u8>, log: &impl Entries) {
    out.push(LOG);
    let mut pieces = log.pieces().filter(|piece| !piece.is_empty());
    let first = pieces.next().and_then(|piece| Some((piece, entry::read(piece)?)));
    let (Some(retention), Some((piece, ((since, units), length)))) = (log.retention(), first) else {
        return;
    };
    varint::put(out, retention.get());
    varint::put(out, log.front().mark.at_ms.wrapping_add(since));
    varint::put(out, units);
    out.extend_from_slice(&piece[length..]);
    pieces.for_each(|piece| out.extend_from_slice(piece));
}

fn decode_log(input: &mut Input) -> Result<Large, Invalid> {
    let retention = input.window()?;
    let at = UnixMs::new(input.integer()?).ok_or(Invalid::OutOfRange)?;
    let first = Entry { at, units: input.integer()? };
    let mut before = first.at;
    let mut error = None;
    let rest = std::iter::from_fn(|| {
        let entry = (!input.is_empty()).then(|| decode_entry(input, before))?;
        before = entry.map_or(before, |entry| entry.at);
        entry.map_err(|invalid| error = Some(invalid)).ok()
    });
    let log = Large::restore(retention, std::iter::once(first).chain(rest));
    match error {
        Some(invalid) => Err(invalid),
        None => log.ok_or(Invalid::OutOfRange),
    }
}

fn decode_entry(input: &mut Input, before: UnixMs) -> Result<Entry, Invalid> {
    let (mut since, mut units) = (input.integer()?, 1);
    if since == u64::from(UNITS_FOLLOW) {
        units = input.integer()?;
        if units < 2 {
            return Err(Invalid::Malformed);
        }
        since = input.integer()?;
    }
    let at = before.get().checked_add(since).and_then(UnixMs::new).ok_or(Invalid::OutOfRange)?;
    Ok(Entry { at, units })
}

/// The bytes not read yet.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn integer(&mut self) -> Result<u64, Invalid> {
        let (value, length) = varint::get(self.0).ok_or(Invalid::Malformed)?;
        self.0 = &self.0[length..];
        Ok(value)
    }

    fn window(&mut self) -> Result<WindowMs, Invalid> {
        WindowMs::new(self.integer()?).ok_or(Invalid::OutOfRange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spent_limiter_is_valid_and_counts_nothing() {
        for algorithm in Algorithm::ALL {
            let limiter = decode(spent(algorithm)).expect("it is valid");
            assert_eq!(limiter.algorithm(), algorithm);
            assert_eq!(limiter.used(WindowMs::MIN, UnixMs::saturating(2)), 0);
            assert_eq!(encode(&limiter), spent(algorithm));
        }
    }
}
