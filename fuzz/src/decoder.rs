//! Any stored bytes are refused, or decode to a limiter that encodes to the same bytes and behaves like the plain
//! model of its content.

use redis_rl_core::encoding::{decode, encode};
use redis_rl_core::limiter::{Algorithm, Bucket, Limiter, MAX_SAFE_INTEGER, Quota, UnixMs, WindowMs};

use crate::calls::{Act, Call, answer, assert_agree, counts_nothing, expected, quota};
use crate::naive::{Model, Search, length_of, number_of, start_of};

/// Checks `payload`, the stored bytes of a key.
pub fn check(payload: &[u8]) {
    let Ok(limiter) = decode(payload) else { return };
    assert_eq!(encode(&limiter), payload, "each content has one encoding");
    assert!(!limiter.is_empty(), "a payload that holds nothing is not valid");
    let held = Held::by(&limiter);
    let windows = [held.window, WindowMs::MIN, WindowMs::MAX].map(WindowMs::get);
    let model = held.model(limiter.algorithm());
    for now in held.times() {
        let (mut limiter, mut model) = (limiter.clone(), model.clone());
        assert_agree(&limiter, &model, &windows, now);
        let end = now + limiter.lifetime_ms(UnixMs::saturating(now));
        assert!(limiter.is_ahead_of(UnixMs::saturating(now)) || counts_nothing(&model, end));
        for call in calls(held.window, now) {
            assert_eq!(answer(&mut limiter, &call), expected(&mut model, &call), "{call:?}");
            assert_can_be_stored(&limiter);
        }
    }
}

fn assert_can_be_stored(limiter: &Limiter) {
    if limiter.is_empty() {
        return;
    }
    let bytes = encode(limiter);
    let copy = decode(&bytes).expect("what was encoded is decoded");
    assert!(encode(&copy) == bytes && copy.algorithm() == limiter.algorithm());
    assert!(limiter.heap_bytes() < 1 << 20 && limiter.allocations() < 1 << 10);
}

/// Calls that count and give back, with the limiter's own window and with another.
fn calls(window: WindowMs, now: u64) -> Vec<Call> {
    const MOST: i64 = MAX_SAFE_INTEGER as i64;
    let other = if window == WindowMs::MAX { WindowMs::MIN } else { WindowMs::MAX };
    let both = vec![quota(1, window), quota(MAX_SAFE_INTEGER, other)];
    let own = both[..1].to_vec();
    let call = |act, quotas: &[Quota], cost| Call { act, quotas: quotas.to_vec(), cost, now, at: true };
    vec![
        call(Act::Take, &own, 1),
        call(Act::Force, &both, MOST),
        call(Act::Take, &own, -2),
        call(Act::Force, &own, 1),
        call(Act::Take, &both, -MOST),
        call(Act::Take, &own, -MOST),
    ]
}

/// The content of a limiter, as calls that would have counted it.
struct Held {
    /// (window, units, time), in the order to count them. Negative units are given back.
    counted: Vec<(WindowMs, i64, u64)>,
    /// The longest window.
    window: WindowMs,
    buckets: Vec<Bucket>,
}

impl Held {
    fn by(limiter: &Limiter) -> Held {
        let (mut counted, buckets) = (Vec::new(), limiter.buckets());
        match limiter.algorithm() {
            Algorithm::Log => {
                let window = limiter.retention().expect("not empty");
                let entries = limiter.log_entries();
                counted.extend(entries.iter().map(|entry| (window, entry.units as i64, entry.at.get())));
            }
            // Levels are not whole units, so the model is made of them.
            Algorithm::Bucket => {
                counted.extend(buckets.iter().map(|bucket| (bucket.window, 1, bucket.last.get())));
            }
            Algorithm::Fixed | Algorithm::Sliding => {
                let mut counters: Vec<_> = limiter.counters().expect("it has counters").iter().collect();
                // Later windows first, so that recording one does not drop another that no longer counts by then.
                let start =
                    |window: WindowMs, number: u64| start_of(window.get().into(), number.into()) as u64;
                counters.sort_by_key(|counter| std::cmp::Reverse(start(counter.window, counter.number)));
                for counter in counters {
                    let (window, start) = (counter.window, start(counter.window, counter.number));
                    if counter.previous > 0 {
                        counted.push((window, counter.previous as i64, start - window.get()));
                    }
                    if counter.current > 0 {
                        counted.push((window, counter.current as i64, start));
                    } else {
                        counted.extend([(window, 1, start), (window, -1, start)]);
                    }
                }
            }
        }
        let window = counted.iter().map(|(window, ..)| *window).max().expect("not empty");
        Held { counted, window, buckets }
    }

    fn model(&self, algorithm: Algorithm) -> Model {
        match algorithm {
            Algorithm::Log => {
                let entries: Vec<_> = self.counted.iter().map(|&(_, units, at)| (at, units as u64)).collect();
                Model::of_log(&entries, self.window, Search::Halving)
            }
            Algorithm::Bucket => Model::of_buckets(&self.buckets, Search::Halving),
            Algorithm::Fixed | Algorithm::Sliding => {
                let mut model = Model::new(algorithm, Search::Halving);
                for &(window, units, at) in &self.counted {
                    let quota = quota(MAX_SAFE_INTEGER, window);
                    assert!(model.record(&[quota], units, at, true, false).is_some());
                }
                model
            }
        }
    }

    /// Times at which something changes. Only the first for large content, since the model is slow.
    fn times(&self) -> impl Iterator<Item = u64> {
        let (first, last) = (self.counted[0].2, self.counted[self.counted.len() - 1].2);
        let window = i128::from(self.window.get());
        let window = length_of(window, number_of(window, last.into())) as u64;
        let times = [first + window, last, last + window - 1, 0, UnixMs::MAX.get()];
        let tried = if self.counted.len() > 100 { 1 } else { times.len() };
        times.into_iter().take(tried).map(|at| at.min(UnixMs::MAX.get()))
    }
}
