//! Calls on one key, and what a command does with each: by the limiter, and by the model.

use std::borrow::Cow;
use std::fmt;

use redis_rl_core::encoding::{decode_effect, encode_effect};
use redis_rl_core::limiter::key;
use redis_rl_core::limiter::{
    Algorithm, Cost, Decision, Effect, Key, Limiter, MAX_SAFE_INTEGER, Mismatch, Mode, Pending, Quota,
    Recorded, Request, Time, UnixMs, Verdict, WindowMs,
};

use crate::naive::Model;

/// A call of a command that counts, or of RL.PEEK.
#[derive(Clone)]
pub struct Call {
    pub act: Act,
    pub quotas: Vec<Quota>,
    pub cost: i64,
    pub now: u64,
    /// Whether `now` is named in AT, or is the clock's time.
    pub at: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    Peek,
    Take,
    Force,
    Partial,
    /// WITHIN so many milliseconds.
    Within(u64),
    /// FORCE, repeated: makes counts saturate or, with time in between, logs long.
    Flood {
        times: u32,
        apart_ms: u64,
    },
}

#[derive(Clone, Debug)]
pub struct History {
    pub algorithm: Algorithm,
    pub calls: Vec<Call>,
}

impl History {
    /// The limiter after all calls.
    pub fn limiter(&self) -> Limiter {
        let mut limiter = Limiter::new(self.algorithm);
        for call in &self.calls {
            let _ = answer(&mut limiter, call);
        }
        limiter
    }

    /// The distinct windows of all calls, and the time of the last call.
    pub fn windows_and_end(&self) -> (Vec<u64>, u64) {
        let quotas = self.calls.iter().flat_map(|call| &call.quotas);
        let mut windows: Vec<u64> = quotas.map(|quota| quota.window().get()).collect();
        windows.sort();
        windows.dedup();
        (windows, self.calls.last().map_or(0, Call::end))
    }
}

/// The reply to a call, and whether it is replicated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    pub verdict: Verdict,
    /// The time it was applied as of, if it changed anything.
    pub changed: Option<u64>,
    /// The units that PARTIAL or WITHIN granted; if it gave some back, minus those.
    pub granted: Option<i64>,
    /// The time at which the units of WITHIN are there.
    pub at: Option<u64>,
}

/// A key in memory. A limiter that holds nothing stands for a missing key.
pub struct MemoryKey<'k> {
    pub limiter: &'k mut Limiter,
    pub expires_at: &'k mut Option<UnixMs>,
}

impl Key for MemoryKey<'_> {
    fn limiter(&self) -> Option<&Limiter> {
        Some(&*self.limiter).filter(|limiter| !limiter.is_empty())
    }

    fn limiter_mut(&mut self) -> Option<&mut Limiter> {
        Some(&mut *self.limiter).filter(|limiter| !limiter.is_empty())
    }

    fn expires_at(&self) -> Option<UnixMs> {
        *self.expires_at
    }
}

impl MemoryKey<'_> {
    /// Does what is left to do after a request or an effect.
    pub fn carry_out(&mut self, fresh: Option<Limiter>, pending: Pending) {
        if pending.emptied {
            (*self.limiter, *self.expires_at) = (Limiter::new(self.limiter.algorithm()), None);
            return;
        }
        if let Some(fresh) = fresh.filter(|_| pending.changed) {
            *self.limiter = fresh;
        }
        assert!(!pending.changed || !self.limiter.is_empty(), "nothing is stored that holds nothing");
        *self.expires_at = pending.moved.expires.or(*self.expires_at);
    }
}

/// Does what a command does between its arguments and its reply.
pub fn answer(limiter: &mut Limiter, call: &Call) -> Result<Answer, Mismatch> {
    answer_and_send(limiter, &mut None, call, |_| {})
}

