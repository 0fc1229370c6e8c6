//! A limiter as versioned bytes, for RDB files, DUMP and replicas. Each content has exactly one encoding.
//!
//! Stored bytes are hostile: whatever [`encode`] could not have written is refused, and memory is allocated
//! only in proportion to the input.
//!
//! ```text
//! version: 1 byte, 1      tag: 1 byte      then integers as in limiter::log::varint
//! 1 fixed    for each counter: window in ms, or 2^40 + weeks, or 2^41 + months of the calendar; window number, units
//! 2 sliding  for each counter: window in ms, window number, units, units of the previous window
//! 3 log      longest window in ms, time of the first entry, its units,
//!            then for each later entry: ms since the previous one, units
//! 4 bucket   for each bucket: window in ms, time, limit, level / window, level % window
//!            if whoever counted last was told to wait: window in ms, time, limit + 2^53, level / limit, level % limit
//! ```
//!
//! A later log entry of one unit, the usual case, omits its units. One with more begins with a zero, which
//! no time between two entries is, then its units, then the time. A log in memory has the same bytes, so they are
//! copied.
//!
//! An effect is one word of text, for replicas and append-only files: see [`EffectWord`].

use std::error::Error;
use std::fmt;

use arrayvec::ArrayVec;

use crate::limiter::counters::{ByCalendar, Counter, Counters, Method, Numbering};
use crate::limiter::log::entry::{self, UNITS_FOLLOW};
use crate::limiter::log::large::Large;
use crate::limiter::log::{Entries, Entry, varint};
use crate::limiter::state::Form;
use crate::limiter::{
    Algorithm, Bucket, Cost, Effect, Limiter, MAX_SAFE_INTEGER, MAX_TIERS, MostAhead, MoveBack, Moved, Quota,
    QuotaList, Recorded, TimeSource, UnixMs, WindowMs, digits, leading_integer, words,
};

/// The first byte. A change of the format takes the next number; old formats stay readable.
const VERSION: u8 = 1;

/// The tags of the algorithms. None is ever used for another algorithm: old payloads have it.
const FIXED: u8 = 1;
const SLIDING: u8 = 2;
const LOG: u8 = 3;
const BUCKET: u8 = 4;

const fn tag(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::Fixed => FIXED,
        Algorithm::Sliding => SLIDING,
        Algorithm::Log => LOG,
        Algorithm::Bucket => BUCKET,
    }
}

/// Why bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// Unknown version of the format.
    Version,
    /// Unknown algorithm.
    Algorithm,
    /// The bytes are truncated, or a number is not in the form that [`encode`] writes.
    Malformed,
    /// A window, time or count that no limiter can have.
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

impl Error for Invalid {}

/// Returns the bytes of a limiter, which must not be empty: of one that is, [`decode`] refuses them.
pub fn encode(limiter: &Limiter) -> Vec<u8> {
    let mut out = vec![VERSION, tag(limiter.algorithm())];
    match limiter.form() {
        Form::Counters(counters) => encode_counters(&mut out, counters),
        Form::Short(short) => encode_log(&mut out, &short),
        Form::Large(large) => encode_log(&mut out, large),
        Form::Buckets(buckets) => buckets.iter().for_each(|bucket| encode_bucket(&mut out, &bucket)),
    }
    out
}

/// Returns the limiter of these bytes.
///
/// # Errors
///
/// Why [`encode`] cannot have written them.
pub fn decode(bytes: &[u8]) -> Result<Limiter, Invalid> {
    let (version, bytes) = bytes.split_first().ok_or(Invalid::Malformed)?;
    if *version != VERSION {
        return Err(Invalid::Version);
    }
    let (tag, bytes) = bytes.split_first().ok_or(Invalid::Malformed)?;
    let mut input = Input(bytes);
    let algorithm = Algorithm::ALL.into_iter().find(|algorithm| self::tag(*algorithm) == *tag);
    match algorithm.ok_or(Invalid::Algorithm)? {
        Algorithm::Fixed => decode_counters(&mut input, Method::Fixed).map(Limiter::Counters),
        Algorithm::Sliding => decode_counters(&mut input, Method::Sliding).map(Limiter::Counters),
        Algorithm::Log => decode_log(&mut input).map(Limiter::from),
        Algorithm::Bucket => decode_buckets(&mut input),
    }
}

