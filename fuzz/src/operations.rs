//! Random calls on one key get the plain model's replies, before and after the key was stored and loaded. A replica that
//! gets only their effects holds the same, and the key lives as long as anything in it counts.

use arbitrary::{Arbitrary, Result, Unstructured};
use redis_rl_core::encoding::{decode, encode};
use redis_rl_core::limiter::{
    Algorithm, Calendar, Limiter, MAX_SAFE_INTEGER, MAX_TIERS, Mover, Quota, TimeSource, UnixMs, WindowMs,
};

use crate::calls::{
    Act, Call, History, answer, answer_and_send, apply, assert_agree, counts_nothing, expected, quota,
};
use crate::naive::{Model, Search, length_of, number_of};

/// Checks the history of calls that `bytes` encode.
pub fn check(bytes: &[u8]) {
    if let Ok(history) = History::arbitrary_take_rest(Unstructured::new(bytes)) {
        check_history(&history, Search::Halving);
    }
}

/// Checks a history of calls against a model that searches so.
pub fn check_history(history: &History, search: Search) {
    let mut limiter = Limiter::new(history.algorithm);
    let mut model = Model::new(history.algorithm, search);
    let (windows, _) = history.windows_and_end();
    // Gets only effects.
    let (mut replica, mut replica_expires_at) = (limiter.clone(), None);
    // For the second half of the calls, a copy that was stored and loaded.
    let mut copy: Option<Limiter> = None;
    let mut expires_at = None;
    for (i, call) in history.calls.iter().enumerate() {
        let source = limiter.source();
        model.with_at = source == TimeSource::At;
        let wanted = expected(&mut model, call);
        let reply = answer_and_send(&mut limiter, &mut expires_at, call, |effect| {
            apply(&mut replica, &mut replica_expires_at, &effect);
        });
        assert_eq!(reply, wanted, "call {i}: {call:?}");
        assert_agree(&limiter, &model, &windows, call.end());
        assert_eq!(encode(&replica), encode(&limiter), "call {i}: {call:?}");
        assert_eq!(replica_expires_at, expires_at, "call {i}: {call:?}");
        if !limiter.is_empty() && wanted.is_ok_and(|answer| answer.changed.is_some()) {
            let end = expires_at.expect("a key that counts expires");
            assert!(end == UnixMs::MAX || counts_nothing(&model, end.get()), "call {i}: {call:?}, {end:?}");
        }
        limiter = limiter.relocate(&mut Elsewhere);
        if let Some(copy) = &mut copy {
            // A loaded key does not tell whether it was written with AT.
            copy.set_source(source);
            assert_eq!(answer(copy, call), wanted, "call {i} of the copy: {call:?}");
            assert_eq!(encode(copy), encode(&limiter), "after call {i}: {call:?}");
        } else if i >= history.calls.len() / 2 && !limiter.is_empty() {
            copy = Some(decode(&encode(&limiter)).expect("what was encoded is decoded"));
        }
    }
}

/// Moves every allocation, as active defrag may.
struct Elsewhere;

impl Mover for Elsewhere {
    fn move_box<T>(&mut self, piece: Box<T>) -> Box<T> {
        Box::new(*piece)
    }

    fn move_vec<T>(&mut self, piece: Vec<T>) -> Vec<T> {
        let mut moved = Vec::with_capacity(piece.len());
        moved.extend(piece);
        moved
    }
}

/// The most calls in a history, and in all its floods together: the model is slow.
const MOST_CALLS: usize = 40;
const MOST_IN_FLOODS: u32 = 1_500;

