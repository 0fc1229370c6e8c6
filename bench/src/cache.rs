//! How often a request misses the cache where keys are too many for it.

use anyhow::Result;

use crate::callgrind::CountedServer;
use crate::memory::{bytes_of_each, name};
use crate::server::{Setup, send_all};
use crate::workload::Algorithm;

/// Requests to many keys, each with a time to live.
pub struct ManyKeys {
    /// Its name in the table.
    pub name: &'static str,
    /// The commands that create a key, with `#` for its name.
    first: Vec<String>,
    /// The request.
    next: String,
}

/// What was measured.
pub struct Measured {
    /// Misses of the last-level cache for a request to a key at random.
    pub misses: f64,
    /// used_memory of a key.
    pub bytes: f64,
}

impl ManyKeys {
    /// All that are measured.
    pub fn all() -> Vec<ManyKeys> {
        let incr = ManyKeys {
            name: "INCR",
            first: vec!["INCR #".into(), "EXPIRE # 2592000".into()],
            next: "INCR #".into(),
        };
        let takes = Algorithm::ALL.map(|algorithm| {
            let take = format!("{} # 100 30d", algorithm.command);
            ManyKeys { name: algorithm.command, first: vec![take.clone()], next: take }
        });
        [incr].into_iter().chain(takes).collect()
    }

    /// Measures it on a new server with a simulated cache: where a heap was used before, keys lie elsewhere.
    pub fn measure(&self, setup: &Setup, keys: usize) -> Result<Measured> {
        const REQUESTS: usize = 10_000;
        let server = CountedServer::with_cache(setup, setup.first_server())?;
        let command = |line: &str, key| line.replace('#', &name(key));
        let bytes =
            bytes_of_each(&server, keys, |key| self.first.iter().map(|line| command(line, key)).collect())?;
        let mut random = fastrand::Rng::with_seed(1);
        let mut connection = server.connect()?;
        let mut send = |requests| {
            send_all(&mut connection, (0..requests).map(|_| command(&self.next, random.usize(..keys))))
        };
        // Both begin with an empty cache, which the first requests fill.
        let few = server.misses(|| send(REQUESTS))?;
        let many = server.misses(|| send(3 * REQUESTS))?;
        let misses = many.saturating_sub(few) as f64 / (2 * REQUESTS) as f64;
        Ok(Measured { misses, bytes })
    }
}
