//! Windows of the calendar, which RL.FIXED has: weeks and months. All begin at 00:00 UTC.
//!
//! A month has no length of its own, so these windows are numbered by the calendar. Keys that have none never come here.

use super::quota::{Calendar, DAY_MS, UnixMs};

const WEEK_MS: u64 = 7 * DAY_MS;

/// How long before 1970 the first week begins.
const BEFORE_1970_MS: u64 = 3 * DAY_MS;

impl Calendar {
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
