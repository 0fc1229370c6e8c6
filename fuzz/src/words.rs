//! What single words mean, and how a refusal may look: for `parser` and `rows`.

use redis_rl::limiter::{MAX_SAFE_INTEGER, WindowMs};
use redis_rl::request::Refusal;

/// The largest integer that is accepted.
pub const MOST: i128 = MAX_SAFE_INTEGER as i128;

/// An integer in its only valid form, the one it is printed in.
pub fn integer(text: &str) -> Option<i128> {
    text.parse().ok().filter(|integer: &i128| integer.to_string() == text)
}

/// A window, in upper case.
pub fn window_of(text: &str) -> Option<WindowMs> {
    let units = [("MS", 1), ("S", 1_000), ("M", 60_000), ("H", 3_600_000), ("D", 86_400_000), ("", 1_000)];
    let (number, unit_ms) =
        units.iter().find_map(|(unit, unit_ms)| Some((text.strip_suffix(unit)?, unit_ms)))?;
    let ms = integer(number)?.checked_mul(*unit_ms)?;
    WindowMs::new(u64::try_from(ms).ok()?)
}

/// Whether a refusal is one for users, in printable ASCII.
pub fn can_be_shown(refusal: Refusal) -> bool {
    match refusal {
        Refusal::Arity => true,
        Refusal::Text(text) => {
            let printable = |byte: &u8| matches!(byte, b' '..=b'~');
            refusal != Refusal::INTERNAL && text.to_bytes().iter().all(printable)
        }
    }
}
