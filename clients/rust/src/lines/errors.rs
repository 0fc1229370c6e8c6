//! What error replies say about a server.

use std::collections::HashMap;
use std::sync::LazyLock;

use redis::{ErrorKind, RedisError};

/// An error reply that tells of a state of the server, or an exception from a later entry.
#[derive(Debug)]
pub struct Known {
    /// The beginning of the reply.
    starts: String,
    pub means: Means,
    /// What a person can do.
    pub log: String,
}

/// What an error reply says about a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Means {
    /// It cannot be asked, but another server may be behind the same address by now.
    Elsewhere,
    /// It refuses the client, or the module is missing.
    Refused,
    /// It cannot write at present.
    Cannot,
    /// Nothing: the request is at fault.
    Fine,
}

/// The table of `clients/errors.json`. The first entry that fits counts.
static ERRORS: LazyLock<Vec<Known>> = LazyLock::new(|| {
    let rows: Vec<HashMap<String, String>> =
        serde_json::from_str(include_str!("errors.json")).expect("a table");
    let known = |row: HashMap<String, String>| {
        let means = match &*row["means"] {
            "elsewhere" => Means::Elsewhere,
            "refused" => Means::Refused,
            "cannot" => Means::Cannot,
            _ => Means::Fine,
        };
        Known { starts: row["starts"].clone(), means, log: row["log"].clone() }
    };
    rows.into_iter().map(known).collect()
});

/// Whether an error is a reply of the server.
pub(crate) fn is_reply(error: &RedisError) -> bool {
    error.code().is_some()
}

/// The entry for an error. `None` if it is a mistake in the request, or no reply.
#[must_use]
pub fn known(error: &RedisError) -> Option<&'static Known> {
    let reply = match (error.kind(), error.code()) {
        // redis-rs replaces the reply to a refused password by this error.
        (ErrorKind::AuthenticationFailed, None) => "WRONGPASS".to_owned(),
        (_, code) => format!("{} {}", code?, error.detail().unwrap_or_default()),
    };
    ERRORS.iter().find(|known| reply.starts_with(&known.starts)).filter(|known| known.means != Means::Fine)
}

/// Whether an error means that Redis is away: there was no reply, or one of the table.
pub(crate) fn is_away(error: &RedisError) -> bool {
    !is_reply(error) || known(error).is_some()
}
