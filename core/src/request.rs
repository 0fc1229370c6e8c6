//! Parses the [`Arguments`] of a command, or refuses them.
//!
//! Every text by which a command of the module is refused is in this file, whatever runs it.

use std::ffi::CStr;

use crate::limiter::several::{MAX_ROWS, Parts, Row, Rows, RowsOfKey};
use crate::limiter::{
    Algorithm, Cost, Mismatch, Mode, Quota, QuotaList, UnixMs, Verdict, WindowMs, leading_integer, words,
};

/// An error reply. Except for [`Refusal::INTERNAL`], the command has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The server's own text for a wrong number of arguments.
    Arity,
    /// This text, beginning with the error code.
    Text(&'static CStr),
}

impl Refusal {
    /// The key holds a value of another type.
    pub const WRONG_TYPE: Refusal =
        Refusal::Text(c"WRONGTYPE Operation against a key holding the wrong kind of value");
    /// RL.LOAD: the key exists.
    pub const BUSY_KEY: Refusal = Refusal::Text(c"BUSYKEY Target key name already exists.");
    /// RL.LOAD: the payload is not a valid limiter.
    pub const PAYLOAD: Refusal = Refusal::Text(c"ERR payload is not valid");
    /// RL.APPLY: an effect is not valid.
    pub const EFFECT: Refusal = Refusal::Text(c"ERR effect is not valid");
    const LIMIT: Refusal = Refusal::Text(c"ERR limit must be an integer from 0 to 9007199254740991");
    const WINDOW: Refusal = Refusal::Text(
        c"ERR window must be a positive integer with a unit of ms, s, m, h, d or w, or none for seconds, from 1ms to 3650d; in RL.FIXED also 1mo to 120mo",
    );
    const MONTHS: Refusal = Refusal::Text(c"ERR window in months is only for RL.FIXED");
    const SAME_WINDOW: Refusal = Refusal::Text(c"ERR window must be different in each limit window pair");
    const PAIRS: Refusal = Refusal::Text(c"ERR limit window pairs must be from 1 to 8");
    const COST: Refusal =
        Refusal::Text(c"ERR COST must be an integer from -9007199254740991 to 9007199254740991");
    const AT: Refusal =
        Refusal::Text(c"ERR AT must be a Unix time in milliseconds from 0 to 9007199254740991");
    const ALGORITHM: Refusal = Refusal::Text(c"ERR algorithm must be FIXED, SLIDING, LOG or BUCKET");
    const ROW_COST: Refusal =
        Refusal::Text(c"ERR cost must be an integer from -9007199254740991 to 9007199254740991");
    const ROW: Refusal = Refusal::Text(c"ERR each row must be key algorithm limit window cost");
    const ROWS: Refusal = Refusal::Text(c"ERR rows must be from 1 to 64");
    const ROWS_OF_A_KEY: Refusal = Refusal::Text(c"ERR rows of one key must be from 1 to 8");
    const ROWS_DIFFER: Refusal =
        Refusal::Text(c"ERR rows of one key must have the same algorithm and the same cost");
    const ROWS_OF_A_WINDOW: Refusal = Refusal::Text(c"ERR window must be different in each row of one key");
    /// An option that the command does not have, or has already.
    pub const SYNTAX: Refusal = Refusal::Text(c"ERR syntax error");
    const FORCE_AND_PARTIAL: Refusal =
        Refusal::Text(c"ERR FORCE and PARTIAL options at the same time are not compatible");
    const PARTIAL: Refusal =
        Refusal::Text(c"ERR PARTIAL is an option of RL.FIXED, RL.SLIDING, RL.LOG and RL.BUCKET only");
    const WITHIN: Refusal = Refusal::Text(
        c"ERR WITHIN must be a positive integer with a unit of ms, s, m, h, d or w, or none for seconds, from 1ms to 3650d",
    );
    const WITHIN_AND_OTHERS: Refusal =
        Refusal::Text(c"ERR WITHIN and FORCE or PARTIAL options at the same time are not compatible");
    const WITHIN_OF_BUCKET: Refusal = Refusal::Text(c"ERR WITHIN is an option of RL.BUCKET only");
    const LIVE_WINDOWS: Refusal =
        Refusal::Text(c"ERR window must be one of at most 8 in a key that still count");
    /// Without a server: a word is longer than [`MAX_WORD_BYTES`](crate::memory::MAX_WORD_BYTES).
    pub const LONG_WORD: Refusal = Refusal::Text(c"ERR each word must have at most 65536 bytes");
    /// Without a server: [`OUT_OF_MEMORY`](crate::memory::OUT_OF_MEMORY), as a command returns it.
    pub const OUT_OF_MEMORY: Refusal =
        Refusal::Text(c"OOM command not allowed when this process is out of memory.");
    /// A panic was caught, or the server failed: not the caller's fault.
    pub const INTERNAL: Refusal = Refusal::Text(c"ERR internal error of the rl module, see the server's log");
}

