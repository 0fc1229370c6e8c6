//! The entries that a run holds, whatever was pushed, dropped and replaced.

use super::*;

impl Run {
    fn units(&self) -> u64 {
        self.end.units_since(&self.front.mark)
    }

    fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut at_ms = self.front.mark.at_ms;
        self.pieces().flat_map(entry::iter).map(move |(since, units)| {
            at_ms = at_ms.wrapping_add(since);
            (at_ms, units)
        })
    }

    fn find(&self, from: Cursor, passes: impl Fn(&Mark) -> bool) -> Cursor {
        self.seek(from, passes).0
    }
}

fn filled(entries: &[(u64, u64)]) -> Run {
    let mut run = Run::default();
    for &(at_ms, units) in entries {
        run.push(at_ms, units);
    }
    run
}

/// Small and large gaps and costs, over several blocks.
fn many() -> Vec<(u64, u64)> {
    let gaps = [1, 2, 127, 128, 129, 16_383, 16_384, 1 << 40];
    let units = [1, 1, 1, 2, 127, 128, 1 << 53];
    let mut at_ms = 0;
    (0..5_000)
        .map(|i| {
            at_ms += gaps[i % gaps.len()];
            (at_ms, units[i % units.len()])
        })
        .collect()
}

#[test]
fn iterating_returns_what_was_pushed() {
    let entries = many();
    let run = filled(&entries);
    assert!(run.blocks.len() > 10);
    assert_eq!(run.iter().collect::<Vec<_>>(), entries);
    assert_eq!(run.end().entries_since(&run.front().mark), 5_000);
    assert_eq!(run.units(), entries.iter().fold(0u64, |sum, e| sum.wrapping_add(e.1)));
}

