//! Quotas: how many units are allowed in which time.

use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisWrite, ToRedisArgs};

/// The largest limit that the commands accept.
pub(crate) const MAX_LIMIT: u64 = (1 << 53) - 1;
/// The limit of the quota that a block fills. No limit of a policy is as large.
pub(crate) const BLOCK: u64 = 1 << 51;
/// The longest window that the commands accept: 3650 days, or 120 months.
const MAX_WINDOW_MS: u64 = 3_650 * 86_400_000;
const WEEK_MS: u64 = 7 * 86_400_000;
/// Months differ, so this is a twelfth of a year: 120 of them are the longest window.
const MONTH_MS: u64 = MAX_WINDOW_MS / 120;
pub(crate) const MAX_WINDOW: Duration = Duration::from_millis(MAX_WINDOW_MS);

/// A limit of units in each window of time.
///
/// ```
/// use std::time::Duration;
/// use redis_rl_client::Quota;
///
/// assert_eq!(Quota::per_hour(100), Quota::new(100, Duration::from_secs(3600)));
/// assert_eq!("5/10s".parse(), Ok(Quota::new(5, Duration::from_secs(10))));
/// assert_eq!(Quota::per_hour(100).to_string(), "100/1h");
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Quota {
    /// Units allowed in each window, at most 2^53 - 1; 0 limits everything.
    pub limit: u64,
    /// The length of the window, 1 ms to 3650 days, rounded up to whole milliseconds. Of months on average.
    pub window: Duration,
    /// Whether it is weeks or months of the calendar.
    pub(crate) calendar: Option<Calendar>,
}

/// Windows that [`Algorithm::Fixed`](crate::Algorithm::Fixed) counts by the calendar. For the others a week is 7 days.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Calendar {
    Weeks = 1,
    Months = 2,
}

impl Quota {
    /// This many units in each window of this length.
    #[must_use]
    pub const fn new(limit: u64, window: Duration) -> Quota {
        Quota { limit, window, calendar: None }
    }

    /// This many units a second.
    #[must_use]
    pub const fn per_second(limit: u64) -> Quota {
        Quota::new(limit, Duration::from_secs(1))
    }

    /// This many units a minute.
    #[must_use]
    pub const fn per_minute(limit: u64) -> Quota {
        Quota::new(limit, Duration::from_secs(60))
    }

    /// This many units an hour.
    #[must_use]
    pub const fn per_hour(limit: u64) -> Quota {
        Quota::new(limit, Duration::from_secs(3_600))
    }

    /// This many units a day.
    #[must_use]
    pub const fn per_day(limit: u64) -> Quota {
        Quota::new(limit, Duration::from_secs(86_400))
    }

    /// This many units a week: with [`Algorithm::Fixed`](crate::Algorithm::Fixed) from Monday at 00:00 UTC.
    #[must_use]
    pub const fn per_week(limit: u64) -> Quota {
        Quota { calendar: Some(Calendar::Weeks), ..Quota::new(limit, Duration::from_millis(WEEK_MS)) }
    }

    /// This many units a month of the calendar, from the first at 00:00 UTC. Only for
    /// [`Algorithm::Fixed`](crate::Algorithm::Fixed).
    #[must_use]
    pub const fn per_month(limit: u64) -> Quota {
        Quota { calendar: Some(Calendar::Months), ..Quota::new(limit, Duration::from_millis(MONTH_MS)) }
    }

    /// Refuses what the server would refuse.
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        let why = if self.limit > MAX_LIMIT {
            format!("a limit is from 0 to {MAX_LIMIT}")
        } else if (1..=MAX_WINDOW_MS).contains(&whole_ms(self.window)) {
            return Ok(());
        } else {
            "a window is from 1ms to 3650d, or 120mo".to_owned()
        };
        Err(Invalid::new(format!("\"{self}\": {why}")))
    }

    pub(crate) fn is_calendar(&self) -> bool {
        self.calendar.is_some()
    }

    pub(crate) fn is_months(&self) -> bool {
        self.calendar == Some(Calendar::Months)
    }

    /// The window in the largest unit in which it is whole.
    pub(crate) fn window_and_unit(&self) -> (u64, &'static str) {
        match self.calendar {
            Some(Calendar::Weeks) => (whole_ms(self.window) / WEEK_MS, "w"),
            Some(Calendar::Months) => (whole_ms(self.window) / MONTH_MS, "mo"),
            None => length_and_unit(self.window),
        }
    }
}