impl From<Mismatch> for Refusal {
    fn from(error: Mismatch) -> Refusal {
        match error {
            Mismatch::OtherAlgorithm(algorithm) => Refusal::Text(match algorithm {
                Algorithm::Fixed => c"WRONGTYPE key is counted by RL.FIXED",
                Algorithm::Sliding => c"WRONGTYPE key is counted by RL.SLIDING",
                Algorithm::Log => c"WRONGTYPE key is counted by RL.LOG",
                Algorithm::Bucket => c"WRONGTYPE key is counted by RL.BUCKET",
            }),
            Mismatch::TooManyWindows => Refusal::LIVE_WINDOWS,
            Mismatch::Months => Refusal::MONTHS,
            Mismatch::SameWindow => Refusal::SAME_WINDOW,
        }
    }
}

/// A command for applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// RL.FIXED, RL.SLIDING, RL.LOG or RL.BUCKET.
    Take(Algorithm),
    /// RL.ALL.
    All,
    /// RL.PEEK.
    Peek,
    /// RL.INFO.
    Info,
}

impl Verb {
    /// The name of the command.
    pub const fn name(self) -> &'static CStr {
        match self {
            Verb::Take(algorithm) => algorithm.command(),
            Verb::All => c"RL.ALL",
            Verb::Peek => c"RL.PEEK",
            Verb::Info => c"RL.INFO",
        }
    }

    /// Number of words, the name included; `-n` means at least `n`.
    pub const fn arity(self) -> i32 {
        match self {
            Verb::Take(_) | Verb::Peek => -4,
            Verb::All => -6,
            Verb::Info => 2,
        }
    }
}

/// The options of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Units to take, or to give back if negative; 1 by default. Each row of RL.ALL has its own.
    pub cost: Option<Cost>,
    /// What becomes of the request if it is over the limit.
    pub mode: Mode,
    /// Decide as of this time instead of the clock's.
    pub at: Option<UnixMs>,
}

impl Options {
    /// Parses the options of a command: in any order, in either case, each at most once.
    fn parse<W: AsRef<[u8]>>(words: &[W], verb: Verb) -> Result<Options, Refusal> {
        let (takes_cost, takes_force) = (verb != Verb::All, verb != Verb::Peek);
        let takes_partial = matches!(verb, Verb::Take(_));
        let mut parsed = Options::default();
        let mut words = words.iter().map(W::as_ref);
        while let Some(name) = words.next() {
            if name.eq_ignore_ascii_case(b"COST") && takes_cost && parsed.cost.is_none() {
                let value = words.next().ok_or(Refusal::SYNTAX)?;
                parsed.cost = Some(parse_cost(value).ok_or(Refusal::COST)?);
            } else if name.eq_ignore_ascii_case(b"AT") && parsed.at.is_none() {
                let value = words.next().ok_or(Refusal::SYNTAX)?;
                parsed.at = Some(parse_safe_integer(value).and_then(UnixMs::new).ok_or(Refusal::AT)?);
            } else if name.eq_ignore_ascii_case(b"FORCE") && takes_force {
                parsed.set_mode(Mode::Force)?;
            } else if name.eq_ignore_ascii_case(b"PARTIAL") {
                if !takes_partial {
                    return Err(Refusal::PARTIAL);
                }
                parsed.set_mode(Mode::Partial)?;
            } else if name.eq_ignore_ascii_case(b"WITHIN") {
                if verb != Verb::Take(Algorithm::Bucket) {
                    return Err(Refusal::WITHIN_OF_BUCKET);
                }
                let value = words.next().ok_or(Refusal::SYNTAX)?;
                parsed.set_mode(Mode::Within(
                    parse_window(value, Some(Algorithm::Bucket)).map_err(|_| Refusal::WITHIN)?,
                ))?;
            } else if verb == Verb::All && parsed == Options::default() {
                // What follows the rows begins with no option, so it is part of one more.
                return Err(Refusal::ROW);
            } else {
                return Err(Refusal::SYNTAX);
            }
        }
        Ok(parsed)
    }

