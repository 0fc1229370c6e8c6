//! Variable-length unsigned integers (LEB128): 7 bits a byte, lowest first, the high bit set on all bytes but
//! the last.

/// The longest encoding: 64 bits at 7 bits a byte.
pub const MAX_LEN: usize = 10;

pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub fn length(value: u64) -> usize {
    ((value | 1).ilog2() / 7 + 1) as usize
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
    let mut value = 0;
    for (index, &byte) in bytes.iter().take(MAX_LEN).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            // Only the encoding of 0 ends with a zero byte, and the last of ten bytes has a single bit.
            let is_shortest = byte > 0 || index == 0;
            let fits = index < MAX_LEN - 1 || byte == 1;
            return (is_shortest && fits).then_some((value, index + 1));
        }
    }
    None
}
