//! The entries that a run holds, whatever was pushed, dropped and replaced.

use fastrand::Rng;

use super::*;

impl Run {
    fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut at_ms = self.front.mark.at_ms;
        self.pieces().flat_map(entry::iter).map(move |(since, units)| {
            at_ms = at_ms.wrapping_add(since);
            (at_ms, units)
        })
    }

    /// The place before the first entry at `at_ms` or later.
    fn find(&self, from: Cursor, at_ms: u64) -> Cursor {
        self.seek(from, |mark| mark.at_ms < at_ms).0
    }

    /// Every place in the run, the end included.
    fn places(&self) -> Vec<Cursor> {
        std::iter::successors(Some(self.front()), |place| self.after(place)).collect()
    }
}

fn filled(entries: &[(u64, u64)]) -> Run {
    let mut run = Run::default();
    entries.iter().for_each(|&(at_ms, units)| run.push(at_ms, units));
    run
}

/// Random entries, short and long, some from time zero on.
fn random(random: &mut Rng, entries: usize) -> Vec<(u64, u64)> {
    let of_bits = |random: &mut Rng, most: u32| random.u64(..) >> (63 - random.u32(..most)) >> 1;
    let mut at_ms = if random.bool() { 0 } else { of_bits(random, 45) };
    let most = *random.choice(&[1, 8, 40]).expect("not empty");
    let mut next = || {
        let entry = (at_ms, 1 + if random.bool() { 0 } else { of_bits(random, most) });
        at_ms += 1 + of_bits(random, most);
        entry
    };
    (0..entries).map(|_| next()).collect()
}

#[track_caller]
fn assert_holds(run: &Run, wanted: &[(u64, u64)]) {
    assert!(run.iter().eq(wanted.iter().copied()), "not {wanted:?}");
    assert_eq!(run.end().entries_since(&run.front().mark), wanted.len() as u64);
    assert_eq!(run.end().units_since(&run.front().mark), wanted.iter().fold(0, |sum, entry| sum + entry.1));
    assert_eq!(run.seek(run.front(), |_| true).0.mark, run.end());
    if let ([(oldest, _), ..], [.., (newest, _)]) = (wanted, wanted) {
        assert_eq!((run.oldest_at_ms(), run.end().at_ms), (*oldest, *newest));
    }
    // Seeking checks the totals of the blocks.
    let middle = wanted.get(wanted.len() / 2).map_or(run.front(), |(at_ms, _)| run.find(run.front(), *at_ms));
    for (i, (at_ms, _)) in wanted.iter().enumerate().step_by(1 + wanted.len() / 100) {
        let (place, after) = run.seek(run.front(), |mark| mark.at_ms < *at_ms);
        assert_eq!(place.mark.entries_since(&run.front().mark), i as u64);
        assert_eq!(after.map(|after| after.mark.at_ms), Some(*at_ms));
        assert_eq!(run.find(middle, *at_ms), if i < wanted.len() / 2 { middle } else { place });
    }
    for (block, next) in run.blocks.iter().zip(run.blocks.iter().skip(1)) {
        // A block ends early if the longest entry might not fit.
        assert!(block.bytes.len() + next.bytes.len() > BLOCK_BYTES - MOST_BYTES, "small blocks");
        assert!(!block.bytes.is_empty() && block.bytes.len() < BLOCK_BYTES + MOST_BYTES);
    }
}

/// Replaces the entries between two places, with and without keeping part of the first, then pushes and drops.
fn cut_and_compare(run: &Run, entries: &[(u64, u64)], from: Cursor, to: Cursor) {
    let number = |place: &Cursor| place.mark.entries_since(&Mark::default()) as usize;
    let (first, last, dropped) = (number(&from), number(&to), number(&run.front()));
    // Between two blocks there are two places. Seeking finds the second.
    let sought = |place: Cursor| {
        run.seek(run.front(), |mark| number(&Cursor { mark: *mark, ..place }) <= number(&place)).0
    };
    let (from, to) = if (first + last).is_multiple_of(2) { (from, to) } else { (sought(from), sought(to)) };
    let kept = (first < last).then(|| (entries[first].0, entries[first].1.div_ceil(2)));
    for entry in [None, kept] {
        let mut run = run.clone();
        let mut wanted = [&entries[..first], entry.as_slice(), &entries[last..]].concat();
        run.replace(from, to, entry);
        assert_holds(&run, &wanted[dropped..]);
        if let Some((at_ms, units)) = wanted[dropped..].last_mut() {
            run.push(*at_ms, 1);
            *units += 1;
        }
        let later = entries.last().map_or(0, |entry| entry.0) + 300;
        run.push(later, 2);
        wanted.push((later, 2));
        assert_holds(&run, &wanted[dropped..]);
        let middle = wanted[dropped..].len() / 2;
        run.drop_before(run.places()[middle]);
        assert_holds(&run, &wanted[dropped + middle..]);
    }
}

#[test]
fn every_cut_in_a_short_run_keeps_the_entries_around_it() {
    let mut rng = Rng::with_seed(12);
    for length in 1..12 {
        for _ in 0..20 {
            let entries = random(&mut rng, length);
            let whole = filled(&entries);
            for front in whole.places() {
                let mut run = whole.clone();
                run.drop_before(front);
                let places = run.places();
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
    let mut rng = Rng::with_seed(12);
    for _ in 0..40 {
        let length = rng.usize(500..2_500);
        let entries = random(&mut rng, length);
        let mut run = filled(&entries);
        assert_holds(&run, &entries);
        run.drop_before(run.places()[rng.usize(..length / 4)]);
        let places = run.places();
        let starts =
            run.blocks.range(1..).map(|block| block.before.entries_since(&run.front().mark) as usize);
        let starts: Vec<usize> = starts.chain([0]).collect();
        for _ in 0..20 {
            let from = if rng.bool() { rng.usize(..places.len()) } else { starts[rng.usize(..starts.len())] };
            let most = *rng.choice(&[1, 8, length]).expect("not empty");
            let to = (from + rng.usize(..=most)).min(places.len() - 1);
            cut_and_compare(&run, &entries, places[from], places[to]);
        }
    }
}

#[test]
fn repeated_cuts_leave_a_compact_run() {
    let mut rng = Rng::with_seed(12);
    let mut entries = random(&mut rng, 6_000);
    let mut run = filled(&entries);
    while entries.len() > 10 {
        let places = run.places();
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
fn units_of_one_time_join_its_entry_in_a_block_that_does_not_outgrow_its_size() {
    let mut rng = Rng::with_seed(3);
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
            // Drops all entries but the newest.
            run.drop_before(run.find(run.front(), at_ms));
            expected.drain(..expected.len() - 1);
        }
        assert_eq!(run.oldest_at_ms(), expected[0].0);
    }
    assert_holds(&run, &expected);
}