/// Milliseconds, rounded up.
fn whole_ms(length: Duration) -> u64 {
    let part_ms = u64::from(length.subsec_nanos().div_ceil(1_000_000));
    length.as_secs().saturating_mul(1_000).saturating_add(part_ms)
}

/// A length of time in the largest unit in which it is whole, of those that the server reads.
pub(super) fn length_and_unit(length: Duration) -> (u64, &'static str) {
    let ms = whole_ms(length);
    let is_whole = |(unit_ms, ..): &(u64, _, _, _)| ms > 0 && ms.is_multiple_of(*unit_ms);
    let (unit_ms, unit, ..) = UNITS.into_iter().skip(2).find(is_whole).unwrap_or(UNITS[6]);
    (ms / unit_ms, unit)
}

/// The units of windows: milliseconds, the name, and other names, which may have an `s` at the end. The first two are the
/// calendar's.
const UNITS: [(u64, &str, &[&str], Option<Calendar>); 7] = [
    (MONTH_MS, "mo", &["month"], Some(Calendar::Months)),
    (WEEK_MS, "w", &["week"], Some(Calendar::Weeks)),
    (86_400_000, "d", &["day"], None),
    (3_600_000, "h", &["hour"], None),
    (60_000, "m", &["min", "minute"], None),
    (1_000, "s", &["sec", "second"], None),
    (1, "ms", &[], None),
];

const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];

impl AsRef<[Quota]> for Quota {
    fn as_ref(&self) -> &[Quota] {
        std::slice::from_ref(self)
    }
}

/// Writes two arguments: the limit and the window.
impl ToRedisArgs for Quota {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        self.limit.write_redis_args(out);
        let (window, unit) = self.window_and_unit();
        out.write_arg_fmt(format_args!("{window}{unit}"));
    }

    fn num_of_args(&self) -> usize {
        2
    }
}

/// Writes `100/1h`, say.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (window, unit) = self.window_and_unit();
        write!(f, "{}/{window}{unit}", self.limit)
    }
}

/// Reads what `Display` writes: a limit, a slash, and a window with a unit. `100/h` is `100/1h`. Reads what people write, too:
/// `5/minute`, `5 per 2 hours`.
impl FromStr for Quota {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Quota, Invalid> {
        let text = text.trim_matches(BLANKS);
        let parse = || {
            let lower = text.to_ascii_lowercase();
            let (limit, rest) = number(&lower)?;
            let rest =
                rest.strip_prefix('/').or_else(|| rest.strip_prefix("per"))?.trim_start_matches(BLANKS);
            let (count, unit) = number(rest).unwrap_or((1, rest));
            let (unit_ms, _, _, calendar) = UNITS.into_iter().find(|(_, name, names, _)| {
                unit == *name || names.contains(&unit.strip_suffix('s').unwrap_or(unit))
            })?;
            let window = Duration::from_millis(count.saturating_mul(unit_ms));
            Some(Quota { calendar, ..Quota::new(limit, window) })
        };
        let quota = parse().ok_or_else(|| Invalid::quota(text))?;
        quota.check().map_err(|why| Invalid::new(why.0.replacen(&quota.to_string(), text, 1)))?;
        Ok(quota)
    }
}

/// Reads a number without a sign, and what follows it and blanks.
fn number(text: &str) -> Option<(u64, &str)> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = &text[..text.len() - rest.len()];
    let is_number = (1..=20).contains(&digits.len());
    is_number.then(|| (digits.parse().unwrap_or(u64::MAX), rest.trim_start_matches(BLANKS)))
}

