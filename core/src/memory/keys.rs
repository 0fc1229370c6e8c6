//! Keys by name and by expiry, bounded in number.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::mem;
use std::sync::Arc;

use crate::limiter::several::MAX_ROWS;
use crate::limiter::{Algorithm, Applied, Key, Limiter, UnixMs};

/// The most expired keys that a command drops: as many as a command can create, so that they never pile up.
const DROPPED_AT_ONCE: usize = MAX_ROWS;

/// A key that holds a limiter.
pub struct Held {
    limiter: Limiter,
    expires_at: UnixMs,
    /// Its place among keys that expire at the same time: the number of keys created before it.
    age: u64,
}

impl Held {
    /// When it expires. It is still served in that millisecond.
    pub fn expires_at(&self) -> UnixMs {
        self.expires_at
    }

    fn has_expired(&self, now: UnixMs) -> bool {
        self.expires_at < now
    }
}

impl Key for Held {
    #[inline]
    fn limiter(&self) -> Option<&Limiter> {
        Some(&self.limiter)
    }

    #[inline]
    fn limiter_mut(&mut self) -> Option<&mut Limiter> {
        Some(&mut self.limiter)
    }

    fn expires_at(&self) -> Option<UnixMs> {
        Some(self.expires_at)
    }
}

impl Key for &mut Held {
    #[inline]
    fn limiter(&self) -> Option<&Limiter> {
        (**self).limiter()
    }

    #[inline]
    fn limiter_mut(&mut self) -> Option<&mut Limiter> {
        (**self).limiter_mut()
    }

    fn expires_at(&self) -> Option<UnixMs> {
        Key::expires_at(&**self)
    }
}

/// Random hashes, and on a target without random numbers those of a seed.
struct Hashes {
    random: RandomState,
    seed: u64,
}

impl BuildHasher for Hashes {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = self.random.build_hasher();
        hasher.write_u64(self.seed);
        hasher
    }
}

/// The keys.
pub struct Keys {
    by_name: HashMap<Arc<[u8]>, Held, Hashes>,
    /// The same, by expiry and age.
    by_expiry: BTreeMap<(UnixMs, u64), Arc<[u8]>>,
    max_keys: usize,
    /// The number of keys created so far.
    created: u64,
    /// Whether expired keys are left.
    has_expired: bool,
}

impl Keys {
    /// Holds at most `max_keys` keys, and at least one.
    pub fn new(max_keys: usize, seed: u64) -> Keys {
        let by_name = HashMap::with_hasher(Hashes { random: RandomState::new(), seed });
        Keys {
            by_name,
            by_expiry: BTreeMap::new(),
            max_keys: max_keys.max(1),
            created: 0,
            has_expired: false,
        }
    }

    /// The number of keys, with the expired ones that are left.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Drops some of the keys that have expired. A command begins with this.
    pub fn expire(&mut self, now: UnixMs) {
        self.has_expired = false;
        let mut left = DROPPED_AT_ONCE;
        while let Some(first) = self.by_expiry.first_entry()
            && first.key().0 < now
        {
            if left == 0 {
                self.has_expired = true;
                break;
            }
            left -= 1;
            self.by_name.remove(&first.remove());
        }
    }

    /// The key of this name.
    #[inline]
    pub fn get(&mut self, name: &[u8], now: UnixMs) -> Option<&mut Held> {
        if self.has_expired && self.by_name.get(name).is_some_and(|held| held.has_expired(now)) {
            self.remove(name);
        }
        self.by_name.get_mut(name)
    }

    /// Takes the key of this name out, until it is given back.
    pub fn lend(&mut self, name: &[u8], now: UnixMs) -> Option<Held> {
        let place = self.get(name, now)?;
        let nothing = Held { limiter: Limiter::new(Algorithm::Fixed), ..*place };
        Some(mem::replace(place, nothing))
    }

    /// Puts a lent key back.
    pub fn give_back(&mut self, name: &[u8], held: Held) {
        if let Some(place) = self.by_name.get_mut(name) {
            *place = held;
        }
    }

    /// Does what is left to do after a request.
    pub fn carry_out(&mut self, name: &[u8], fresh: Option<Limiter>, applied: Applied) {
        if applied.emptied {
            self.remove(name);
        } else if let Some(limiter) = fresh.filter(|_| applied.changed) {
            self.insert(name, limiter, applied.moved.unwrap_or(UnixMs::MAX));
        } else if let Some(moved) = applied.moved {
            self.move_expiry(name, moved);
        }
    }

    /// Removes a key. Returns whether there was one.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let Some(held) = self.by_name.remove(name) else { return false };
        self.by_expiry.remove(&(held.expires_at, held.age));
        true
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.by_name.clear();
        self.by_expiry.clear();
    }

    fn insert(&mut self, name: &[u8], limiter: Limiter, expires_at: UnixMs) {
        while self.by_name.len() >= self.max_keys
            && let Some((_, first)) = self.by_expiry.pop_first()
        {
            self.by_name.remove(&first);
        }
        let (name, age) = (Arc::<[u8]>::from(name), self.created);
        self.created += 1;
        self.by_expiry.insert((expires_at, age), name.clone());
        self.by_name.insert(name, Held { limiter, expires_at, age });
    }

    fn move_expiry(&mut self, name: &[u8], moved: UnixMs) {
        if let Some(held) = self.by_name.get_mut(name)
            && let Some(name) = self.by_expiry.remove(&(held.expires_at, held.age))
        {
            held.expires_at = moved;
            self.by_expiry.insert((moved, held.age), name);
        }
    }
}