/// A valid encoding that no longer counts anything: one unit in the first millisecond of 1970. Stored in
/// place of a limiter that cannot be encoded.
pub const fn spent(algorithm: Algorithm) -> &'static [u8] {
    match algorithm {
        Algorithm::Fixed => &[VERSION, FIXED, 1, 0, 1],
        Algorithm::Sliding => &[VERSION, SLIDING, 1, 0, 1, 0],
        Algorithm::Log => &[VERSION, LOG, 1, 0, 1],
        Algorithm::Bucket => &[VERSION, BUCKET, 1, 0, 1, 1, 0],
    }
}

fn encode_counters(out: &mut Vec<u8>, counters: &Counters) {
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
        let window = match method {
            Method::Fixed => WindowMs::of_number(input.integer()?).ok_or(Invalid::OutOfRange)?,
            Method::Sliding => input.window()?,
        };
        let number = input.integer()?;
        if number > ByCalendar.number(window, UnixMs::MAX) {
            return Err(Invalid::OutOfRange);
        }
        let current = input.integer()?;
        let previous = if method == Method::Sliding { input.integer()? } else { 0 };
        counters.push(Counter { window, number, current, previous });
    }
    Counters::restore(method, counters).ok_or(Invalid::OutOfRange)
}

fn encode_log(out: &mut Vec<u8>, log: &impl Entries) {
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
    let mut entry = Entry { at, units: input.integer()? };
    let mut log = Large::with_entries(Some(retention), TimeSource::Unknown, std::iter::empty());
    loop {
        log.restore(entry).ok_or(Invalid::OutOfRange)?;
        if input.is_empty() {
            return Ok(log);
        }
        entry = decode_entry(input, entry.at)?;
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

/// Added to the limit of a bucket for whose units somebody waits.
const LIMIT_OF_AWAITED: u64 = MAX_SAFE_INTEGER + 1;

fn encode_bucket(out: &mut Vec<u8>, bucket: &Bucket) {
    let Bucket { window, last, limit, level, awaited } = *bucket;
    // While somebody waits the level may be too high for whole units, but never for the milliseconds until the bucket is full.
    let (mark, by) = if awaited { (LIMIT_OF_AWAITED, limit) } else { (0, window.get()) };
    let (whole, rest) = ((level / u128::from(by)) as u64, (level % u128::from(by)) as u64);
    for figure in [window.get(), last.get(), limit | mark, whole, rest] {
        varint::put(out, figure);
    }
}

fn decode_buckets(input: &mut Input) -> Result<Limiter, Invalid> {
    let mut buckets = ArrayVec::<_, MAX_TIERS>::new();
    while !input.is_empty() {
        let window = input.window()?;
        let last = UnixMs::new(input.integer()?).ok_or(Invalid::OutOfRange)?;
        let (limit, whole, rest) = (input.integer()?, input.integer()?, input.integer()?);
        let (awaited, limit) = (limit & LIMIT_OF_AWAITED != 0, limit & !LIMIT_OF_AWAITED);
        let by = if awaited { limit } else { window.get() };
        if rest >= by {
            return Err(Invalid::OutOfRange);
        }
        let level = u128::from(whole) * u128::from(by) + u128::from(rest);
        buckets.try_push(Bucket { window, last, limit, level, awaited }).map_err(|_| Invalid::OutOfRange)?;
    }
    Limiter::of_buckets(&buckets).ok_or(Invalid::OutOfRange)
}

/// The bytes that are not read yet.
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

/// An effect as text:
///
/// ```text
/// F:1700000000000/10s                 RL.FIXED counted a unit at this time, in a window of 10 seconds
/// F:1700000000000/10s>1700000010000   the same, and from then on the key expires at that time
/// F:1700000000000/1d/1mo              the same, in a day and in a month of the calendar
/// L-5:1700000000000/1m/1h             RL.LOG gave back 5 units as of this time, in two windows
/// L:1700000000000/1h/forget           RL.LOG counted a unit and forgot its oldest entry
/// B5:1700000000000/100/1m             RL.BUCKET counted 5 units, with a limit of 100 in a window of a minute
/// B5:1700000000000/100/1m/ahead       RL.BUCKET counted 5 units WITHIN a time, and somebody waits for them
/// F:1700000000000/10s<1700000000000   RL.FIXED first moved the key back, which was too far ahead of the clock at this time
/// <1700000000000+1m>1700000010000     nothing was counted, but the key, which was written with AT, was moved back
/// B:1700000000000/5/1m<=1700000000000 RL.BUCKET did so, and first moved back all that was ahead of the clock
/// >1700000010000                      nothing was counted, but from then on the key expires at that time
/// DEL                                 the key was deleted
/// ```
///
/// The letter of the algorithm; the units, unless it is one; the time in milliseconds; each window in its largest whole
/// unit, after the limit if the algorithm counts by that. Each effect has exactly one word.
pub type EffectWord = ArrayVec<u8, MOST_EFFECT_BYTES>;

/// A letter, units with a sign, a time, eight limits and windows in milliseconds, `/forget`, `<`, the time of the clock and `+1m`, and the
/// time at which the key expires.
const MOST_EFFECT_BYTES: usize = 1 + 17 + 17 + MAX_TIERS * (17 + 15) + 7 + 20 + 17;

const DELETED: &[u8] = b"DEL";
const TIME: &[u8] = b":";
const FORGET: &[u8] = b"forget";
/// Somebody waits for the units.
const AHEAD: &[u8] = b"ahead";
const MOVED_BACK: &[u8] = b"<";
const ALL_MOVED_BACK: &[u8] = b"<=";
const AND_MINUTE: &[u8] = b"+1m";
const EXPIRES: u8 = b'>';

fn letter(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::Fixed => b'F',
        Algorithm::Sliding => b'S',
        Algorithm::Log => b'L',
        Algorithm::Bucket => b'B',
    }
}

/// Returns the word of an effect.
pub fn encode_effect(effect: &Effect) -> EffectWord {
    let mut word = EffectWord::new();
    match effect {
        Effect::Recorded(recorded) => put_recorded(&mut word, recorded),
        Effect::Moved(moved) => put_moved(&mut word, moved),
        Effect::Deleted => put(&mut word, DELETED),
    }
    word
}

fn put_recorded(word: &mut EffectWord, recorded: &Recorded) {
    let Recorded { algorithm, units, at, quotas, forgot, awaited, moved } = recorded;
    word.push(letter(*algorithm));
    if *units != Cost::ONE {
        put(word, if units.get() < 0 { b"-" } else { b"" });
        put_integer(word, units.get().unsigned_abs());
    }
    put(word, TIME);
    put_integer(word, at.get());
    for quota in quotas {
        word.push(b'/');
        if algorithm.counts_by_limit() {
            put_integer(word, quota.limit());
            word.push(b'/');
        }
        put(word, quota.window().word().as_bytes());
    }
    for (name, is_so) in [(FORGET, forgot), (AHEAD, awaited)] {
        if *is_so {
            word.push(b'/');
            put(word, name);
        }
    }
    put_moved(word, moved);
}

fn put_moved(word: &mut EffectWord, Moved { back, expires }: &Moved) {
    if let Some(MoveBack { clock, most }) = back {
        let (before, after): (_, &[u8]) = match most {
            MostAhead::Window => (MOVED_BACK, b""),
            MostAhead::WindowAndMinute => (MOVED_BACK, AND_MINUTE),
            MostAhead::Nothing => (ALL_MOVED_BACK, b""),
        };
        put(word, before);
        put_integer(word, clock.get());
        put(word, after);
    }
    if let Some(at) = expires {
        word.push(EXPIRES);
        put_integer(word, at.get());
    }
}

fn put(word: &mut EffectWord, bytes: &[u8]) {
    word.try_extend_from_slice(bytes).expect("the longest effect fits");
}

fn put_integer(word: &mut EffectWord, integer: u64) {
    put(word, digits(integer, &mut [0; 20]));
}

/// Returns the effect of this word; `None` if [`encode_effect`] cannot have written it.
///
/// It checks the form while it reads. To encode the result and to compare the words would be shorter, but take 900 instructions.
pub fn decode_effect(word: &[u8]) -> Option<Effect> {
    let (first, mut word) = match word {
        DELETED => return Some(Effect::Deleted),
        [b'<' | EXPIRES, ..] => return parse_moved(word).map(Effect::Moved),
        _ => word.split_first()?,
    };
    let algorithm = Algorithm::ALL.into_iter().find(|algorithm| letter(*algorithm) == *first)?;
    let units = match word.first()? {
        b'-' | b'0'..=b'9' => read_units(&mut word)?,
        _ => Cost::ONE,
    };
    word = word.strip_prefix(TIME)?;
    let at = UnixMs::new(read_integer(&mut word)?)?;
    let (mut quotas, mut forgot, mut awaited) = (QuotaList::new(), false, false);
    while let Some(rest) = word.strip_prefix(b"/") {
        word = rest;
        if algorithm == Algorithm::Log
            && units.to_take() > 0
            && let Some(rest) = word.strip_prefix(FORGET)
        {
            (word, forgot) = (rest, true);
            quotas.iter_mut().for_each(|quota| *quota = Recorded::stand_in(quota.window(), forgot));
            break;
        }
        if algorithm == Algorithm::Bucket
            && units.to_take() > 0
            && let Some(rest) = word.strip_prefix(AHEAD)
        {
            (word, awaited) = (rest, true);
            break;
        }
        let quota = if algorithm.counts_by_limit() {
            let limit = read_integer(&mut word)?;
            word = word.strip_prefix(b"/")?;
            Quota::new(limit, read_window(&mut word, algorithm)?)?
        } else {
            Recorded::stand_in(read_window(&mut word, algorithm)?, forgot)
        };
        if quotas.iter().any(|other| other.window() == quota.window()) {
            return None;
        }
        quotas.try_push(quota).ok()?;
    }
    let moved = parse_moved(word)?;
    if quotas.is_empty() {
        return None;
    }
    Some(Effect::Recorded(Recorded { algorithm, units, at, quotas, forgot, awaited, moved }))
}

/// Reads units from the start of `word`, and leaves the rest there: neither 0 nor 1, which are never written.
fn read_units(word: &mut &[u8]) -> Option<Cost> {
    let sign = if let Some(rest) = word.strip_prefix(b"-") {
        *word = rest;
        -1
    } else {
        1
    };
    let units = sign * i64::try_from(read_integer(word)?).ok()?;
    Cost::new(units).filter(|units| units.get() != 0 && *units != Cost::ONE)
}

/// Reads a window, which only of RL.FIXED may be one of the calendar.
fn read_window(word: &mut &[u8], algorithm: Algorithm) -> Option<WindowMs> {
    words::read_window(word).filter(|window| algorithm == Algorithm::Fixed || !window.is_of_calendar())
}

fn read_integer(word: &mut &[u8]) -> Option<u64> {
    let (integer, rest) = leading_integer(word)?;
    *word = rest;
    Some(integer)
}

/// What the end of a word says of the key's times.
fn parse_moved(mut word: &[u8]) -> Option<Moved> {
    let mut moved = Moved::default();
    if let Some(rest) = word.strip_prefix(MOVED_BACK) {
        let of_all = word.strip_prefix(ALL_MOVED_BACK);
        word = of_all.unwrap_or(rest);
        let clock = UnixMs::new(read_integer(&mut word)?)?;
        let most = match word.strip_prefix(AND_MINUTE) {
            _ if of_all.is_some() => MostAhead::Nothing,
            None => MostAhead::Window,
            Some(rest) => {
                word = rest;
                MostAhead::WindowAndMinute
            }
        };
        moved.back = Some(MoveBack { clock, most });
    }
    if let [EXPIRES, rest @ ..] = word {
        word = rest;
        moved.expires = Some(UnixMs::new(read_integer(&mut word)?)?);
    }
    word.is_empty().then_some(moved)
}