/// Quotas of one key, read from text such as `5/10s, 100/h` or `100/hour; 1000/day`. The commands take them like any list of quotas.
///
/// ```
/// use redis_rl_client::{Quota, Quotas, cmd};
///
/// # fn main() -> Result<(), redis_rl_client::Invalid> {
/// let quotas: Quotas = "5/s, 100/h".parse()?;
/// assert_eq!(quotas[..], [Quota::per_second(5), Quota::per_hour(100)]);
/// let command = cmd::log("api:42", &quotas, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Quotas(Vec<Quota>);

/// The most quotas of a command.
const MAX_QUOTAS: usize = 8;

/// Refuses quotas that the server would refuse: its error would count as Redis being away, and requests might pass. Only
/// fixed windows are those of the calendar.
pub(crate) fn check(quotas: &[Quota], is_fixed: bool) -> Result<(), Invalid> {
    quotas.iter().try_for_each(Quota::check)?;
    if let Some(quota) = quotas.iter().find(|quota| quota.is_months() && !is_fixed) {
        let why = "a window in months of the calendar needs the algorithm \"fixed\"";
        return Err(Invalid::new(format!("\"{quota}\": {why}")));
    }
    let window = |quota: &Quota| {
        let is_calendar = quota.is_months() || is_fixed && quota.calendar.is_some();
        (whole_ms(quota.window), is_calendar)
    };
    let windows: std::collections::HashSet<_> = quotas.iter().map(window).collect();
    if !(1..=MAX_QUOTAS).contains(&quotas.len()) || windows.len() < quotas.len() {
        let why = format!("there are 1 to {MAX_QUOTAS} quotas, and their windows differ");
        return Err(Invalid::new(why));
    }
    Ok(())
}

impl FromStr for Quotas {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Quotas, Invalid> {
        let quotas = text.split([',', ';']).map(str::parse).collect::<Result<Vec<_>, _>>()?;
        let named = |why: Invalid| Invalid::new(format!("\"{text}\": {}", why.0));
        check(&quotas, true).map(|()| Quotas(quotas)).map_err(named)
    }
}

/// Writes `5/10s, 100/1h`, say.
impl fmt::Display for Quotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, quota) in self.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{quota}")?;
        }
        Ok(())
    }
}

impl Deref for Quotas {
    type Target = [Quota];

    fn deref(&self) -> &[Quota] {
        &self.0
    }
}

impl AsRef<[Quota]> for Quotas {
    fn as_ref(&self) -> &[Quota] {
        self
    }
}

impl From<Quota> for Quotas {
    fn from(quota: Quota) -> Quotas {
        Quotas(vec![quota])
    }
}

impl From<Vec<Quota>> for Quotas {
    fn from(quotas: Vec<Quota>) -> Quotas {
        Quotas(quotas)
    }
}

impl<const N: usize> From<[Quota; N]> for Quotas {
    fn from(quotas: [Quota; N]) -> Quotas {
        Quotas(quotas.to_vec())
    }
}

macro_rules! from_text {
    ($($text:ty),*) => {$(
        impl TryFrom<$text> for Quotas {
            type Error = Invalid;

            fn try_from(text: $text) -> Result<Quotas, Invalid> {
                text.parse()
            }
        }
    )*};
}

from_text!(&str, &String, String);

/// A mistake of the application, such as a text that cannot be read as quotas.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Invalid(String);

impl Invalid {
    pub(crate) fn new(why: impl Into<String>) -> Invalid {
        Invalid(why.into())
    }

    fn quota(text: &str) -> Invalid {
        Invalid::new(format!(
            "\"{text}\" is not a quota: write a limit and a window such as 5/10s, with ms, s, m, h, d, w or mo as the unit"
        ))
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

/// Lets functions accept quotas and policies that need no conversion.
impl From<Infallible> for Invalid {
    fn from(never: Infallible) -> Invalid {
        match never {}
    }
}

impl From<Invalid> for RedisError {
    fn from(invalid: Invalid) -> RedisError {
        (ErrorKind::Client, "invalid", invalid.0).into()
    }
}
