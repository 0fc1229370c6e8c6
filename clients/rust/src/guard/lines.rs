//! Those of this process who wait for the same.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::commands::Quota;
use crate::keys::Share;
use crate::locked;

/// When there are so many lines, and at each doubling, those that are over are forgotten.
const MANY: usize = 1024;

/// The line of those who wait for a share: the same key, first quota and cost.
pub(super) struct Lines<L>(Mutex<HashMap<Name, Arc<L>>>);

type Name = (Arc<[u8]>, Option<Quota>, i64);

impl<L> Default for Lines<L> {
    fn default() -> Lines<L> {
        Lines(Mutex::default())
    }
}

impl<L> Lines<L> {
    /// The line, or a new one. One that nobody stands in may be forgotten once it is over.
    pub fn of(&self, share: &Share, is_over: impl Fn(&L) -> bool, new: impl FnOnce() -> L) -> Arc<L> {
        let mut lines = locked(&self.0);
        if lines.len() >= MANY && lines.len().is_power_of_two() {
            lines.retain(|_, line| Arc::strong_count(line) > 1 || !is_over(line));
        }
        let name = (share.key.clone(), share.rules.quotas.first().copied(), share.cost);
        lines.entry(name).or_insert_with(|| Arc::new(new())).clone()
    }
}
