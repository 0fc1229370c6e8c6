//! Any words after a command's name, one a line, are parsed as documented or refused: as the arguments of a key, and as rows
//! of RL.ALL.

use redis_rl_core::limiter::several::{MAX_ROWS, Parts, Rows, RowsOfKey};
use redis_rl_core::limiter::{
    Algorithm, Calendar, Cost, MAX_SAFE_INTEGER, MAX_TIERS, Mode, Quota, UnixMs, WindowMs,
};
use redis_rl_core::request::{Arguments, Options, Refusal, Verb, parse_rows};

/// The units of a window, in milliseconds; seconds without one.
pub const UNITS: [(&str, i128); 7] = [
    ("MS", 1),
    ("S", 1_000),
    ("M", 60_000),
    ("H", 3_600_000),
    ("D", 86_400_000),
    ("W", 604_800_000),
    ("", 1_000),
];

/// The options, with what follows.
pub const OPTIONS: [(&str, Value); 5] = [
    ("COST", Value::From(-MOST)),
    ("AT", Value::From(0)),
    ("FORCE", Value::None),
    ("PARTIAL", Value::None),
    ("WITHIN", Value::Window),
];

/// What follows the name of an option.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// Nothing.
    None,
    /// An integer, from this one on.
    From(i128),
    /// The length of a window.
    Window,
}

/// The words of a row: key, algorithm, limit, window and cost.
const ROW_WORDS: usize = 5;

/// The largest limit, cost and time.
pub const MOST: i128 = MAX_SAFE_INTEGER as i128;

/// Checks lines as the arguments after a key, and as those of RL.ALL.
pub fn check(lines: &[u8]) {
    let words: Vec<&[u8]> = lines.split(|byte| *byte == b'\n').collect();
    check_request(&words);
    check_rows(&words);
}

/// Checks the parser of arguments after a key, with and without FORCE, PARTIAL and WITHIN as options.
pub fn check_request(words: &[&[u8]]) {
    for (verb, algorithm) in [
        (Verb::Take(Algorithm::Fixed), None),
        (Verb::Take(Algorithm::Log), Some(Algorithm::Log)),
        (Verb::Take(Algorithm::Bucket), Some(Algorithm::Bucket)),
        // It does not know yet how the key is counted.
        (Verb::Peek, None),
    ] {
        let meant = request(words, algorithm).filter(|meant| match meant.mode {
            Mode::AllOrNothing => true,
            Mode::Force | Mode::Partial => verb != Verb::Peek,
            Mode::Within(_) => verb == Verb::Take(Algorithm::Bucket),
        });
        assert_eq!(Arguments::parse(words, verb).map_err(assert_shown).ok(), meant);
    }
}

/// Checks the parser of rows.
pub fn check_rows(words: &[&[u8]]) {
    let (mut keys, mut parsed_rows) = (Parts::<_, (), _>::default(), Rows::new());
    let parsed = parse_rows(words, &mut keys, &mut parsed_rows).map_err(assert_shown).ok();
    let meant = rows(words);
    assert_eq!(parsed, meant.as_ref().map(|(_, options)| *options));
    let Some((rows, _)) = meant else { return };
    assert_eq!(parsed_rows.len(), rows.len());
    for (parsed, (name, ..)) in parsed_rows.iter().zip(&rows) {
        assert_eq!(keys[parsed.key].name, *name);
    }
    for (index, key) in keys.iter().enumerate() {
        assert!(keys[..index].iter().all(|other| other.name != key.name));
        let RowsOfKey { algorithm, cost, quotas, .. } = &key.task;
        let parsed: Vec<Row> = quotas.iter().map(|quota| (key.name, *algorithm, *quota, *cost)).collect();
        let meant: Vec<Row> = rows.iter().filter(|row| row.0 == key.name).copied().collect();
        assert_eq!(parsed, meant);
    }
}

/// A refusal is one for users, in printable ASCII.
fn assert_shown(refusal: Refusal) {
    if let Refusal::Text(text) = refusal {
        assert!(
            refusal != Refusal::INTERNAL && text.to_bytes().iter().all(|byte| matches!(byte, b' '..=b'~'))
        );
    }
}

