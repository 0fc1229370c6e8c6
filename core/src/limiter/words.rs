//! Windows as words, with the names of their units: in a request in either case and in any unit, in an effect in one form each.

use arrayvec::ArrayString;

use super::quota::{Calendar, DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, WindowMs, digits, leading_integer};

/// The units of lengths, with their milliseconds.
const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", SECOND_MS), ("m", MINUTE_MS), ("h", HOUR_MS), ("d", DAY_MS)];

impl WindowMs {
    /// It in its largest whole unit: `1500ms`, `90m`, `2w`, `1mo`.
    pub fn word(self) -> ArrayString<16> {
        let (number, unit) = match self.calendar() {
            Some(Calendar::Weeks(weeks)) => (weeks, "w"),
            Some(Calendar::Months(months)) => (months, "mo"),
            None => {
                let is_whole = |(_, unit_ms): &&(&str, u64)| self.get().is_multiple_of(*unit_ms);
                let (unit, unit_ms) = UNITS.iter().rfind(is_whole).expect("a window has whole milliseconds");
                (self.get() / unit_ms, *unit)
            }
        };
        let mut word = ArrayString::new();
        digits(number, &mut [0; 20]).iter().for_each(|digit| word.push(char::from(*digit)));
        word.push_str(unit);
        word
    }
}

// The readers have the names of the units in patterns. A look at the table takes more: 4 % of an effect that is decoded.

/// Parses a window with a length, without a unit in seconds.
#[inline(always)]
pub fn parse_length(word: &[u8]) -> Option<WindowMs> {
    let (number, unit) = leading_integer(word)?;
    let unit_ms = match unit {
        [] | [b's' | b'S'] => SECOND_MS,
        [b'm' | b'M', b's' | b'S'] => 1,
        [b'm' | b'M'] => MINUTE_MS,
        [b'h' | b'H'] => HOUR_MS,
        [b'd' | b'D'] => DAY_MS,
        _ => return None,
    };
    WindowMs::new(number.checked_mul(unit_ms)?)
}

/// Parses a window of the calendar.
pub fn parse_calendar(word: &[u8]) -> Option<WindowMs> {
    let (number, unit) = leading_integer(word)?;
    WindowMs::of_calendar(match unit {
        [b'w' | b'W'] => Calendar::Weeks(number),
        [b'm' | b'M', b'o' | b'O'] => Calendar::Months(number),
        _ => return None,
    })
}

/// Reads a window from the start of `word` as [`WindowMs::word`] writes it, and leaves the rest there.
#[inline(always)]
pub fn read_window(word: &mut &[u8]) -> Option<WindowMs> {
    let (number, unit) = leading_integer(word)?;
    let (unit_ms, in_larger, rest) = match unit {
        [b'm', b's', rest @ ..] => (1, number.is_multiple_of(1_000), rest),
        [b'm', b'o', rest @ ..] => {
            *word = rest;
            return WindowMs::of_calendar(Calendar::Months(number));
        }
        [b's', rest @ ..] => (SECOND_MS, number.is_multiple_of(60), rest),
        [b'm', rest @ ..] => (MINUTE_MS, number.is_multiple_of(60), rest),
        [b'h', rest @ ..] => (HOUR_MS, number.is_multiple_of(24), rest),
        [b'd', rest @ ..] => (DAY_MS, false, rest),
        [b'w', rest @ ..] => {
            *word = rest;
            return WindowMs::of_calendar(Calendar::Weeks(number));
        }
        _ => return None,
    };
    *word = rest;
    WindowMs::new(number.checked_mul(unit_ms)?).filter(|_| !in_larger)
}
