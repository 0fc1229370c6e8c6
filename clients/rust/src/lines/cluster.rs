//! A cluster: a connection to each node, and which node has a slot.

use std::collections::{BTreeMap, HashMap};
use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, RedisResult, ServerErrorKind, Value,
    from_redis_value,
};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::link::{ENDED, Link, io_error};
use crate::locked;

/// A command that no node has carried out yet is sent at most this often, with this pause.
const TRIES: u32 = 16;
const PAUSE: Duration = Duration::from_millis(10);
/// At most this many connected nodes are asked for the slots at once.
const ASKED_FOR_SLOTS: usize = 5;

pub(crate) struct Cluster {
    nodes: Arc<Nodes>,
    slots: Link<Arc<Slots>>,
}

struct Nodes {
    seeds: Arc<[Client]>,
    config: AsyncConnectionConfig,
    timeout: Duration,
    links: Mutex<HashMap<Address, Arc<Link<MultiplexedConnection>>>>,
}

/// A host and a port.
pub(crate) type Address = (String, u16);
/// The node of each range of slots, by the last slot of the range.
type Slots = BTreeMap<u16, Address>;

impl Cluster {
    pub fn new(seeds: Arc<[Client]>, config: AsyncConnectionConfig, timeout: Duration) -> Cluster {
        let nodes = Arc::new(Nodes { seeds, config, timeout, links: Mutex::default() });
        let asked = nodes.clone();
        let slots = Link::new(timeout * 2, move || {
            let nodes = asked.clone();
            async move { nodes.slots().await.map(Arc::new) }
        });
        Cluster { nodes, slots }
    }

    /// The node of a slot.
    pub async fn node(&self, slot: u16) -> RedisResult<Address> {
        self.find(slot).await.map(|(_, node)| node)
    }

    /// The reply to a command. It follows redirections: a node that redirects a command has not carried it out.
    pub async fn ask(&self, slot: u16, command: &Cmd) -> RedisResult<Value> {
        let (mut slots, mut to) = self.find(slot).await?;
        for _ in 0..TRIES {
            let reply = self.nodes.link(&to).ask(command, false).await;
            let Err(error) = &reply else { return reply };
            let elsewhere = error.redirect_node().and_then(|(node, _)| address(node, &to.0));
            match (error.kind(), elsewhere) {
                (ErrorKind::Server(ServerErrorKind::Ask), Some(node)) => {
                    return self.nodes.link(&node).ask(command, true).await;
                }
                (ErrorKind::Server(ServerErrorKind::Moved), Some(node)) => {
                    self.forget(&slots);
                    to = node;
                }
                (ErrorKind::Server(ServerErrorKind::TryAgain), _) => sleep(PAUSE).await,
                (ErrorKind::Server(ServerErrorKind::ReadOnly), _) => {
                    self.forget(&slots);
                    sleep(PAUSE).await;
                    (slots, to) = self.find(slot).await?;
                }
                (ErrorKind::Server(_), _) => return reply,
                _ => {
                    // Another node may have its slots by now.
                    self.forget(&slots);
                    return reply;
                }
            }
        }
        Err(io_error("no node has the slot"))
    }

    async fn find(&self, slot: u16) -> RedisResult<(Arc<Slots>, Address)> {
        let slots = self.slots.by(|slots| ready(Ok(slots))).await?;
        let node = slots.range(slot..).next().map(|(_, node)| node.clone());
        let node = node.ok_or_else(|| io_error("no node has the slot"))?;
        Ok((slots, node))
    }

    /// Makes the next command ask for the slots again, unless that has happened since `old`.
    fn forget(&self, old: &Arc<Slots>) {
        self.slots.forget_made(|slots| Arc::ptr_eq(slots, old));
    }
}

impl Nodes {
    fn link(&self, node: &Address) -> Arc<Link<MultiplexedConnection>> {
        let mut links = locked(&self.links);
        if let Some(link) = links.get(node) {
            return link.clone();
        }
        let info = self.seeds[0].get_connection_info().clone();
        let addr = match (info.addr().clone(), node.clone()) {
            (ConnectionAddr::TcpTls { insecure, tls_params, .. }, (host, port)) => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            (_, (host, port)) => ConnectionAddr::Tcp(host, port),
        };
        let info = info.set_addr(addr);
        let client = move || ready(Client::open(info.clone()));
        let link = Arc::new(Link::to(self.timeout, self.config.clone(), client));
        links.entry(node.clone()).or_insert(link).clone()
    }

    /// The slots as the first node that answers tells them, of some that are connected and those that the application named.
    async fn slots(&self) -> RedisResult<Slots> {
        let mut nodes: Vec<Address> = {
            let links = locked(&self.links);
            let up = links.iter().filter(|(_, link)| link.is_up());
            up.map(|(node, _)| node.clone()).take(ASKED_FOR_SLOTS).collect()
        };
        nodes.extend(self.seeds.iter().filter_map(|seed| match seed.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some((host.clone(), *port))
            }
            _ => None,
        }));
        nodes.sort();
        nodes.dedup();
        let mut asked = JoinSet::new();
        for node in nodes {
            let link = self.link(&node);
            asked.spawn(async move {
                let reply = link.ask(redis::cmd("CLUSTER").arg("SLOTS"), false).await?;
                read_slots(reply, &node.0)
            });
        }
        let mut error = io_error("no node answers");
        while let Some(answered) = asked.join_next().await {
            match answered.unwrap_or_else(|_| Err(io_error(ENDED))) {
                Ok(slots) if !slots.is_empty() => {
                    // The other tasks go on, so that their connections learn of the replies and are not taken for silent.
                    asked.detach_all();
                    return Ok(slots);
                }
                Ok(_) => {}
                Err(why) => error = why,
            }
        }
        Err(error)
    }
}

/// Reads `CLUSTER SLOTS`: the first and last slot of each range, then its nodes, the master first, as host, port, and more.
fn read_slots(reply: Value, asked: &str) -> RedisResult<Slots> {
    let ranges: Vec<Vec<Value>> = from_redis_value(reply)?;
    let range = |range: Vec<Value>| -> Option<(u16, Address)> {
        let mut range = range.into_iter().skip(1);
        let last = from_redis_value(range.next()?).ok()?;
        let master: Vec<Value> = from_redis_value(range.next()?).ok()?;
        let mut master = master.into_iter();
        let host: Option<String> = from_redis_value(master.next()?).ok()?;
        let port = from_redis_value(master.next()?).ok()?;
        Some((last, (host_or(host.unwrap_or_default(), asked), port)))
    };
    Ok(ranges.into_iter().filter_map(range).collect())
}

/// A node that does not know its own host names none: it is the one that was asked.
fn host_or(host: String, asked: &str) -> String {
    if host.is_empty() || host == "?" { asked.to_owned() } else { host }
}

/// Reads the address in a redirection.
fn address(text: &str, asked: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    Some((host_or(host.to_owned(), asked), port.parse().ok()?))
}