impl<'a> Arbitrary<'a> for History {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<History> {
        let algorithm = *u.choose(&Algorithm::ALL)?;
        let windows =
            (0..u.int_in_range(1..=12)?).map(|_| window(u, algorithm)).collect::<Result<Vec<_>>>()?;
        let mut now = number(u, MAX_SAFE_INTEGER)?;
        let mut calls = Vec::new();
        let mut left_for_floods = MOST_IN_FLOODS;
        while !u.is_empty() && calls.len() < MOST_CALLS {
            let quotas = quotas(u, &windows)?;
            let cost = number(u, MAX_SAFE_INTEGER)? as i64;
            let cost = if u.ratio(1, 4)? { -cost } else { cost };
            let time = time(u, now, &windows)?;
            let act = match u.int_in_range(0..=12)? {
                0..=1 => Act::Peek,
                2..=4 => Act::Take,
                5..=7 => Act::Force,
                8..=9 => Act::Partial,
                10..=11 if algorithm == Algorithm::Bucket => {
                    Act::Within(number(u, WindowMs::MAX.get())?.max(1))
                }
                10..=11 => Act::Take,
                _ => {
                    let times = number(u, 1_200)? as u32;
                    let times = times.clamp(1, left_for_floods.max(1));
                    left_for_floods = left_for_floods.saturating_sub(times);
                    Act::Flood { times, apart_ms: number(u, 1 << 20)? }
                }
            };
            calls.push(Call { act, quotas, cost, now: time, at: u.arbitrary()? });
            // A peek may look ahead; it does not move the time of the next call.
            if act != Act::Peek {
                now = calls.last().map_or(now, Call::end);
            }
        }
        Ok(History { algorithm, calls })
    }
}

/// Small numbers, so that calls interact; numbers around the size at which a log drops units; numbers of any
/// length; and the last ones before `most`.
fn number(u: &mut Unstructured, most: u64) -> Result<u64> {
    let number = match u.int_in_range(0..=6)? {
        0..=2 => u64::from(u.arbitrary::<u8>()?),
        3 => 1_000 + u64::from(u.arbitrary::<u8>()?),
        4 => u64::from(u.arbitrary::<u16>()?),
        5 => u.arbitrary::<u64>()?,
        _ => most.saturating_sub(u.arbitrary::<u8>()?.into()),
    };
    Ok(number.min(most))
}

fn window(u: &mut Unstructured, algorithm: Algorithm) -> Result<WindowMs> {
    if algorithm == Algorithm::Fixed && u.ratio(1, 4)? {
        let number = u64::from(u.arbitrary::<u8>()?);
        let calendar = if u.arbitrary()? { Calendar::Weeks(number) } else { Calendar::Months(number) };
        return Ok(WindowMs::of_calendar(calendar).unwrap_or(WindowMs::MAX));
    }
    Ok(WindowMs::new(number(u, WindowMs::MAX.get())?).unwrap_or(WindowMs::MIN))
}

fn quotas(u: &mut Unstructured, windows: &[WindowMs]) -> Result<Vec<Quota>> {
    let mut quotas: Vec<Quota> = Vec::new();
    for _ in 0..*u.choose(&[1, 1, 1, 2, 3, MAX_TIERS])? {
        let window = *u.choose(windows)?;
        let quota = quota(number(u, MAX_SAFE_INTEGER)?, window);
        if quotas.iter().all(|other| other.window() != quota.window()) {
            quotas.push(quota);
        }
    }
    Ok(quotas)
}

/// A time some quarters of a window after `now`, shortly after it, or before it.
fn time(u: &mut Unstructured, now: u64, windows: &[WindowMs]) -> Result<u64> {
    let step = match u.int_in_range(0..=7)? {
        0..=3 => u64::from(u.arbitrary::<u8>()?),
        4..=5 => {
            let quarters = u64::from(u.int_in_range(0..=9u8)?);
            let window = i128::from(u.choose(windows)?.get());
            let window = length_of(window, number_of(window, now.into())) as u64;
            (window * quarters / 4).saturating_add_signed(u.int_in_range(-1..=1)?)
        }
        6 => return Ok(now.saturating_sub(u64::from(u.arbitrary::<u16>()?))),
        _ => number(u, MAX_SAFE_INTEGER)?,
    };
    Ok((now + step).min(MAX_SAFE_INTEGER))
}
