//! The state of a key: decide, then commit.

use std::borrow::Cow;
use std::slice;

use super::algorithm::{Algorithm, Mover, WindowUsage};
use super::bucket::{self, Bucket, Buckets};
use super::counters::{CALENDAR_APART, Counters, Method, Numbered};
use super::decision::{Decision, Mismatch, Mode, Request, State, StateMut, Verdict, Wait};
use super::lifetime::{MoveBack, Outcome, OwnTime, TimeSource};
use super::log::large::Large;
use super::log::short::{self, LEAST_BYTES, LogHolder, MOST_BYTES, Short};
use super::log::{Entries, Entry};
use super::quota::{Cost, Quota, QuotaList, Time, UnixMs, WindowMs};

/// The state of one key, in 16 bytes, since there may be millions of keys:
///
/// ```text
///  1 byte    the variant; of one small counter, its algorithm too
/// 15         that counter; else 7 bytes of nothing, and 8 that point to an allocation
/// ```
#[derive(Clone, Debug)]
pub enum Limiter {
    /// RL.FIXED or RL.SLIDING.
    Counters(Counters),
    /// RL.LOG with many units.
    Large(Box<Large>),
    /// RL.LOG with few units: see [`short`]. The variant is the size of the allocation, since a slice pointer would
    /// make `Limiter` larger.
    Short32(Box<[u8; 32]>),
    /// A short log in 48 bytes.
    Short48(Box<[u8; 48]>),
    /// A short log in 64 bytes.
    Short64(Box<[u8; 64]>),
    /// A short log in 128 bytes.
    Short128(Box<[u8; 128]>),
    /// A short log in 256 bytes.
    Short256(Box<[u8; 256]>),
    /// RL.BUCKET with one window.
    Bucket(Box<bucket::PackedBucket>),
    /// RL.BUCKET with several windows. In a box, since a list would make `Limiter` larger.
    Buckets(Box<Vec<bucket::PackedBucket>>),
}

/// Matches a short log of any size.
macro_rules! any_short {
    () => {
        Limiter::Short32(_)
            | Limiter::Short48(_)
            | Limiter::Short64(_)
            | Limiter::Short128(_)
            | Limiter::Short256(_)
    };
}

/// Matches buckets.
macro_rules! any_buckets {
    () => {
        Limiter::Bucket(_) | Limiter::Buckets(_)
    };
}

/// Evaluates an expression about the allocation of a short log; if the limiter is none, the expression `otherwise`.
macro_rules! of_short {
    ($limiter:expr, $bytes:ident => $then:expr, $otherwise:expr) => {
        match $limiter {
            Limiter::Short32($bytes) => $then,
            Limiter::Short48($bytes) => $then,
            Limiter::Short64($bytes) => $then,
            Limiter::Short128($bytes) => $then,
            Limiter::Short256($bytes) => $then,
            Limiter::Counters(_) | Limiter::Large(_) | any_buckets!() => $otherwise,
        }
    };
}

