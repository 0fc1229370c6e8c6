//! Reproducible random numbers.

/// A seeded generator of random numbers.
pub struct Random(fastrand::Rng);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    /// A number from 0 to `end - 1`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.usize(..end)
    }

    /// A random element of `choices`.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Changes, adds or removes some of the bytes.
    pub fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.of(&[1, 1, 1, 2, 4]) {
            if bytes.is_empty() {
                return;
            }
            // In a long payload most of the information is near the ends.
            let (anywhere, near) = (self.below(bytes.len()), self.below(bytes.len().min(40)));
            let place = self.of(&[anywhere, near, bytes.len() - 1 - near]);
            let byte = [0, 1, 2, 0x7f, 0x80, 0x81, 0xff, self.below(256) as u8];
            match self.below(6) {
                0..2 => bytes[place] ^= 1 << self.below(8),
                2 => bytes[place] = self.of(&byte),
                3 => bytes.insert(place, self.of(&byte)),
                4 => drop(bytes.remove(place)),
                _ if self.below(4) == 0 => bytes.truncate(place),
                _ => bytes.extend_from_within(place..),
            }
        }
    }
}
