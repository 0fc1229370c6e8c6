//! A refusal that lasts: who is refused by a policy with [`block`](super::Policy::block) is refused for that long.

use super::asker::Asker;
use super::policy::Policy;
use super::visit::Asked;
use crate::commands::{Algorithm, BLOCK, Quota, Verdict};
use crate::keys::{Answer, Rules, Share, longest_wait};

/// Blocks whom policies refuse by their own quotas, and changes the answer to what follows.
///
/// The block is the last quota of the policy's key. It refuses once it is filled, by one command, and leaves its window at once.
/// If that command fails, the refusal is an ordinary one.
pub(crate) async fn block(asker: &Asker, asked: &[Asked], answer: &mut Answer) {
    for (asked, rows) in asked.iter().zip(&mut answer.rows) {
        let (Some(block), Some(rows)) = (asked.policy.0.block, rows) else { continue };
        let is_to_wait = matches!(longest_wait(rows), Some(Some(_)));
        if let Some(last) = rows.last_mut().filter(|last| is_to_wait && !last.limited) {
            // Twice the limit has room for one block only, so that of two requests at once one blocks.
            let quotas = vec![Quota::new(2 * BLOCK, block)];
            let rules = Rules { algorithm: Algorithm::Log, quotas, ..Rules::clone(&asked.share.rules) };
            let (key, cost) = (asked.share.key.clone(), BLOCK as i64 + 1);
            let (held, told) = asker.take(vec![Share { key, rules: rules.into(), cost }]).await;
            held.keep();
            let Ok(told) = told else { continue };
            let wait = told.retry_after.unwrap_or(block);
            *last = Verdict { limited: true, retry_after: Some(wait), reset_after: wait, ..*last };
        }
        show(&asked.policy, rows);
    }
    let all: Vec<_> = answer.rows.iter().flatten().flatten().copied().collect();
    answer.retry_after = longest_wait(&all).flatten();
}

/// Lets all quotas of a policy refuse while its block does.
pub(crate) fn show(policy: &Policy, rows: &mut [Verdict]) {
    let is_to_wait = policy.0.block.is_some() && matches!(longest_wait(rows), Some(Some(_)));
    if let [others @ .., last] = rows
        && is_to_wait
        && last.limited
    {
        for row in others {
            *row = Verdict { limit: row.limit, remaining: 0, ..*last };
        }
    }
}
