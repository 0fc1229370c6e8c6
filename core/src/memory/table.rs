//! A table of keys by name and by expiry, bounded in number.
//!
//! Keys are in one list without gaps, and the rest refers to them by their index in it: a hash table finds them by name, and a heap orders
//! them by expiry. Each key stores its hash and its place in the heap. So growing moves memory and hashes no name: 65,536 keys become
//! 131,072 within a millisecond or two.

use std::hash::{DefaultHasher, Hasher};
use std::mem;

use hashbrown::HashTable;

use crate::limiter::several::MAX_ROWS;
use crate::limiter::{Algorithm, Key, Limiter, Pending, UnixMs};

/// The most expired keys that a command drops: as many as a command can create, so that they never pile up.
const DROPPED_AT_ONCE: usize = MAX_ROWS;

/// How many allocations of a large log take as long to free as one key. Each holds hundreds of units.
const ALLOCATIONS_OF_A_KEY: usize = 64;

/// The index of a key in the list.
type Index = u32;

/// There is no memory.
pub struct OutOfMemory;

/// A key that holds a limiter.
pub struct Held {
    limiter: Limiter,
    expires_at: UnixMs,
}

impl Held {
    /// When it expires: it is still there in that millisecond.
    pub fn expires_at(&self) -> UnixMs {
        self.expires_at
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

struct Slot {
    name: Box<[u8]>,
    held: Held,
    /// Keys are numbered from 1 in the order in which they were created; 0 once [`Table::clear`] has removed it.
    serial: u64,
    hash: u64,
    /// Its place in the heap: the index in [`Table::by_expiry`].
    rank: u32,
}

impl Slot {
    /// What the heap orders by.
    fn order(&self) -> (UnixMs, u64) {
        (self.held.expires_at, self.serial)
    }

    fn is_gone(&self, now: UnixMs) -> bool {
        self.serial == 0 || self.held.expires_at < now
    }
}

fn hash_of(slots: &[Slot]) -> impl Fn(&Index) -> u64 {
    |index| slots[*index as usize].hash
}

/// The keys, by name and by expiry.
pub struct Table {
    slots: Vec<Slot>,
    by_name: HashTable<Index>,
    /// A heap: no key expires before its parent. The parent of the key at place `n` is at `(n - 1) / 2`.
    by_expiry: Vec<Index>,
    max_keys: usize,
    /// The number of keys created so far.
    created: u64,
    /// The number of keys that [`Table::clear`] has removed and that are not dropped yet.
    cleared: usize,
    /// What is hashed before each name: whoever does not know it cannot choose names that collide.
    seed: u64,
}

impl Table {
    /// Holds at most `max_keys` keys, and at least one. Allocates nothing yet.
    pub fn new(max_keys: usize, seed: u64) -> Table {
        Table {
            slots: Vec::new(),
            by_name: HashTable::new(),
            by_expiry: Vec::new(),
            max_keys: max_keys.clamp(1, 1 << 31),
            created: 0,
            cleared: 0,
            seed,
        }
    }

    /// The number of keys, with those that have expired and were not dropped yet.
    pub fn len(&self) -> usize {
        self.slots.len() - self.cleared
    }

    /// Makes room for so many more keys.
    ///
    /// # Errors
    ///
    /// There is no memory for them. The table is as it was.
    pub fn reserve(&mut self, keys: usize) -> Result<(), OutOfMemory> {
        let wanted = (self.slots.len() + keys).min(self.max_keys);
        let more = wanted - self.slots.len();
        let slots = self.slots.try_reserve(more).and_then(|()| self.by_expiry.try_reserve(more));
        // Where keys were removed it may have to move the others, however few there are.
        let by_name = self.by_name.try_reserve(keys, hash_of(&self.slots));
        if slots.is_ok() && by_name.is_ok() { Ok(()) } else { Err(OutOfMemory) }
    }

    /// Drops some of the keys that have expired. A command begins with this.
    #[inline]
    pub fn expire(&mut self, now: UnixMs) {
        let mut left = DROPPED_AT_ONCE;
        while left > 0
            && let Some(first) = self.by_expiry.first()
            && self.slots[*first as usize].is_gone(now)
        {
            let slot = self.remove_at(*first);
            left = left.saturating_sub(1 + slot.held.limiter.allocations() / ALLOCATIONS_OF_A_KEY);
        }
    }

    /// The key of this name. Drops it if it has expired.
    #[inline]
    pub fn get(&mut self, name: &[u8], now: UnixMs) -> Option<&mut Held> {
        let index = self.find(name)?;
        if self.slots[index as usize].is_gone(now) {
            self.remove_at(index);
            return None;
        }
        Some(&mut self.slots[index as usize].held)
    }

    /// Lends the key of this name: until it is put back, it counts nothing here.
    pub fn lend(&mut self, name: &[u8], now: UnixMs) -> Option<Held> {
        let place = self.get(name, now)?;
        let nothing = Held { limiter: Limiter::new(Algorithm::Fixed), ..*place };
        Some(mem::replace(place, nothing))
    }

    /// Puts back a key that was lent.
    pub fn put_back(&mut self, name: &[u8], held: Held) {
        if let Some(index) = self.find(name) {
            self.slots[index as usize].held = held;
        }
    }

    /// Does what is still to be done after a request. There must be memory for the key: see [`reserve`](Self::reserve).
    pub fn carry_out(&mut self, name: &[u8], fresh: Option<Limiter>, pending: Pending) {
        if pending.emptied {
            self.remove(name);
        } else if let Some(limiter) = fresh.filter(|_| pending.changed) {
            self.insert(name, limiter, pending.moved.expires.unwrap_or(UnixMs::MAX));
        } else if let Some(expires_at) = pending.moved.expires
            && let Some(index) = self.find(name)
        {
            let slot = &mut self.slots[index as usize];
            slot.held.expires_at = expires_at;
            let rank = slot.rank;
            self.settle(rank as usize);
        }
    }

    /// Removes a key. Returns whether there was one.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        self.find(name).map(|index| self.remove_at(index)).is_some()
    }

    /// Removes all keys. Only marks them, which is fast: later commands drop them, each a few.
    pub fn clear(&mut self) {
        for slot in &mut self.slots {
            slot.serial = 0;
            // All keys compare equal then, so the heap is in order.
            slot.held.expires_at = UnixMs::default();
        }
        self.cleared = self.slots.len();
    }

    fn insert(&mut self, name: &[u8], limiter: Limiter, expires_at: UnixMs) {
        while self.slots.len() >= self.max_keys {
            self.remove_at(self.by_expiry[0]);
        }
        self.created += 1;
        let (index, rank, hash) = (self.slots.len() as Index, self.by_expiry.len(), self.hash(name));
        self.slots.push(Slot {
            name: name.into(),
            held: Held { limiter, expires_at },
            serial: self.created,
            hash,
            rank: rank as u32,
        });
        self.by_name.insert_unique(hash, index, hash_of(&self.slots));
        self.by_expiry.push(index);
        self.settle(rank);
    }

    fn remove_at(&mut self, index: Index) -> Slot {
        let Slot { rank, serial, hash, .. } = self.slots[index as usize];
        if let Ok(entry) = self.by_name.find_entry(hash, |other| *other == index) {
            entry.remove();
        }
        let last_rank = self.by_expiry.len() - 1;
        self.swap_ranks(rank as usize, last_rank);
        self.by_expiry.pop();
        if (rank as usize) < last_rank {
            self.settle(rank as usize);
        }
        // The last key of the list takes the index of the removed one.
        let last = (self.slots.len() - 1) as Index;
        if index != last {
            let Slot { rank, hash, .. } = self.slots[last as usize];
            if let Some(place) = self.by_name.find_mut(hash, |other| *other == last) {
                *place = index;
            }
            self.by_expiry[rank as usize] = index;
        }
        self.cleared -= usize::from(serial == 0);
        self.slots.swap_remove(index as usize)
    }

    fn hash(&self, name: &[u8]) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.seed);
        hasher.write(name);
        hasher.finish()
    }

    #[inline]
    fn find(&self, name: &[u8]) -> Option<Index> {
        if self.slots.is_empty() {
            return None;
        }
        let hash = self.hash(name);
        let is_it = |index: &Index| {
            let slot = &self.slots[*index as usize];
            slot.hash == hash && *slot.name == *name
        };
        self.by_name.find(hash, is_it).copied()
    }

    /// Moves the key at this place of the heap to where it belongs.
    fn settle(&mut self, mut rank: usize) {
        while rank > 0 && self.order(rank) < self.order((rank - 1) / 2) {
            self.swap_ranks(rank, (rank - 1) / 2);
            rank = (rank - 1) / 2;
        }
        loop {
            let children = 2 * rank + 1..self.by_expiry.len().min(2 * rank + 3);
            match children.min_by_key(|child| self.order(*child)) {
                Some(first) if self.order(first) < self.order(rank) => {
                    self.swap_ranks(rank, first);
                    rank = first;
                }
                _ => return,
            }
        }
    }

    fn order(&self, rank: usize) -> (UnixMs, u64) {
        self.slots[self.by_expiry[rank] as usize].order()
    }

    fn swap_ranks(&mut self, one: usize, other: usize) {
        self.by_expiry.swap(one, other);
        for rank in [one, other] {
            self.slots[self.by_expiry[rank] as usize].rank = rank as u32;
        }
    }
}
