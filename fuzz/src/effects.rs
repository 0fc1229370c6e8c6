//! Any words, one a line, are refused as effects or have exactly one form, and what they do to a key can be stored.

use redis_rl::encoding::{decode, decode_effect, encode, encode_effect};
use redis_rl::limiter::{Before, Counted, Effect, Limiter, MAX_SAFE_INTEGER, Quota, Time, UnixMs};

/// Checks `lines`, the effects on one key.
pub fn check(lines: &[u8]) {
    let mut key = None;
    for word in lines.split(|byte| *byte == b'\n') {
        let Some(effect) = decode_effect(word) else { continue };
        // Version 1.1.0 had two words for each.
        let is_old = word.windows(2).any(|bytes| bytes == b"AT");
        assert!(is_old || encode_effect(&effect).as_slice() == word, "each effect has one word");
        key = match effect {
            Effect::Counted(counted) => count(key, &counted),
            Effect::Moved(_) => key,
            Effect::Deleted => None,
        };
    }
}

/// The key after an effect, or as it was if that is refused.
fn count(key: Option<Limiter>, counted: &Counted) -> Option<Limiter> {
    let is_new = key.is_none();
    let mut limiter = key.clone().unwrap_or_else(|| Limiter::new(counted.algorithm));
    let mut forced = limiter.clone();
    let clock = UnixMs::saturating(1_700_000_000_000);
    let before = Before { is_new, expires_at: None };
    let Ok(accepted) = limiter.accept(counted) else { return key };
    let done = accepted.apply(before, || clock);
    assert!(!done.changed || !is_new || done.moved.is_some(), "every key that it creates expires");
    if !counted.forgets {
        // The same as a forced request.
        let quotas: Vec<Quota> =
            counted.windows.iter().filter_map(|window| Quota::new(MAX_SAFE_INTEGER, *window)).collect();
        let time = Time { clock, at: Some(counted.at) };
        let taken = forced.decide_and_commit(counted.algorithm, &quotas, counted.units, true, time);
        assert_eq!(taken.expect("it is accepted").outcome.changed(), done.changed);
        assert_eq!(encode(&forced), encode(&limiter));
    }
    assert_eq!(done.emptied, done.changed && limiter.is_empty());
    if limiter.is_empty() {
        return None;
    }
    let bytes = encode(&limiter);
    assert_eq!(encode(&decode(&bytes).expect("it can be loaded")), bytes);
    Some(limiter)
}
