//! Any words, one a line, are refused as effects or have exactly one form, and what they do to a key can be stored.

use redis_rl_core::encoding::{decode, decode_effect, encode, encode_effect};
use redis_rl_core::limiter::{Effect, Limiter, Mode, Recorded, Request, Time, UnixMs};

/// Checks `lines`, the effects on one key.
pub fn check(lines: &[u8]) {
    let mut key = None;
    for word in lines.split(|byte| *byte == b'\n') {
        let Some(effect) = decode_effect(word) else { continue };
        assert_eq!(encode_effect(&effect).as_slice(), word, "each effect has one word");
        key = match effect {
            Effect::Recorded(recorded) => count(key, &recorded),
            Effect::Moved(moved) => {
                if let (Some(to), Some(limiter)) = (moved.back, &mut key) {
                    limiter.move_back(to);
                }
                key
            }
            Effect::Deleted => None,
        };
    }
}

/// The key after an effect, or as it was if that is refused.
fn count(key: Option<Limiter>, recorded: &Recorded) -> Option<Limiter> {
    let is_new = key.is_none();
    let mut limiter = key.clone().unwrap_or_else(|| Limiter::new(recorded.algorithm));
    let mut forced = limiter.clone();
    let is_valid = recorded.check(&limiter).is_ok();
    let Ok(pending) = recorded.apply(&mut limiter, is_new) else {
        assert!(!is_valid);
        return key;
    };
    assert!(is_valid);
    assert!(
        !pending.changed || !is_new || pending.moved.expires.is_some(),
        "every key that it creates expires"
    );
    let is_forced = !recorded.forgot && !recorded.awaited && recorded.moved.back.is_none();
    if is_forced && !pending.emptied {
        // The same as a forced request.
        let Recorded { algorithm, units: cost, ref quotas, at, .. } = *recorded;
        let time = Time { clock: UnixMs::default(), at: Some(at) };
        let request = Request { algorithm, quotas, cost, mode: Mode::Force, time };
        let decided = forced.decide_and_commit(request);
        assert_eq!(decided.expect("it is valid").outcome.changed(), pending.changed);
        assert_eq!(encode(&forced), encode(&limiter));
    }
    if pending.emptied || limiter.is_empty() {
        return None;
    }
    let bytes = encode(&limiter);
    assert_eq!(encode(&decode(&bytes).expect("it can be loaded")), bytes);
    Some(limiter)
}
