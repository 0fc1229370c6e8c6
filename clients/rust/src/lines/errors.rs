//! What error replies say about a server.

use redis::{ErrorKind, RedisError};

/// An error reply that tells of a state of the server, or an exception from a later entry.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The beginning of the reply.
    pub starts: &'static str,
    pub means: Means,
    /// What a person can do.
    pub log: &'static str,
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

use Means::{Cannot, Elsewhere, Fine, Refused};

/// The table of `clients/errors.json`. The first entry that fits counts.
#[rustfmt::skip]
pub const ERRORS: &[Known] = &[
    Known { starts: "NOPERM this user has no permissions to access one of the keys", means: Fine, log: "" },
    Known { starts: "NOPERM No permissions to access a key", means: Fine, log: "" },
    Known { starts: "READONLY", means: Elsewhere, log: "this server is a replica: use an address that follows the master, or Sentinel" },
    Known { starts: "MASTERDOWN", means: Elsewhere, log: "this server is a replica without its master: use an address that follows the master, or Sentinel" },
    Known { starts: "LOADING", means: Elsewhere, log: "the server is still loading its data" },
    Known { starts: "NOAUTH", means: Refused, log: "the server asks for a password: name one in the client's address or options" },
    Known { starts: "WRONGPASS", means: Refused, log: "the user or the password is wrong, or the user is disabled" },
    Known { starts: "ERR AUTH", means: Refused, log: "a password is given, and the server has none: leave it out, or set requirepass" },
    Known { starts: "NOPERM", means: Refused, log: "the user lacks a right that the reply names: add it by ACL SETUSER" },
    Known { starts: "DENIED", means: Refused, log: "the server is in protected mode: give it a password, or bind it to an address" },
    Known { starts: "ERR max number of clients", means: Refused, log: "the server has too many connections: raise maxclients, or find who holds them" },
    Known { starts: "ERR unknown command 'RL.BUCKET'", means: Refused, log: "the server has not loaded the redis-rl module, or one older than this package: load the newest" },
    Known { starts: "ERR unknown command", means: Refused, log: "the server has not loaded the redis-rl module: load it, also on replicas that may become masters" },
    Known { starts: "ERR This instance has cluster support disabled", means: Refused, log: "the server is not part of a cluster: use a client for one server" },
    Known { starts: "MOVED", means: Refused, log: "the server is part of a cluster: use a client for clusters" },
    Known { starts: "CROSSSLOT", means: Refused, log: "the server is part of a cluster: use a client for clusters" },
    Known { starts: "OOM", means: Cannot, log: "the server has reached maxmemory: raise it, or free memory" },
    Known { starts: "MISCONF", means: Cannot, log: "the server cannot write to its disk: make room, and see its log" },
    Known { starts: "NOREPLICAS", means: Cannot, log: "the server has fewer replicas than min-replicas-to-write: bring them back, or lower it" },
    Known { starts: "BUSY ", means: Cannot, log: "a script keeps the server busy: SCRIPT KILL or FUNCTION KILL ends it" },
    Known { starts: "CLUSTERDOWN", means: Cannot, log: "the cluster has slots that no node serves: see CLUSTER INFO" },
];

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
    ERRORS.iter().find(|known| reply.starts_with(known.starts)).filter(|known| known.means != Fine)
}

/// Whether an error means that Redis is away: there was no reply, or one of the table.
pub(crate) fn is_away(error: &RedisError) -> bool {
    !is_reply(error) || known(error).is_some()
}