/// The documented meaning of arguments; `None` if they are not valid. No limit or window looks like an option's name, so
/// the pairs end at the first of those.
fn request(words: &[&[u8]], algorithm: Option<Algorithm>) -> Option<Arguments> {
    let words = words.iter().map(|word| text(word)).collect::<Option<Vec<_>>>()?;
    let is_option = |word: &String| OPTIONS.iter().any(|(name, _)| word == name);
    let (pairs, options) = words.split_at(words.iter().position(is_option).unwrap_or(words.len()));
    let mut quotas: Vec<Quota> = Vec::new();
    for pair in pairs.chunks(2) {
        let [limit, window] = pair else { return None };
        let quota = quota(limit, window, algorithm)?;
        if quotas.iter().any(|other| other.window() == quota.window()) {
            return None;
        }
        quotas.push(quota);
    }
    if !(1..=MAX_TIERS).contains(&quotas.len()) {
        return None;
    }
    let (cost, mode, at) = chosen(options)?;
    Some(Arguments { quotas: quotas.into_iter().collect(), cost: cost.unwrap_or(Cost::ONE), mode, at })
}

/// A row of RL.ALL.
type Row<'a> = (&'a [u8], Algorithm, Quota, Cost);

/// The documented meaning of the arguments of RL.ALL; `None` if they are not valid.
fn rows<'a>(words: &[&'a [u8]]) -> Option<(Vec<Row<'a>>, Options)> {
    let mut rows: Vec<Row> = Vec::new();
    let chunks = words.chunks_exact(ROW_WORDS);
    let options = chunks.remainder().iter().map(|word| text(word)).collect::<Option<Vec<_>>>()?;
    for words in chunks {
        let [key, algorithm, limit, window, cost] = words else { return None };
        let name = text(algorithm)?.to_ascii_lowercase();
        let algorithm = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)?;
        let cost = Cost::new(integer(&text(cost)?, -MOST)? as i64)?;
        let row = (*key, algorithm, quota(&text(limit)?, &text(window)?, Some(algorithm))?, cost);
        let its: Vec<&Row> = rows.iter().filter(|other| other.0 == row.0).collect();
        let agrees =
            |other: &&Row| (other.1, other.3) == (row.1, row.3) && other.2.window() != row.2.window();
        if its.len() == MAX_TIERS || !its.iter().all(agrees) {
            return None;
        }
        rows.push(row);
    }
    let (None, mode @ (Mode::AllOrNothing | Mode::Force), at) = chosen(&options)? else { return None };
    let options = Options { cost: None, mode, at };
    (1..=MAX_ROWS).contains(&rows.len()).then_some((rows, options))
}

/// What options choose; `None` if they are not valid.
fn chosen(words: &[String]) -> Option<(Option<Cost>, Mode, Option<UnixMs>)> {
    let (mut cost, mut mode, mut at) = (None, Mode::AllOrNothing, None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (name, value) = OPTIONS.into_iter().find(|(name, _)| word == name)?;
        let number = match value {
            Value::None => 0,
            Value::From(least) => integer(words.next()?, least)?,
            Value::Window => i128::from(window(words.next()?, Some(Algorithm::Bucket))?.get()),
        };
        match name {
            "COST" if cost.is_none() => cost = Some(Cost::new(number as i64)?),
            "AT" if at.is_none() => at = Some(UnixMs::new(number as u64)?),
            "FORCE" if mode == Mode::AllOrNothing => mode = Mode::Force,
            "PARTIAL" if mode == Mode::AllOrNothing => mode = Mode::Partial,
            "WITHIN" if mode == Mode::AllOrNothing => mode = Mode::Within(WindowMs::new(number as u64)?),
            _ => return None,
        }
    }
    Some((cost, mode, at))
}

fn quota(limit: &str, window: &str, algorithm: Option<Algorithm>) -> Option<Quota> {
    Quota::new(integer(limit, 0)? as u64, self::window(window, algorithm)?)
}

/// A window of this algorithm. RL.FIXED, and a peek of a key that may be of it, have weeks and months of the calendar.
fn window(text: &str, algorithm: Option<Algorithm>) -> Option<WindowMs> {
    if algorithm.is_none_or(|algorithm| algorithm == Algorithm::Fixed) {
        let number = |unit| Some(integer(text.strip_suffix(unit)?, 1)? as u64);
        if let Some(calendar) = number("W").map(Calendar::Weeks).or(number("MO").map(Calendar::Months)) {
            return WindowMs::of_calendar(calendar);
        }
    }
    let (number, unit_ms) =
        UNITS.iter().find_map(|(unit, unit_ms)| Some((text.strip_suffix(unit)?, unit_ms)))?;
    let ms = integer(number, 1)?.checked_mul(*unit_ms)?;
    WindowMs::new(u64::try_from(ms).ok()?)
}

/// An integer in its only valid form, the one it is printed in, from `least` to the largest.
fn integer(text: &str, least: i128) -> Option<i128> {
    text.parse().ok().filter(|integer: &i128| integer.to_string() == text && (least..=MOST).contains(integer))
}

/// In upper case.
fn text(word: &[u8]) -> Option<String> {
    String::from_utf8(word.to_vec()).ok().map(|text| text.to_ascii_uppercase())
}
