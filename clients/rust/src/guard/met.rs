//! What a policy asks for a request, and what is known of it.

use std::time::SystemTime;

use super::policy::Policy;
use crate::commands::Verdict;
use crate::keys::Share;

/// Whose units are counted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Client {
    /// The key that a function of the request returned.
    Key(String),
    Address(String),
    /// All clients together, under the key of the policy.
    Everybody(String),
}

/// What a policy asks for.
#[derive(Clone)]
pub(crate) struct Asked {
    pub policy: Policy,
    pub client: Client,
    pub share: Share,
}

impl Asked {
    /// Why it cannot count a request besides another, if it is not the same.
    pub fn differs_from(&self, known: &Asked) -> Option<String> {
        let (name, known_name) = (self.policy.name(), known.policy.name());
        let (rules, known_rules) = (&self.share.rules, &known.share.rules);
        let has_rules = rules.algorithm == known_rules.algorithm && rules.quotas == known_rules.quotas;
        match (name == known_name, self.share.key == known.share.key) {
            (true, true) if has_rules => None,
            (true, false) if has_rules => Some(format!("{name:?} counts a request in two keys")),
            (true, _) => Some(format!("two policies of a request have the name {name:?}")),
            (false, true) => {
                Some(format!("{known_name:?} and {name:?} count a request in one key: rename one"))
            }
            (false, false) => None,
        }
    }
}

/// A policy that a request has met once or several times, and its newest figures.
#[derive(Clone)]
pub(crate) struct Met {
    pub asked: Asked,
    /// One row for each quota, or the tightest alone if the decision came from a lease. Empty if none is known.
    pub rows: Vec<Verdict>,
    /// The server's time of the decision.
    pub at: Option<SystemTime>,
    /// Which header fields tell of it.
    pub shown: (Fields, FieldsOn),
    /// The units that a handler took longer ago than can be settled. They stay counted, so that a long request stays small.
    pub spent: i64,
}

impl Met {
    /// Whether another step asks for the same policy.
    pub fn is_of(&self, asked: &Asked) -> bool {
        self.asked.policy.name() == asked.policy.name()
    }
}

/// Which header fields answers have, besides `retry-after`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Fields {
    /// Those of the standard: `ratelimit-policy` and `ratelimit`.
    #[default]
    Standard,
    /// Those of GitHub: `x-ratelimit-limit`, `x-ratelimit-remaining` and `x-ratelimit-reset`, a Unix time in seconds.
    XRateLimit,
    /// Both of them.
    Both,
    /// None.
    None,
}

/// Which answers have header fields.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum FieldsOn {
    /// All that something was decided for.
    #[default]
    All,
    /// Refusals alone.
    Refusals,
}