    fn set_mode(&mut self, mode: Mode) -> Result<(), Refusal> {
        match (self.mode, mode) {
            (Mode::AllOrNothing, _) => self.mode = mode,
            (Mode::Within(_), Mode::Within(_)) => return Err(Refusal::SYNTAX),
            (Mode::Within(_), _) | (_, Mode::Within(_)) => return Err(Refusal::WITHIN_AND_OTHERS),
            (other, _) if other == mode => return Err(Refusal::SYNTAX),
            _ => return Err(Refusal::FORCE_AND_PARTIAL),
        }
        Ok(())
    }
}

/// The arguments of a command about one key: everything after the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The tiers, in the caller's order.
    pub quotas: QuotaList,
    /// Units to take, or to give back if negative; 1 by default.
    pub cost: Cost,
    /// What becomes of it if it is over the limit. RL.PEEK, which counts nothing, has no such option.
    pub mode: Mode,
    /// Decide as of this time instead of the clock's.
    pub at: Option<UnixMs>,
}

impl Arguments {
    /// Parses `limit window [limit window ...]` and options, as this command takes them.
    ///
    /// # Errors
    ///
    /// The first word that is wrong, from left to right, or that words are missing.
    pub fn parse<W: AsRef<[u8]>>(mut words: &[W], verb: Verb) -> Result<Self, Refusal> {
        let mut parsed =
            Arguments { quotas: QuotaList::new(), cost: Cost::ONE, mode: Mode::AllOrNothing, at: None };
        let algorithm = if let Verb::Take(algorithm) = verb { Some(algorithm) } else { None };
        while let [limit, rest @ ..] = words {
            let limit = limit.as_ref();
            // After the first pair, only what looks like a number is a limit: a misspelt option is a syntax error.
            if !parsed.quotas.is_empty() && !looks_like_a_number(limit) {
                break;
            }
            let Some(window) = rest.first() else {
                return Err(parse_safe_integer(limit).map_or(Refusal::LIMIT, |_| Refusal::Arity));
            };
            add_tier(&mut parsed.quotas, parse_quota(limit, window.as_ref(), algorithm)?)?;
            words = &rest[1..];
        }
        if parsed.quotas.is_empty() {
            return Err(Refusal::Arity);
        }
        if !words.is_empty() {
            let Options { cost, mode, at } = Options::parse(words, verb)?;
            parsed = Arguments { cost: cost.unwrap_or(Cost::ONE), mode, at, ..parsed };
        }
        Ok(parsed)
    }
}

/// Words in a row: `key algorithm limit window cost`.
pub const ROW_WORDS: usize = 5;

/// Words of all the options of RL.ALL together: `FORCE AT time`.
const MOST_OPTION_WORDS: usize = 3;

// The number of words alone tells how many are rows, so the options must be fewer than a row.
const _: () = assert!(MOST_OPTION_WORDS < ROW_WORDS);

/// Parses `key algorithm limit window cost [...]` and options of RL.ALL. Appends to `keys` and `rows`, of which to return copies would be
/// slow.
///
/// # Errors
///
/// As those of [`Arguments::parse`]. The lists hold some of the rows then.
#[inline]
pub fn parse_rows<W: AsRef<[u8]> + Copy, K>(
    words: &[W],
    keys: &mut Parts<W, K, RowsOfKey>,
    rows: &mut Rows,
) -> Result<Options, Refusal> {
    let count = count_rows(words.len())?;
    let (row_words, options) = words.split_at(count * ROW_WORDS);
    for words in row_words.chunks_exact(ROW_WORDS) {
        let [name, algorithm, limit, window, cost] = words else { return Err(Refusal::Arity) };
        let algorithm = parse_algorithm(algorithm.as_ref()).ok_or(Refusal::ALGORITHM)?;
        let quota = parse_quota(limit.as_ref(), window.as_ref(), Some(algorithm))?;
        let cost = parse_cost(cost.as_ref()).ok_or(Refusal::ROW_COST)?;
        let known = keys.len();
        let key = keys.add(*name, RowsOfKey::new(algorithm, quota, cost));
        if key < known {
            add_to_key(&mut keys[key].task, algorithm, quota, cost)?;
        }
        rows.push(Row { key, verdict: Verdict::default() });
    }
    if options.is_empty() { Ok(Options::default()) } else { Options::parse(options, Verb::All) }
}

