//! A cluster of six real servers: three masters with a replica each.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use redis::cluster::{ClusterClientBuilder, ClusterConnection};
use redis::{RedisResult, Value};

use super::{PATIENCE, Server, end_with_this_thread, wait_for};

const MASTERS: usize = 3;

/// Nodes that answer nothing for so long are taken for dead. They ask each other as often, so that
/// a short time has news spread faster.
const NODE_TIMEOUT_MS: &str = "2000";

/// A hand-over that the nodes have not managed after five seconds is off.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(6);

/// Six nodes, known by their index. Dropping it ends them.
pub struct Cluster {
    nodes: Vec<Server>,
    ids: Vec<String>,
    /// The node that was killed and not started again.
    down: Option<usize>,
}

/// A node as another one knows it.
struct Member {
    id: String,
    /// The master that it replicates.
    master: Option<String>,
    slots: Vec<(u16, u16)>,
}

impl Cluster {
    /// A cluster in which every node knows every other, and every replica is online.
    pub fn start() -> Cluster {
        let settings = [
            ("cluster-enabled", "yes"),
            ("cluster-node-timeout", NODE_TIMEOUT_MS),
            // None is elected because the machine is busy.
            ("cluster-replica-no-failover", "yes"),
        ];
        let nodes: Vec<Server> = (0..2 * MASTERS).map(|_| Server::with(&settings)).collect();
        create(&nodes);
        let ids = nodes.iter().map(|node| text(&node.value("CLUSTER MYID"))).collect();
        let cluster = Cluster { nodes, ids, down: None };
        cluster.wait_until_ok();
        cluster
    }

    /// Waits until every node that runs finds the cluster in order, and every replica is online.
    fn wait_until_ok(&self) {
        wait_for("the nodes to make a cluster", || {
            self.running().all(|node| {
                let replicas = self.members(node).iter().filter(|member| member.master.is_some()).count();
                replicas == MASTERS && text(&node.value("CLUSTER INFO")).contains("cluster_state:ok")
            })
        });
        wait_for("the replicas to be online", || {
            self.running()
                .all(|node| node.info("role") == "master" || node.info("master_link_status") == "up")
        });
    }

    fn running(&self) -> impl Iterator<Item = &Server> {
        (0..self.nodes.len()).filter(|index| self.down != Some(*index)).map(|index| &self.nodes[index])
    }

    /// The node of this index.
    pub fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// The name that the nodes give each other.
    pub fn id(&self, index: usize) -> &str {
        &self.ids[index]
    }

