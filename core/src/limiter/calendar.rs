//! Windows of the calendar, which RL.FIXED has: weeks and months. All begin at 00:00 UTC.
//!
//! A month has no length of its own, so these windows are numbered by the calendar. Keys that have none never come here.

use arrayvec::ArrayString;

use super::quota::{UnixMs, WindowMs, digits};

/// The length of a window of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calendar {
    /// So many weeks, counted from Monday, 29 December 1969.
    Weeks(u64),
    /// So many months, counted from January 1970.
    Months(u64),
}

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
const WEEK_MS: u64 = 7 * DAY_MS;

/// How long before 1970 the first week begins.
const BEFORE_1970_MS: u64 = 3 * DAY_MS;

/// The most weeks: as many as the longest other window has.
const MAX_WEEKS: u64 = WindowMs::MAX.get() / WEEK_MS;
const MAX_MONTHS: u64 = 120;

impl Calendar {
    /// Whether it is a window that a request can name.
    pub fn is_valid(self) -> bool {
        match self {
            Calendar::Weeks(weeks) => (1..=MAX_WEEKS).contains(&weeks),
            Calendar::Months(months) => (1..=MAX_MONTHS).contains(&months),
        }
    }

    /// The number of the window that a time is in.
    #[inline(never)]
    pub fn number(self, now: UnixMs) -> u64 {
        match self {
            Calendar::Weeks(weeks) => (now.get() + BEFORE_1970_MS) / (weeks * WEEK_MS),
            Calendar::Months(months) => month_of(now.get() / DAY_MS) / months,
        }
    }

    /// The first millisecond of window `number`; of the first weeks, that of 1970.
    #[inline(never)]
    pub fn start(self, number: u64) -> UnixMs {
        UnixMs::default()
            + match self {
                Calendar::Weeks(weeks) => (number * weeks * WEEK_MS).saturating_sub(BEFORE_1970_MS),
                Calendar::Months(months) => first_day(number * months) * DAY_MS,
            }
    }

    /// The length of window `number` in milliseconds.
    #[inline(never)]
    pub fn length_ms(self, number: u64) -> u64 {
        match self {
            Calendar::Weeks(weeks) => weeks * WEEK_MS,
            Calendar::Months(_) => self.start(number + 1).since(self.start(number)),
        }
    }

    /// It as a request names it: `2w`, `1mo`.
    pub fn word(self) -> ArrayString<5> {
        let (number, unit) = match self {
            Calendar::Weeks(weeks) => (weeks, "w"),
            Calendar::Months(months) => (months, "mo"),
        };
        let mut word = ArrayString::new();
        digits(number, &mut [0; 20]).iter().for_each(|digit| word.push(char::from(*digit)));
        word.push_str(unit);
        word
    }
}

/// The days from the beginning of 1970 to that of a month, counted in months since then.
fn first_day(month: u64) -> u64 {
    const DAYS_BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let (years, month) = (month / 12, (month % 12) as usize);
    // The last year whose February has passed by then.
    let year = 1969 + years + u64::from(month >= 2);
    // The leap days up to then, without the 477 before 1970.
    let leap_days = year / 4 - year / 100 + year / 400 - 477;
    365 * years + DAYS_BEFORE[month] + leap_days
}

/// The month that a day is in: both counted from the beginning of 1970.
fn month_of(day: u64) -> u64 {
    // By the average length of a month, which is less than a month wrong.
    let mut month = day * 4_800 / 146_097 + 1;
    while first_day(month) > day {
        month -= 1;
    }
    month
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_month_until_the_last_begins_on_its_first_day() {
        let (mut day, mut month) = (0, 0);
        let last = UnixMs::MAX.get() / DAY_MS;
        while day <= last {
            let (year, of_year) = (1970 + month / 12, month % 12);
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let days = match of_year {
                1 => 28 + u64::from(is_leap),
                3 | 5 | 8 | 10 => 30,
                _ => 31,
            };
            assert_eq!(first_day(month), day, "month {} of {year}", of_year + 1);
            assert_eq!((month_of(day), month_of(day + days - 1)), (month, month), "in {year}");
            (day, month) = (day + days, month + 1);
        }
        assert_eq!(1970 + month / 12, 287_396);
    }
}
