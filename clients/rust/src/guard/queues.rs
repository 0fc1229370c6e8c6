//! Those of this process who wait for the same.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::commands::Quota;
use crate::keys::Share;
use crate::locked;

/// When there are so many queues, and at each doubling, those that are over are forgotten.
const MANY: usize = 1024;

/// The queue of those who wait for a share: the same key, first quota and cost.
pub(super) struct Queues<Q>(Mutex<HashMap<Name, Arc<Q>>>);

type Name = (Arc<[u8]>, Option<Quota>, i64);

impl<Q> Default for Queues<Q> {
    fn default() -> Queues<Q> {
        Queues(Mutex::default())
    }
}

impl<Q> Queues<Q> {
    /// The queue, or a new one. One that nobody stands in may be forgotten once it is over.
    pub fn of(&self, share: &Share, is_over: impl Fn(&Q) -> bool, new: impl FnOnce() -> Q) -> Arc<Q> {
        let mut queues = locked(&self.0);
        if queues.len() >= MANY && queues.len().is_power_of_two() {
            queues.retain(|_, queue| Arc::strong_count(queue) > 1 || !is_over(queue));
        }
        let name = (share.key.clone(), share.rules.quotas.first().copied(), share.cost);
        queues.entry(name).or_insert_with(|| Arc::new(new())).clone()
    }
}