    /// The masters, in the order of the nodes.
    pub fn masters(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|index| self.nodes[*index].info("role") == "master").collect()
    }

    /// The replica of a master.
    pub fn replica_of(&self, master: usize) -> usize {
        let members = self.members(&self.nodes[master]);
        let is_its = |member: &&Member| member.master.as_deref() == Some(self.id(master));
        self.index_of(&members.iter().find(is_its).expect("a replica").id)
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        let slot = self.nodes[0].integer(&format!("CLUSTER KEYSLOT {key}"));
        u16::try_from(slot).expect("a slot")
    }

    /// The master that a node sends a slot's clients to.
    pub fn owner(&self, slot: u16) -> usize {
        self.owner_as_seen_by(self.running().next().expect("a node"), slot).expect("an owner")
    }

    /// Waits until all nodes send a slot's clients to this one.
    pub fn wait_for_owner(&self, slot: u16, owner: usize) {
        wait_for("all nodes to know a slot's owner", || {
            self.running().all(|node| self.owner_as_seen_by(node, slot) == Some(owner))
        });
    }

    fn owner_as_seen_by(&self, node: &Server, slot: u16) -> Option<usize> {
        let owns = |member: &Member| member.slots.iter().any(|(from, to)| (*from..=*to).contains(&slot));
        self.members(node).iter().find(|member| owns(member)).map(|member| self.index_of(&member.id))
    }

    fn first_slot_of(&self, master: usize) -> u16 {
        let members = self.members(&self.nodes[master]);
        members.iter().find(|member| member.id == self.ids[master]).expect("itself").slots[0].0
    }

    fn index_of(&self, id: &str) -> usize {
        self.ids.iter().position(|known| known == id).expect("a node of ours")
    }

    /// Has a master's replica take its place, and waits until it has.
    pub fn hand_over(&self, master: usize) {
        let (slot, replica) = (self.first_slot_of(master), self.replica_of(master));
        let mut asked: Option<Instant> = None;
        wait_for("the replica to take over", || {
            if asked.is_none_or(|asked| asked.elapsed() > HAND_OVER_TIMEOUT) {
                self.nodes[replica].value("CLUSTER FAILOVER");
                asked = Some(Instant::now());
            }
            self.owner_as_seen_by(&self.nodes[replica], slot) == Some(replica)
        });
        self.wait_for_owner(slot, replica);
        self.wait_until_ok();
    }

    /// Ends a master at once, as a crash would, and waits until its replica has been elected.
    pub fn fail_over(&mut self, master: usize) {
        let (slot, replica) = (self.first_slot_of(master), self.replica_of(master));
        self.nodes[replica].value("CONFIG SET cluster-replica-no-failover no");
        self.nodes[master].kill();
        self.down = Some(master);
        self.wait_for_owner(slot, replica);
    }

    /// Starts the node that was ended again: a replica of the master that was elected.
    pub fn revive(&mut self) {
        if let Some(index) = self.down.take() {
            self.nodes[index].relaunch();
        }
        self.wait_until_ok();
    }

    /// What a client connects to at first.
    pub fn addresses(&self) -> Vec<String> {
        self.running().map(|node| format!("redis://127.0.0.1:{}", node.port())).collect()
    }

    /// The other nodes as this one knows them, and itself.
    fn members(&self, node: &Server) -> Vec<Member> {
        let nodes = text(&node.value("CLUSTER NODES"));
        nodes.lines().map(Member::read).collect()
    }
}

impl Member {
    /// Reads a line of CLUSTER NODES: id, address, flags, master, ping sent, pong received,
    /// epoch, link state and slots; those that are being moved stand in brackets.
    fn read(line: &str) -> Member {
        let words: Vec<&str> = line.split(' ').collect();
        let slots = words[8..].iter().filter(|word| !word.starts_with('[')).map(|range| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            (from.parse().expect("a slot"), to.parse().expect("a slot"))
        });
        let master = Some(words[3]).filter(|id| *id != "-").map(str::to_owned);
        Member { id: words[0].to_owned(), master, slots: slots.collect() }
    }
}

/// A client of the cluster that follows MOVED and ASK, and tries again while the cluster is down.
/// It sends no request again that may have been counted: when a connection breaks the request
/// fails.
pub fn cluster_client(addresses: &[String]) -> RedisResult<ClusterConnection> {
    let client = ClusterClientBuilder::new(addresses.to_vec())
        .connection_timeout(PATIENCE)
        .response_timeout(PATIENCE)
        .retries(1_000)
        .retry_wait_formula(20, 1)
        .min_retry_wait(10)
        .build()?
        .get_connection()?;
    client.set_auto_reconnect(false);
    Ok(client)
}

/// Makes a cluster of these nodes, as people do.
fn create(nodes: &[Server]) {
    let mut command = Command::new(cli());
    command.args(["--cluster", "create"]);
    command.args(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())));
    command.args(["--cluster-replicas", "1", "--cluster-yes"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    end_with_this_thread(&mut command);
    let mut creation = command.spawn().expect("redis-cli, which comes with the server");
    // It would wait for nodes that do not come for ever.
    wait_for("redis-cli to create the cluster", || creation.try_wait().expect("its status").is_some());
    let output = creation.wait_with_output().expect("its output");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// redis-cli or valkey-cli beside the server, or else redis-cli on the PATH.
fn cli() -> PathBuf {
    let server = PathBuf::from(env::var_os("REDIS_SERVER").unwrap_or("redis-server".into()));
    let name = server.file_name().unwrap_or_default().to_string_lossy().replace("-server", "-cli");
    let beside = server.with_file_name(name);
    let runs = Command::new(&beside).arg("--version").output().is_ok();
    if runs { beside } else { "redis-cli".into() }
}

fn text(value: &Value) -> String {
    redis::from_redis_value_ref(value).expect("a text")
}