#[test]
fn units_of_one_time_join_its_entry_in_a_block_that_does_not_outgrow_its_size() {
    let mut rng = fastrand::Rng::with_seed(3);
    let (mut run, mut expected, mut at_ms) = (Run::default(), Vec::<(u64, u64)>::new(), 1_000);
    for _ in 0..20_000 {
        at_ms += rng.u64(0..3);
        run.push(at_ms, 1);
        match expected.last_mut() {
            Some(newest) if newest.0 == at_ms => newest.1 += 1,
            _ => expected.push((at_ms, 1)),
        }
        assert!(run.blocks.iter().all(|block| block.bytes.capacity() <= BLOCK_BYTES));
        if rng.u32(0..500) == 0 {
            // All but the newest.
            let newest = run.find(run.front(), |mark| mark.at_ms < at_ms);
            run.drop_before(newest);
            expected.drain(..expected.len() - 1);
        }
        assert_eq!(run.oldest_at_ms(), expected[0].0);
    }
    assert_eq!(run.iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_run_may_begin_at_time_zero() {
    assert_eq!(filled(&[(0, 1), (1, 3)]).iter().collect::<Vec<_>>(), [(0, 1), (1, 3)]);
}

#[test]
fn seek_finds_each_entry_from_any_place_before_it() {
    let entries = many();
    let run = filled(&entries);
    let middle = run.find(run.front(), |mark| mark.at_ms < entries[1_234].0);
    for i in (0..entries.len()).step_by(7) {
        let wanted = entries[i].0;
        let place = run.find(run.front(), |mark| mark.at_ms < wanted);
        assert_eq!(run.after(&place).unwrap().mark.at_ms, wanted);
        if i >= 1_234 {
            assert_eq!(run.find(middle, |mark| mark.at_ms < wanted), place);
        }
    }
    let end = run.find(run.front(), |_| true);
    assert_eq!(end.mark, run.end());
    assert_eq!(run.after(&end), None);
}

#[test]
fn dropping_and_truncating_keep_the_entries_between() {
    let entries = many();
    for (from, to) in [(0, 5_000), (1, 4_999), (900, 901), (2_000, 2_000), (4_999, 5_000)] {
        let mut run = filled(&entries);
        let first = run.find(run.front(), |mark| mark.entries_since(&Mark::default()) <= from as u64);
        let last = run.find(run.front(), |mark| mark.entries_since(&Mark::default()) <= to as u64);
        run.drop_before(first);
        run.truncate(last);
        assert_eq!(run.iter().collect::<Vec<_>>(), entries[from..to]);
        assert_eq!(run.is_empty(), from == to);
        run.push(1 << 52, 9);
        assert_eq!(run.iter().last(), Some((1 << 52, 9)));
    }
}

/// The number of entries before a place.
fn number(place: &Cursor) -> usize {
    place.mark.entries_since(&Mark::default()) as usize
}

/// Every place in a run, the end included.
fn places(run: &Run) -> Vec<Cursor> {
    std::iter::successors(Some(run.front()), |place| run.after(place)).collect()
}

#[track_caller]
fn assert_holds(run: &Run, wanted: &[(u64, u64)]) {
    assert_eq!(run.iter().collect::<Vec<_>>(), wanted);
    assert_eq!(run.end().entries_since(&run.front().mark), wanted.len() as u64);
    assert_eq!(run.units(), wanted.iter().fold(0, |sum, entry| sum + entry.1));
    if let Some((at_ms, _)) = wanted.first() {
        assert_eq!(run.oldest_at_ms(), *at_ms);
        assert_eq!(run.end().at_ms, wanted[wanted.len() - 1].0);
    }
    // Seeking checks the totals of the blocks.
    for (i, (at_ms, _)) in wanted.iter().enumerate().step_by(1 + wanted.len() / 100) {
        let place = run.find(run.front(), |mark| mark.at_ms < *at_ms);
        assert_eq!(place.mark.entries_since(&run.front().mark), i as u64);
    }
    for (block, next) in run.blocks.iter().zip(run.blocks.iter().skip(1)) {
        // A block ends early if the longest entry might not fit.
        assert!(block.bytes.len() + next.bytes.len() > BLOCK_BYTES - MOST_BYTES, "small blocks");
        assert!(!block.bytes.is_empty() && block.bytes.len() < BLOCK_BYTES + MOST_BYTES);
    }
}

/// Random entries, short and long, some from time zero on.
fn random(random: &mut fastrand::Rng, entries: usize) -> Vec<(u64, u64)> {
    let of_bits = |random: &mut fastrand::Rng, most: u32| random.u64(..) >> (63 - random.u32(..most)) >> 1;
    let mut at_ms = if random.bool() { 0 } else { of_bits(random, 45) };
    let most = *random.choice(&[1, 8, 40]).expect("not empty");
    let mut next = || {
        let entry = (at_ms, 1 + if random.bool() { 0 } else { of_bits(random, most) });
        at_ms += 1 + of_bits(random, most);
        entry
    };
    (0..entries).map(|_| next()).collect()
}

/// Replaces the entries between two places, with and without keeping part of the first, then pushes and
/// drops.
fn cut_and_compare(run: &Run, entries: &[(u64, u64)], from: Cursor, to: Cursor) {
    let (first, last) = (number(&from), number(&to));
    let dropped = entries.len() - run.end().entries_since(&run.front().mark) as usize;
    let kept = (first < last).then(|| (entries[first].0, entries[first].1.div_ceil(2)));
    for entry in [None, kept] {
        let mut run = run.clone();
        let mut wanted = [&entries[..first], entry.as_slice(), &entries[last..]].concat();
        run.replace(from, to, entry);
        assert_holds(&run, &wanted[dropped..]);
        let later = entries.last().map_or(0, |entry| entry.0) + 300;
        run.push(later, 2);
        wanted.push((later, 2));
        assert_holds(&run, &wanted[dropped..]);
        let middle = wanted[dropped..].len() / 2;
        let place = places(&run)[middle];
        run.drop_before(place);
        assert_holds(&run, &wanted[dropped + middle..]);
    }
}

#[test]
fn every_cut_in_a_short_run_keeps_the_entries_around_it() {
    let mut rng = fastrand::Rng::with_seed(12);
    for length in 1..12 {
        for _ in 0..20 {
            let entries = random(&mut rng, length);
            let whole = filled(&entries);
            for front in places(&whole) {
                let mut run = whole.clone();
                run.drop_before(front);
                let places = places(&run);
                for (i, from) in places.iter().enumerate() {
                    for to in &places[i..] {
                        cut_and_compare(&run, &entries, *from, *to);
                    }
                }
            }
        }
    }
}

#[test]
fn cuts_across_blocks_keep_the_entries_around_them() {
    let mut rng = fastrand::Rng::with_seed(12);
    for _ in 0..40 {
        let length = rng.usize(500..2_500);
        let entries = random(&mut rng, length);
        let mut run = filled(&entries);
        let all = places(&run);
        run.drop_before(all[rng.usize(..length / 4)]);
        let places = places(&run);
        for _ in 0..20 {
            let from = rng.usize(..places.len());
            let most = *rng.choice(&[1, 8, length]).expect("not empty");
            let to = (from + rng.usize(..=most)).min(places.len() - 1);
            cut_and_compare(&run, &entries, places[from], places[to]);
        }
    }
}

#[test]
fn repeated_cuts_leave_a_compact_run() {
    let mut rng = fastrand::Rng::with_seed(12);
    let mut entries: Vec<(u64, u64)> = random(&mut rng, 6_000);
    let mut run = filled(&entries);
    while entries.len() > 10 {
        let places = places(&run);
        let from = rng.usize(..entries.len());
        let to = (from + rng.usize(..20)).min(entries.len());
        let kept = (to - from > 1).then(|| entries[from]);
        run.replace(places[from], places[to], kept);
        entries.splice(from..to, kept);
        assert_holds(&run, &entries);
        let bytes: usize = run.blocks.iter().map(|block| block.bytes.len()).sum();
        assert!(run.heap_bytes() <= 2 * bytes + 2 * BLOCK_BYTES, "{} for {bytes}", run.heap_bytes());
    }
}

#[test]
fn a_unit_takes_a_byte_or_two() {
    let mut run = Run::default();
    for i in 0..1_000 {
        run.push(i * 60, 1);
    }
    assert!(run.heap_bytes() < 1_400, "{}", run.heap_bytes());
}

#[test]
fn a_steady_run_does_not_grow() {
    let mut run = filled(&(0..1_000).map(|i| (i, 1)).collect::<Vec<_>>());
    for i in 1_000..100_000u64 {
        let place = run.find(run.front(), |mark| mark.at_ms + 1_000 <= i);
        run.drop_before(place);
        run.push(i, 1);
    }
    assert_eq!(run.units(), 1_000);
    assert!(run.heap_bytes() <= 3 * BLOCK_BYTES + 8 * size_of::<Block>());
}
