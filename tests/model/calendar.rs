//! Windows of the calendar begin and end where the days of all months, added up one by one, say.

use redis_rl_core::limiter::{Calendar, UnixMs};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

#[test]
fn every_month_until_the_last_begins_on_its_first_day() {
    let (mut day, mut month, calendar) = (0, 0, Calendar::Months(1));
    while day * DAY_MS <= UnixMs::MAX.get() {
        let (year, of_year) = (1970 + month / 12, month % 12);
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days = match of_year {
            1 => 28 + u64::from(is_leap),
            3 | 5 | 8 | 10 => 30,
            _ => 31,
        };
        let (first, last) = (day * DAY_MS, ((day + days) * DAY_MS - 1).min(UnixMs::MAX.get()));
        assert_eq!(calendar.start(month).get(), first, "month {} of {year}", of_year + 1);
        let numbers = [first, last].map(|ms| calendar.number(UnixMs::saturating(ms)));
        assert_eq!(numbers, [month; 2], "month {} of {year}", of_year + 1);
        (day, month) = (day + days, month + 1);
    }
    assert_eq!((1970 + month / 12, month % 12), (287_396, 10));
}
