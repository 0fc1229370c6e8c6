//! Variable-length unsigned integers (LEB128): 7 bits a byte, lowest first, the high bit set on all bytes but
//! the last.

/// The longest encoding: 64 bits at 7 bits a byte.
pub const MAX_LEN: usize = 10;

/// Appends `value`.
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The length of `value`'s encoding, in bytes.
pub fn length(value: u64) -> usize {
    match value {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        _ => (value.ilog2() / 7 + 1) as usize,
    }
}

/// Writes `value` to the start of `out`, which must have room for it. Returns its length.
pub fn write(out: &mut [u8], mut value: u64) -> usize {
    let mut length = 0;
    while value >= 0x80 {
        out[length] = value as u8 | 0x80;
        value >>= 7;
        length += 1;
    }
    out[length] = value as u8;
    length + 1
}

/// Returns the integer at the start of `bytes`, and its length in bytes.
///
/// `None` if it is truncated, exceeds 64 bits, or is longer than [`put`] would write it: each value has one
/// encoding.
pub fn get(bytes: &[u8]) -> Option<(u64, usize)> {
    let low = |byte: u8| u64::from(byte & 0x7f);
    match *bytes {
        [a @ ..0x80, ..] => Some((a.into(), 1)),
        [a, b @ 1..0x80, ..] => Some((low(a) | u64::from(b) << 7, 2)),
        [a, b @ 0x80..=0xff, c @ 1..0x80, ..] => Some((low(a) | low(b) << 7 | u64::from(c) << 14, 3)),
        _ => get_long(bytes),
    }
}

/// Decodes an integer of any length: see [`get`].
fn get_long(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (index, &byte) in bytes.iter().take(MAX_LEN).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            let fits = index < MAX_LEN - 1 || byte == 1;
            return (byte > 0 && fits).then_some((value, index + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_round_trips_and_truncated_or_padded_forms_are_refused() {
        for bits in 0..64 {
            for value in [1u64 << bits, (1u64 << bits) - 1, u64::MAX >> bits] {
                let mut bytes = Vec::new();
                put(&mut bytes, value);
                assert!(bytes.len() <= MAX_LEN);
                let mut written = [0xff; MAX_LEN];
                assert_eq!((write(&mut written, value), length(value)), (bytes.len(), bytes.len()));
                assert_eq!(written[..bytes.len()], bytes);
                assert_eq!(get(&bytes), Some((value, bytes.len())));
                assert_eq!(get(&bytes[..bytes.len() - 1]), None, "truncated");
                let last = bytes.len() - 1;
                bytes[last] |= 0x80;
                bytes.push(0);
                assert_eq!(get(&bytes), None, "padded with a zero");
            }
        }
    }

    #[test]
    fn more_than_64_bits_are_refused() {
        let mut bytes = [0xff; MAX_LEN];
        bytes[MAX_LEN - 1] = 0x02;
        assert_eq!(get(&bytes), None);
        assert_eq!(get(&[0xff; 20]), None);
    }
}