/// Adds a row to those of its key.
#[cold]
fn add_to_key(task: &mut RowsOfKey, algorithm: Algorithm, quota: Quota, cost: Cost) -> Result<(), Refusal> {
    if (task.algorithm, task.cost) != (algorithm, cost) {
        return Err(Refusal::ROWS_DIFFER);
    }
    if task.quotas.iter().any(|other| other.window() == quota.window()) {
        return Err(Refusal::ROWS_OF_A_WINDOW);
    }
    task.quotas.try_push(quota).map_err(|_| Refusal::ROWS_OF_A_KEY)
}

/// The number of rows among `words` words after the command's name; the rest are options.
///
/// It depends on nothing but the number of words, as does the key range that clients and ACL rules use.
fn count_rows(words: usize) -> Result<usize, Refusal> {
    match (words / ROW_WORDS, words % ROW_WORDS) {
        (0, _) => Err(Refusal::Arity),
        (_, rest) if rest > MOST_OPTION_WORDS => Err(Refusal::ROW),
        (rows @ 1..=MAX_ROWS, _) => Ok(rows),
        _ => Err(Refusal::ROWS),
    }
}

/// The name of an algorithm, as in its command, in either case.
#[inline(always)]
fn parse_algorithm(arg: &[u8]) -> Option<Algorithm> {
    let by_name = |equals: fn(&[u8], &[u8]) -> bool| {
        Algorithm::ALL.into_iter().find(|algorithm| equals(&algorithm.command().to_bytes()[3..], arg))
    };
    // Nearly every caller writes it in upper case.
    by_name(|name, arg| name == arg).or_else(|| by_name(<[u8]>::eq_ignore_ascii_case))
}

fn add_tier(quotas: &mut QuotaList, quota: Quota) -> Result<(), Refusal> {
    if quotas.iter().any(|other| other.window() == quota.window()) {
        return Err(Refusal::SAME_WINDOW);
    }
    quotas.try_push(quota).map_err(|_| Refusal::PAIRS)
}

fn looks_like_a_number(arg: &[u8]) -> bool {
    arg.first().is_some_and(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.'))
}

/// Parses `limit window`, of a window with a length; `None` if they are not valid, or name a window of the calendar.
#[inline(always)]
pub fn parse_plain_quota(limit: &[u8], window: &[u8]) -> Option<Quota> {
    let (limit, window) = (parse_safe_integer(limit)?, words::parse_length(window)?);
    Quota::new(limit, window)
}

/// Parses `limit window` of this algorithm; of that of a key that RL.PEEK will open, without one.
///
/// # Errors
///
/// That of the limit or of the window, the limit first.
#[inline(always)]
fn parse_quota(limit: &[u8], window: &[u8], algorithm: Option<Algorithm>) -> Result<Quota, Refusal> {
    let limit = parse_safe_integer(limit).ok_or(Refusal::LIMIT)?;
    Quota::new(limit, parse_window(window, algorithm)?).ok_or(Refusal::LIMIT)
}

#[inline(always)]
fn parse_window(arg: &[u8], algorithm: Option<Algorithm>) -> Result<WindowMs, Refusal> {
    words::parse_length(arg).map_or_else(|| parse_calendar(arg, algorithm), Ok)
}

fn parse_cost(arg: &[u8]) -> Option<Cost> {
    let (units, sign) = match arg.strip_prefix(b"-") {
        Some(units) => (units, -1),
        None => (arg, 1),
    };
    let units = i64::try_from(parse_safe_integer(units)?).ok()?;
    // Servers do not take a negative zero as an integer either.
    if units == 0 && sign < 0 { None } else { Cost::new(sign * units) }
}

/// A window in weeks or months: of the calendar, if the key is or may be counted by RL.FIXED.
#[cold]
#[inline(never)]
fn parse_calendar(arg: &[u8], algorithm: Option<Algorithm>) -> Result<WindowMs, Refusal> {
    let window = words::parse_calendar(arg).ok_or(Refusal::WINDOW)?;
    match algorithm {
        None | Some(Algorithm::Fixed) => Ok(window),
        Some(_) => window.length().ok_or(Refusal::MONTHS),
    }
}

fn parse_safe_integer(arg: &[u8]) -> Option<u64> {
    leading_integer(arg).filter(|(_, rest)| rest.is_empty()).map(|(value, _)| value)
}