/// The same, with the clock at the time of each call. Updates the key's expiry too, and sends its effects to copies.
pub fn answer_and_send(
    limiter: &mut Limiter,
    expires_at: &mut Option<UnixMs>,
    call: &Call,
    mut send: impl FnMut(Effect),
) -> Result<Answer, Mismatch> {
    let cost = Cost::new(call.cost).expect("a cost");
    if call.act == Act::Peek {
        let mut time = call.time(call.now);
        let mut found = Cow::Borrowed(&*limiter);
        if !call.at {
            (found, time.clock) = limiter.as_moved_back(time.clock);
        }
        let Decision { verdict, .. } = found.peek(call.request(limiter.algorithm(), time))?;
        return Ok(Answer { verdict, changed: None, granted: None, at: None });
    }
    let algorithm = limiter.algorithm();
    let mut key = MemoryKey { limiter, expires_at };
    let mut run = |now| {
        let request = call.request(algorithm, call.time(now));
        let mut fresh = None;
        let answer = request.run(&mut key, &mut fresh)?;
        if answer.pending.is_any() {
            let recorded = || Recorded::of(algorithm, &call.quotas, cost, &answer.outcome);
            send(answer.pending.effect(recorded));
        }
        key.carry_out(fresh, answer.pending);
        let (outcome, verdict) = (answer.outcome, answer.verdict);
        Ok(Answer {
            verdict,
            changed: outcome.changed().then_some(outcome.as_of.get()),
            granted: answer.granted.map(|granted| granted.units.get()),
            at: answer.granted.filter(|_| call.is_within()).map(|granted| granted.at.get()),
        })
    };
    let mut answer = run(call.now)?;
    for now in call.times().skip(1) {
        answer = run(now)?;
    }
    Ok(answer)
}

/// Does what a copy does with an effect, as it is sent.
pub fn apply(copy: &mut Limiter, expires_at: &mut Option<UnixMs>, effect: &Effect) {
    let word = encode_effect(effect);
    let received = decode_effect(&word).expect("what was encoded is decoded");
    assert_eq!(received, *effect, "{}", String::from_utf8_lossy(&word));
    let (mut key, mut fresh) = (MemoryKey { limiter: copy, expires_at }, None);
    let pending = key::apply(effect, &mut key, &mut fresh).expect("it fits, as it did");
    match effect {
        Effect::Recorded(recorded) => {
            assert!(pending.changed && !pending.emptied);
            assert_eq!(pending.moved.expires, recorded.moved.expires, "it is told");
        }
        Effect::Moved(moved) => {
            assert!(moved.back.is_some() || moved.expires.is_some());
            assert_eq!(pending.moved, *moved);
        }
        Effect::Deleted => assert!(pending.emptied),
    }
    key.carry_out(fresh, pending);
}

pub fn quota(limit: u64, window: WindowMs) -> Quota {
    Quota::new(limit, window).expect("a limit")
}

/// A quota of this window, or of the window of the calendar that has this number, where no limit matters.
pub fn any_limit(window_ms: u64) -> Quota {
    quota(1, WindowMs::of_number(window_ms).expect("a window"))
}

/// The model's answer.
pub fn expected(model: &mut Model, call: &Call) -> Result<Answer, Mismatch> {
    let Call { quotas, cost, .. } = call;
    let held = model.clone();
    let (mut limited, mut changed) = (false, None);
    for now in call.times() {
        model.check_windows_fit(quotas, *cost, now)?;
        if !call.at {
            model.move_back(now);
        }
        match call.act {
            Act::Partial => return Ok(expected_of_partial(model, call)),
            Act::Within(most) => return Ok(expected_within(model, call, most)),
            Act::Peek | Act::Take | Act::Force | Act::Flood { .. } => {}
        }
        limited = model.refuses(quotas, *cost, now);
        let force = call.mode() == Mode::Force;
        changed = if call.counts(limited) { model.record(quotas, *cost, now, call.at, force) } else { None };
    }
    let changed = changed.map(|change| change.as_of);
    let verdict = model.verdict(quotas, *cost, call.end(), limited);
    if call.act == Act::Peek {
        *model = held;
    }
    Ok(Answer { verdict, changed, granted: None, at: None })
}

/// Takes the units ahead, if they are there within `most` milliseconds.
fn expected_within(model: &mut Model, call: &Call, most: u64) -> Answer {
    let &Call { ref quotas, cost, now, at, .. } = call;
    if !at && cost > 0 {
        // Nobody is told to wait for a clock that has stepped back.
        model.move_back_beyond(now, |_| 0);
    }
    let wait = model.wait(quotas, cost, now);
    let limited = wait.is_none_or(|wait| wait > most);
    let counts = !limited && cost != 0;
    let change = if counts { model.record(quotas, cost, now, at, false) } else { None };
    let newest = model.newest_of(quotas);
    let mut verdict = model.verdict(quotas, cost, now, limited);
    verdict.retry_after_ms =
        wait.map(|wait| if limited { wait - most } else { wait }).filter(|wait| *wait > 0);
    let there = if cost > 0 { (now + wait.unwrap_or(0)).min(MAX_SAFE_INTEGER) } else { now };
    let counted_at = change.map_or(now, |_| if cost > 0 { there.max(newest) } else { now });
    Answer {
        verdict,
        changed: change.map(|change| change.as_of),
        granted: Some(change.map_or(0, |change| change.units)),
        at: Some(counted_at),
    }
}

