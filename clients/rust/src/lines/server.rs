//! The server or cluster that guards, leases, places and waiting ask.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisResult, Value};

use super::cluster::{Address, Cluster};
use super::link::Link;
use crate::commands::{Clock, slot};

/// The longest timeout. A longer one is cut to it, so that no time overflows.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

/// The server or cluster that guards, leases, places and waiting ask, on connections of their own. Clones share them.
///
/// A connection is made when it is needed, one to each node of a cluster, and again when it breaks or is silent for the
/// timeout while replies are due. No command is sent twice: what was lost with a connection has failed.
#[derive(Clone)]
#[must_use]
pub struct Redis {
    connect: Arc<dyn Fn(AsyncConnectionConfig, Duration) -> Servers + Send + Sync>,
    config: AsyncConnectionConfig,
    timeout: Duration,
    servers: Arc<Servers>,
}

enum Servers {
    One(Link<MultiplexedConnection>),
    Cluster(Cluster),
    Memory(crate::MemoryLimiter),
}

impl From<Client> for Redis {
    fn from(client: Client) -> Redis {
        Redis::by(move || {
            let client = client.clone();
            async { Ok(client) }
        })
    }
}

/// The limiter in this process, which is never away.
impl From<crate::MemoryLimiter> for Redis {
    fn from(memory: crate::MemoryLimiter) -> Redis {
        Redis::of(move |_, _| Servers::Memory(memory.clone()))
    }
}

impl Redis {
    /// The server that a function names each time that a connection is made, as that of a `SentinelClient`.
    pub fn by<F>(client: impl Fn() -> F + Send + Sync + 'static) -> Redis
    where
        F: Future<Output = RedisResult<Client>> + Send + 'static,
    {
        let client = Arc::new(client);
        Redis::of(move |config, timeout| {
            let client = client.clone();
            Servers::One(Link::to(timeout, config, move || client()))
        })
    }

    /// A cluster, by some of its nodes. The user, password and TLS of the first are used for all nodes.
    ///
    /// # Panics
    ///
    /// If `nodes` is empty.
    pub fn cluster(nodes: impl IntoIterator<Item = Client>) -> Redis {
        let nodes: Arc<[Client]> = nodes.into_iter().collect();
        assert!(!nodes.is_empty(), "a cluster has a node");
        Redis::of(move |config, timeout| Servers::Cluster(Cluster::new(nodes.clone(), config, timeout)))
    }

    fn of(connect: impl Fn(AsyncConnectionConfig, Duration) -> Servers + Send + Sync + 'static) -> Redis {
        // The timeouts of redis-rs would also count time in which this process is busy.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let timeout = Duration::from_millis(100);
        let servers = Arc::new(connect(config.clone(), timeout));
        Redis { connect: Arc::new(connect), config, timeout, servers }
    }

    fn anew(self) -> Redis {
        Redis { servers: Arc::new((self.connect)(self.config.clone(), self.timeout)), ..self }
    }

    /// How long a connection may be silent while replies are due: 100 ms if this is not called. To connect may take five
    /// times as long. Time in which this process is busy does not count.
    ///
    /// # Panics
    ///
    /// If it is 0.
    pub fn timeout(self, timeout: Duration) -> Redis {
        assert!(!timeout.is_zero(), "a timeout must be above 0");
        let timeout = timeout.min(LONGEST);
        if timeout == self.timeout { self } else { Redis { timeout, ..self }.anew() }
    }

    /// Settings of redis-rs for the connections, such as a credentials provider. Their timeouts are not used.
    pub fn config(self, config: AsyncConnectionConfig) -> Redis {
        let config = config.set_connection_timeout(None).set_response_timeout(None);
        Redis { config, ..self }.anew()
    }

    pub(crate) fn patience(&self) -> Duration {
        self.timeout
    }

    /// Whether keys of several slots are on several servers.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(*self.servers, Servers::Cluster(_))
    }

    /// Whether it is a limiter in this process, which answers when a future is polled first, without a runtime.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(*self.servers, Servers::Memory(_))
    }

    /// The clock of a limiter in this process.
    pub(crate) fn clock(&self) -> Option<Clock> {
        match &*self.servers {
            Servers::Memory(memory) => Some(memory.clock.clone()),
            _ => None,
        }
    }

    /// The node of a cluster that has a key. `None` for a single server.
    pub(crate) async fn node(&self, key: &[u8]) -> RedisResult<Option<Address>> {
        match &*self.servers {
            Servers::Cluster(cluster) => cluster.node(slot(key)).await.map(Some),
            _ => Ok(None),
        }
    }

    /// The reply to a command for a key.
    pub(crate) async fn ask(&self, key: &[u8], command: &Cmd) -> RedisResult<Value> {
        match &*self.servers {
            Servers::One(link) => link.ask(command, false).await,
            Servers::Cluster(cluster) => cluster.ask(slot(key), command).await,
            Servers::Memory(memory) => memory.reply(command)?.extract_error(),
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
