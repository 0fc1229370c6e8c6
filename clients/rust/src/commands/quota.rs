//! Quotas: how many units are allowed in which time.

use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisWrite, ToRedisArgs};

/// The largest limit that the commands accept.
pub(crate) const MAX_LIMIT: u64 = (1 << 53) - 1;
/// The longest window that the commands accept: 3650 days.
const MAX_WINDOW_MS: u64 = 3_650 * 86_400_000;
pub(super) const MAX_WINDOW: Duration = Duration::from_millis(MAX_WINDOW_MS);

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
    /// The length of the window, 1 ms to 3650 days, rounded up to whole milliseconds.
    pub window: Duration,
}

impl Quota {
    /// This many units in each window of this length.
    #[must_use]
    pub const fn new(limit: u64, window: Duration) -> Quota {
        Quota { limit, window }
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

    /// Refuses what the server would refuse.
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        let is_valid = self.limit <= MAX_LIMIT && (1..=MAX_WINDOW_MS).contains(&whole_ms(self.window));
        if is_valid { Ok(()) } else { Err(Invalid::quota(&self.to_string())) }
    }

    /// The window in the largest unit in which it is whole.
    pub(crate) fn window_and_unit(&self) -> (u64, &'static str) {
        length_and_unit(self.window)
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
    let is_whole = |(unit_ms, ..): &(u64, _, _)| ms > 0 && ms.is_multiple_of(*unit_ms);
    let (unit_ms, unit, _) = UNITS.into_iter().find(is_whole).unwrap_or((1, "ms", &[]));
    (ms / unit_ms, unit)
}

/// The units of windows: milliseconds, the name, and other names, which may have an `s` at the end.
const UNITS: [(u64, &str, &[&str]); 5] = [
    (86_400_000, "d", &["day"]),
    (3_600_000, "h", &["hour"]),
    (60_000, "m", &["min", "minute"]),
    (1_000, "s", &["sec", "second"]),
    (1, "ms", &[]),
];

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
        let parse = || {
            let lower = text.to_ascii_lowercase();
            let (limit, window) = lower.split_once('/').or_else(|| lower.split_once(" per "))?;
            let window = window.trim_start();
            let unit = window.trim_start_matches(|c: char| c.is_ascii_digit());
            let digits = &window[..window.len() - unit.len()];
            let unit = unit.trim_start();
            let (unit_ms, ..) = UNITS.into_iter().find(|(_, name, names)| {
                unit == *name || names.contains(&unit.strip_suffix('s').unwrap_or(unit))
            })?;
            let count = if digits.is_empty() { 1 } else { whole(digits)? };
            let window_ms = count.checked_mul(unit_ms)?;
            let quota = Quota::new(whole(limit.trim_end())?, Duration::from_millis(window_ms));
            quota.check().ok().map(|()| quota)
        };
        parse().ok_or_else(|| Invalid::quota(text))
    }
}

/// Reads a number without a sign.
fn whole(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
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

/// Refuses quotas that the server would refuse: its error would count as Redis being away, and requests might pass.
pub(crate) fn check(quotas: &[Quota]) -> Result<(), Invalid> {
    quotas.iter().try_for_each(Quota::check)?;
    let windows: std::collections::HashSet<u64> = quotas.iter().map(|quota| whole_ms(quota.window)).collect();
    if !(1..=MAX_QUOTAS).contains(&quotas.len()) || windows.len() < quotas.len() {
        let why = format!("there must be 1 to {MAX_QUOTAS} quotas, and all windows must differ");
        return Err(Invalid::new(why));
    }
    Ok(())
}

impl FromStr for Quotas {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Quotas, Invalid> {
        text.split([',', ';']).map(|quota| quota.trim().parse()).collect::<Result<_, _>>().map(Quotas)
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
            "\"{text}\" is not a quota: write a limit and a window such as 5/10s, with ms, s, m, h or d as the unit"
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