/// Takes the most units that are allowed; if those are not all, the reply is that to one more.
fn expected_of_partial(model: &mut Model, call: &Call) -> Answer {
    let &Call { ref quotas, cost, now, at, .. } = call;
    let part = model.most_allowed(quotas, cost, now);
    let change = if part == 0 { None } else { model.record(quotas, part, now, at, false) };
    let asked = if part < cost { 1 } else { cost };
    // A log that holds as many units as can be counted takes no more, even if they fit.
    let limited = part < cost && model.refuses(quotas, asked, now);
    Answer {
        verdict: model.verdict(quotas, asked, now, limited),
        changed: change.map(|change| change.as_of),
        granted: Some(change.map_or(0, |change| change.units)),
        at: None,
    }
}

impl Call {
    pub fn counts(&self, limited: bool) -> bool {
        self.act != Act::Peek && self.cost != 0 && (!limited || self.mode() == Mode::Force)
    }

    fn mode(&self) -> Mode {
        match self.act {
            Act::Force | Act::Flood { .. } => Mode::Force,
            Act::Partial => Mode::Partial,
            Act::Within(ms) => Mode::Within(WindowMs::new(ms).expect("a wait")),
            Act::Peek | Act::Take => Mode::AllOrNothing,
        }
    }

    pub fn request(&self, algorithm: Algorithm, time: Time) -> Request<'_> {
        let cost = Cost::new(self.cost).expect("a cost");
        Request { algorithm, quotas: &self.quotas, cost, mode: self.mode(), time }
    }

    fn is_within(&self) -> bool {
        matches!(self.act, Act::Within(_))
    }

    pub fn time(&self, now: u64) -> Time {
        let now = UnixMs::saturating(now);
        Time { clock: now, at: self.at.then_some(now) }
    }

    /// The times of all its repetitions.
    fn times(&self) -> impl Iterator<Item = u64> + use<> {
        let (now, (times, apart_ms)) = (self.now, self.repeats());
        (0..u64::from(times)).map(move |i| (now + i * apart_ms).min(MAX_SAFE_INTEGER))
    }

    /// The time of its last repetition.
    pub fn end(&self) -> u64 {
        self.times().last().unwrap_or(self.now)
    }

    fn repeats(&self) -> (u32, u64) {
        if let Act::Flood { times, apart_ms } = self.act { (times, apart_ms) } else { (1, 0) }
    }
}

/// Formats the command, so that a failing history can be read and tried.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(if self.act == Act::Peek { "RL.PEEK key" } else { "RL.<algorithm> key" })?;
        for quota in &self.quotas {
            write!(f, " {} {}", quota.limit(), window_word(quota.window()))?;
        }
        write!(f, " COST {} {} {}", self.cost, if self.at { "AT" } else { "at" }, self.now)?;
        match self.act {
            Act::Peek | Act::Take => Ok(()),
            Act::Force => f.write_str(" FORCE"),
            Act::Partial => f.write_str(" PARTIAL"),
            Act::Within(ms) => write!(f, " WITHIN {ms}ms"),
            Act::Flood { times, apart_ms } => write!(f, " FORCE, {times} times, {apart_ms} ms apart"),
        }
    }
}

/// A window as a command names it.
pub fn window_word(window: WindowMs) -> String {
    if window.is_of_calendar() { window.word().to_string() } else { format!("{}ms", window.get()) }
}

/// Asserts that limiter and model agree on all that is visible: on `windows`, and on what RL.INFO shows.
#[track_caller]
pub fn assert_agree(limiter: &Limiter, model: &Model, windows: &[u64], now: u64) {
    let at = UnixMs::saturating(now);
    for &window in windows {
        let used = limiter.used(any_limit(window), at);
        assert_eq!(used, model.used(&any_limit(window), now), "units in {window} ms at {now}");
    }
    assert_eq!(limiter.windows(at), model.windows(now), "at {now}");
    assert_eq!(limiter.entries(at), model.entries(now), "at {now}");
    assert_eq!(limiter.is_empty(), model.is_empty());
    assert_eq!(limiter.is_ahead_of(at), model.is_ahead_of(now), "of {now}");
}

/// Whether nothing in the model counts any more.
pub fn counts_nothing(model: &Model, now: u64) -> bool {
    model.windows(now).iter().all(|state| state.used == 0)
}