/// A limiter to read, with short logs of all sizes in one variant, and all buckets.
pub(crate) enum Form<'a> {
    Counters(&'a Counters),
    Short(Short<&'a Limiter>),
    Large(&'a Large),
    Buckets(Buckets<&'a Limiter>),
}

/// Evaluates an expression about the state of a limiter, whatever its form.
macro_rules! read {
    ($limiter:expr, $state:ident => $then:expr) => {
        match $limiter.form() {
            Form::Counters(counters) if counters.is_of_calendar() => {
                let $state = &Numbered::by_calendar(counters);
                $then
            }
            Form::Counters(counters) => {
                let $state = &Numbered::by_method(counters);
                $then
            }
            Form::Short(ref $state) => $then,
            Form::Large($state) => $then,
            Form::Buckets(ref $state) => $then,
        }
    };
}

/// Evaluates an expression that changes the state of a limiter, whatever its form.
macro_rules! change {
    ($limiter:expr, $state:ident => $then:expr) => {
        match $limiter {
            Limiter::Counters(counters) if counters.is_of_calendar() => {
                let $state = &mut Numbered::by_calendar(counters);
                $then
            }
            Limiter::Counters(counters) => {
                let $state = &mut Numbered::by_method(counters);
                $then
            }
            Limiter::Large(large) => {
                let $state = large.as_mut();
                let done = $then;
                $limiter.shorten();
                done
            }
            any_short!() => {
                let $state = &mut Short::new(&mut *$limiter);
                $then
            }
            any_buckets!() => {
                let $state = &mut Buckets(&mut *$limiter);
                $then
            }
        }
    };
}

const _: () = assert!(size_of::<Limiter>() == 16);

impl LogHolder for Limiter {
    fn allocate(bytes: &[u8], size: usize) -> Limiter {
        fn filled<const N: usize>(bytes: &[u8]) -> Box<[u8; N]> {
            let mut filled = Box::new([0; N]);
            filled[..bytes.len()].copy_from_slice(bytes);
            filled
        }
        match size {
            0..=LEAST_BYTES => Limiter::Short32(filled(bytes)),
            33..=48 => Limiter::Short48(filled(bytes)),
            49..=64 => Limiter::Short64(filled(bytes)),
            65..=128 => Limiter::Short128(filled(bytes)),
            129..=MOST_BYTES => Limiter::Short256(filled(bytes)),
            _ => unreachable!("a short log fits the largest allocation"),
        }
    }

    /// Empty if the limiter is no short log.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn bytes(&self) -> &[u8] {
        of_short!(self, bytes => &bytes[..], &[])
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        of_short!(self, bytes => &mut bytes[..], &mut [])
    }
}

impl bucket::BucketHolder for Limiter {
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn slots(&self) -> &[bucket::PackedBucket] {
        match self {
            Limiter::Bucket(bucket) => slice::from_ref(bucket),
            Limiter::Buckets(buckets) => buckets,
            _ => &[],
        }
    }

    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn slots_mut(&mut self) -> &mut [bucket::PackedBucket] {
        match self {
            Limiter::Bucket(bucket) => slice::from_mut(bucket),
            Limiter::Buckets(buckets) => buckets,
            _ => &mut [],
        }
    }

    fn replace(&mut self, mut slots: Vec<bucket::PackedBucket>) {
        *self = match slots.as_slice() {
            [only] => Limiter::Bucket(Box::new(*only)),
            _ => {
                slots.shrink_to_fit();
                Limiter::Buckets(Box::new(slots))
            }
        };
    }
}

impl Limiter {
    /// Counts nothing, whatever it is asked.
    pub const NOTHING: Limiter = Limiter::Counters(Counters::new(Method::Fixed));

    /// An empty limiter.
    pub fn new(algorithm: Algorithm) -> Limiter {
        match algorithm {
            Algorithm::Fixed => Limiter::Counters(Counters::new(Method::Fixed)),
            Algorithm::Sliding => Limiter::Counters(Counters::new(Method::Sliding)),
            Algorithm::Log => short::empty(),
            Algorithm::Bucket => Limiter::Bucket(Box::default()),
        }
    }

    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    pub(crate) fn form(&self) -> Form<'_> {
        match self {
            Limiter::Counters(counters) => Form::Counters(counters),
            Limiter::Large(large) => Form::Large(large),
            any_short!() => Form::Short(Short::new(self)),
            any_buckets!() => Form::Buckets(Buckets(self)),
        }
    }

    /// The algorithm it counts by.
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Limiter::Counters(counters) => counters.algorithm(),
            Limiter::Large(_) | any_short!() => Algorithm::Log,
            any_buckets!() => Algorithm::Bucket,
        }
    }

    /// Whether a quota refuses the request. Changes nothing.
    ///
    /// # Errors
    ///
    /// The key is counted by another algorithm, or cannot hold the windows.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    pub fn is_limited(&self, request: Request) -> Result<bool, Mismatch> {
        self.check_algorithm(request.algorithm)?;
        read!(self, state => request.is_limited(state))
    }

    /// Commits a request that [`is_limited`](Self::is_limited) has checked, if it `counts`. Passes on the verdict on each tier, and how
    /// long until that allows the same request again.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    pub fn commit_if(
        &mut self,
        request: Request,
        counts: bool,
        verdicts: impl FnMut(Verdict, Wait),
    ) -> Outcome {
        if counts {
            self.make_room(request);
        }
        change!(self, state => request.commit_if(state, counts, verdicts))
    }

    /// Decides, and commits the request if it is allowed or forced: in one pass.
    ///
    /// # Errors
    ///
    /// Those of [`is_limited`](Self::is_limited). An error changes nothing.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    pub fn decide_and_commit(&mut self, request: Request) -> Result<Decision, Mismatch> {
        let Request { algorithm, quotas, cost, mode, time } = request;
        match self {
            _ if cost.get() < 0 || self.algorithm() != algorithm => {}
            Limiter::Counters(counters) if counters.is_of_calendar() || names_calendar(quotas) => {}
            Limiter::Counters(counters) => {
                let decision = request.decide_and_commit(&mut Numbered::by_method(counters))?;
                return Ok(decision);
            }
            Limiter::Large(large) => {
                let decision = request.decide_and_commit(large.as_mut())?;
                self.shorten();
                return Ok(decision);
            }
            any_short!() => {
                let mut short = Short::new(&mut *self);
                if short.surely_has_room(cost.to_take(), time.as_of()) {
                    return request.decide_and_commit(&mut short);
                }
            }
            any_buckets!() => return request.decide_and_commit(&mut Buckets(self)),
        }
        let force = mode == Mode::Force;
        let quotas = quotas.iter().copied().collect();
        let decision = self.decide_and_commit_rarely(algorithm, quotas, cost, force, time)?;
        Ok(decision)
    }

    /// Gives units back, counts them in a short log that may have to grow or by the calendar, or refuses another algorithm: what few
    /// requests do.
    /// Inlined, it would make the usual ones slower.
    #[cold]
    #[inline(never)]
    fn decide_and_commit_rarely(
        &mut self,
        algorithm: Algorithm,
        quotas: QuotaList,
        cost: Cost,
        force: bool,
        time: Time,
    ) -> Result<Decision, Mismatch> {
        let mode = if force { Mode::Force } else { Mode::AllOrNothing };
        let request = Request { algorithm, quotas: &quotas, cost, mode, time };
        let limited = self.is_limited(request)?;
        if force || !limited {
            self.make_room(request);
        }
        change!(self, state => request.decide_and_commit(state))
    }

    /// PARTIAL: counts as many of the units as fit every quota. If not all do, the verdict is that of a request for one more.
    ///
    /// # Errors
    ///
    /// Those of [`is_limited`](Self::is_limited). An error changes nothing.
    pub fn decide_and_commit_part(&mut self, request: Request) -> Result<Decision, Mismatch> {
        let of = |cost| Request { cost, ..request };
        let mut decision = self.decide_and_commit(request)?;
        if decision.verdict.limited {
            // A peek at no units is allowed, so it tells what remains in the tier that has least: fewer than the cost.
            let part = request.cost.at_most(self.peek(of(Cost::ZERO))?.verdict.remaining);
            if part != Cost::ZERO {
                let moved_back = decision.outcome.own_time.moved_back;
                let Decision { outcome, .. } = self.decide_and_commit(of(part))?;
                decision.outcome =
                    Outcome { own_time: OwnTime { moved_back, ..outcome.own_time }, ..outcome };
            }
            decision.verdict = self.peek(of(Cost::ONE))?.verdict;
        }
        Ok(decision)
    }

    /// WITHIN: counts units in buckets, if they are there within so many milliseconds. The verdict tells how long to wait for them.
    ///
    /// # Errors
    ///
    /// The key is counted by another algorithm than RL.BUCKET, or cannot hold the windows. An error changes nothing.
    pub fn decide_and_commit_within(&mut self, request: Request, most_ms: u64) -> Result<Decision, Mismatch> {
        match self {
            any_buckets!() => request.decide_and_commit_within(&mut Buckets(self), most_ms),
            Limiter::Counters(_) | Limiter::Large(_) | any_short!() => {
                Err(Mismatch::OtherAlgorithm(self.algorithm()))
            }
        }
    }

    /// Counts the units, or gives them back, without a verdict. `awaited`: see [`Recorded::awaited`](super::Recorded::awaited).
    ///
    /// # Errors
    ///
    /// Those of [`is_limited`](Self::is_limited). An error changes nothing.
    #[inline(always)]
    pub fn record(&mut self, request: Request, awaited: bool) -> Result<Outcome, Mismatch> {
        self.check_algorithm(request.algorithm)?;
        self.make_room(request);
        change!(self, state => request.record(state, awaited))
    }

    /// Moves what is too far ahead of the clock. Returns whether anything was.
    pub fn move_back(&mut self, to: MoveBack) -> bool {
        change!(self, state => state.move_back(to))
    }

    /// The limiter as a request without AT would move it back, and the time to read it at. A log is not copied: all its times
    /// keep their distance, so a later time reads the same of it.
    pub fn as_moved_back(&self, clock: UnixMs) -> (Cow<'_, Limiter>, UnixMs) {
        if !self.is_ahead_of(clock) {
            return (Cow::Borrowed(self), clock);
        }
        let to = MoveBack { clock, most: self.source().most_ahead() };
        match self.form() {
            Form::Short(short) => (Cow::Borrowed(self), clock + short.ms_to_move_back(to)),
            Form::Large(large) => (Cow::Borrowed(self), clock + large.ms_to_move_back(to)),
            Form::Counters(_) | Form::Buckets(_) => {
                let mut moved = self.clone();
                moved.move_back(to);
                (Cow::Owned(moved), clock)
            }
        }
    }

    /// Decides on a request that will not be counted, by the limiter's own algorithm.
    ///
    /// # Errors
    ///
    /// The key cannot hold the windows.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    pub fn peek(&self, request: Request) -> Result<Decision, Mismatch> {
        read!(self, state => request.peek(state))
    }

    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn check_algorithm(&self, algorithm: Algorithm) -> Result<(), Mismatch> {
        match self.algorithm() {
            own if own == algorithm => Ok(()),
            own => Err(Mismatch::OtherAlgorithm(own)),
        }
    }

    /// Turns a short log into a large one if the units do not fit, and counters into those of a key with windows of the calendar.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn make_room(&mut self, Request { quotas, cost, time, .. }: Request) {
        if let Limiter::Counters(counters) = self {
            if names_calendar(quotas) && cost.to_take() > 0 && !counters.is_of_calendar() {
                counters.make_room_for_calendar();
            }
            return;
        }
        if let any_short!() = self
            && cost.to_take() > 0
            && let mut short = Short::new(&mut *self)
            && !short.make_room(quotas, cost.to_take(), time.as_of())
        {
            *self = Limiter::Large(short::lengthened(&short));
        }
    }

    /// Turns a large log that has shrunk into a short one.
    fn shorten(&mut self) {
        if let Limiter::Large(large) = self
            && let Some(short) = short::shortened(large, true)
        {
            *self = short;
        }
    }

    /// Units that count in the window of `quota` at `now`: of a sliding window rounded down, of a bucket rounded up.
    pub fn used(&self, quota: Quota, now: UnixMs) -> u64 {
        read!(self, state => state.usage(quota, now).used)
    }

    /// Whether it holds no units, not even expired ones: only a new one.
    pub fn is_empty(&self) -> bool {
        read!(self, state => state.is_empty())
    }

    /// How long from `now` it can affect a decision, in milliseconds: exact for counters, rounded up by at most an eighth of the
    /// longest window for a log, of its window for a bucket, so that few requests move the key's expiry.
    pub fn lifetime_ms(&self, now: UnixMs) -> u64 {
        read!(self, state => state.lifetime_ms(now))
    }

    /// Where the time that set the key's expiry came from.
    pub fn source(&self) -> TimeSource {
        read!(self, state => state.source())
    }

    /// Records where the time that set the key's expiry came from.
    pub fn set_source(&mut self, source: TimeSource) {
        match self {
            Limiter::Counters(counters) => counters.set_source(source),
            Limiter::Large(large) => large.set_source(source),
            any_short!() => Short::new(self).set_source(source),
            any_buckets!() => Buckets(self).set_source(source),
        }
    }

    /// Whether its own time is later than `now`: a clock stepped back, or AT named a later time.
    pub fn is_ahead_of(&self, now: UnixMs) -> bool {
        read!(self, state => state.is_ahead_of(now))
    }

    /// The latest time that anything was counted at: in any window for a log, in those of `quotas` for buckets and for
    /// counters, where it is the start of the window.
    pub fn newest_in(&self, quotas: &[Quota]) -> UnixMs {
        read!(self, state => state.newest_in(quotas))
    }

    /// The windows that can still count at `now`, shortest first. A log has one: its longest.
    pub fn windows(&self, now: UnixMs) -> Vec<WindowUsage> {
        read!(self, state => state.windows(now))
    }

    /// The counters of RL.FIXED or RL.SLIDING; `None` for the others.
    pub fn counters(&self) -> Option<&Counters> {
        if let Limiter::Counters(counters) = self { Some(counters) } else { None }
    }

    /// The buckets of RL.BUCKET, shortest window first.
    pub fn buckets(&self) -> Vec<Bucket> {
        match self.form() {
            Form::Buckets(buckets) => buckets.iter().collect(),
            Form::Counters(_) | Form::Short(_) | Form::Large(_) => Vec::new(),
        }
    }

    /// A limiter of these buckets; `None` if they cannot be those of one.
    pub(crate) fn of_buckets(buckets: &[Bucket]) -> Option<Limiter> {
        let mut limiter = Limiter::new(Algorithm::Bucket);
        bucket::BucketHolder::replace(&mut limiter, bucket::restore(buckets)?);
        Some(limiter)
    }

    /// How long a log keeps its units; `None` for the others, and for a log that never held any.
    pub fn retention(&self) -> Option<WindowMs> {
        match self.form() {
            Form::Counters(_) | Form::Buckets(_) => None,
            Form::Short(short) => short.retention(),
            Form::Large(large) => large.retention(),
        }
    }

    /// The entries of a log, oldest first.
    pub fn log_entries(&self) -> Vec<Entry> {
        match self.form() {
            Form::Counters(_) | Form::Buckets(_) => Vec::new(),
            Form::Short(short) => short.iter().collect(),
            Form::Large(large) => large.iter().collect(),
        }
    }

    /// The number of distinct timestamps in a log that count at `now`; `None` for the others.
    pub fn entries(&self, now: UnixMs) -> Option<u64> {
        match self.form() {
            Form::Counters(_) | Form::Buckets(_) => None,
            Form::Short(short) => Some(short.count(now)),
            Form::Large(large) => Some(large.count(now)),
        }
    }

    /// Bytes that it points to, its own 16 not included.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Limiter::Counters(counters) => counters.heap_bytes(),
            Limiter::Large(large) => large.heap_bytes(),
            any_short!() => self.bytes().len(),
            Limiter::Bucket(bucket) => size_of_val(&**bucket),
            Limiter::Buckets(list) => {
                size_of_val(&**list) + list.capacity() * size_of::<bucket::PackedBucket>()
            }
        }
    }

    /// The number of its allocations, roughly, its own box included: the effort of freeing it.
    pub fn allocations(&self) -> usize {
        match self {
            Limiter::Counters(_) => 1,
            Limiter::Large(large) => 1 + large.allocations(),
            any_short!() | Limiter::Bucket(_) => 2,
            Limiter::Buckets(_) => 3,
        }
    }

    /// Returns the same limiter, with every allocation passed through `mover`.
    pub fn relocate(self, mover: &mut impl Mover) -> Limiter {
        match self {
            Limiter::Counters(counters) => Limiter::Counters(counters.relocate(mover)),
            Limiter::Large(large) => {
                let mut large = mover.move_box(large);
                large.relocate(mover);
                Limiter::Large(large)
            }
            Limiter::Short32(bytes) => Limiter::Short32(mover.move_box(bytes)),
            Limiter::Short48(bytes) => Limiter::Short48(mover.move_box(bytes)),
            Limiter::Short64(bytes) => Limiter::Short64(mover.move_box(bytes)),
            Limiter::Short128(bytes) => Limiter::Short128(mover.move_box(bytes)),
            Limiter::Short256(bytes) => Limiter::Short256(mover.move_box(bytes)),
            Limiter::Bucket(bucket) => Limiter::Bucket(mover.move_box(bucket)),
            Limiter::Buckets(buckets) => {
                let mut buckets = mover.move_box(buckets);
                *buckets = mover.move_vec(std::mem::take(&mut *buckets));
                Limiter::Buckets(buckets)
            }
        }
    }
}

/// Whether a request names windows of the calendar.
#[inline(always)]
fn names_calendar(quotas: &[Quota]) -> bool {
    CALENDAR_APART && quotas.iter().any(|quota| quota.window().is_of_calendar())
}

impl From<Large> for Limiter {
    /// Converts it, to a short log if it fits.
    fn from(large: Large) -> Limiter {
        short::shortened(&large, false).unwrap_or_else(|| Limiter::Large(Box::new(large)))
    }
}
