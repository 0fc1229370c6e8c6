//! A cluster of six servers: three masters with a replica each.

use std::process::Command;
use std::time::{Duration, Instant};

use harness::{PATIENCE, Process, Server, cli, wait_for};
use redis::RedisResult;
use redis::cluster::{ClusterClientBuilder, ClusterConnection};

const MASTERS: usize = 3;

/// The time without an answer after which nodes consider another one dead. They also ping about as often, so a
/// short time spreads news faster.
const NODE_TIMEOUT_MS: &str = "2000";

/// Nodes abandon a failover after five seconds.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(6);

/// Six nodes, identified by index. Dropping it stops them.
pub struct Cluster {
    nodes: Vec<Server>,
    ids: Vec<String>,
    /// The node that was killed and has not been started again.
    down: Option<usize>,
}

/// A node as another node sees it.
struct Member {
    id: String,
    /// The master it replicates.
    master: Option<String>,
    slots: Vec<(u16, u16)>,
}

impl Cluster {
    /// Starts a cluster in which every node knows every other and every replica is online.
    pub fn start() -> Cluster {
        let settings = [
            ("cluster-enabled", "yes"),
            ("cluster-node-timeout", NODE_TIMEOUT_MS),
            // So that no replica is elected just because the machine is busy.
            ("cluster-replica-no-failover", "yes"),
        ];
        let nodes: Vec<Server> = (0..2 * MASTERS).map(|_| Server::with(&settings)).collect();
        create(&nodes);
        let ids = nodes.iter().map(|node| node.text("CLUSTER MYID")).collect();
        let cluster = Cluster { nodes, ids, down: None };
        cluster.wait_until_ok();
        cluster
    }

    /// Waits until every running node reports the cluster as ok, and every replica is online.
    fn wait_until_ok(&self) {
        wait_for("the nodes to make a cluster", || {
            self.running().all(|node| {
                let replicas = self.members(node).iter().filter(|member| member.master.is_some()).count();
                replicas == MASTERS && node.text("CLUSTER INFO").contains("cluster_state:ok")
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

    /// The node with this index.
    pub fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// The node's id in the cluster.
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

    /// The hash slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        let slot = self.nodes[0].integer(&format!("CLUSTER KEYSLOT {key}"));
        u16::try_from(slot).expect("a slot")
    }

    /// The master that the nodes redirect a slot's clients to.
    pub fn owner(&self, slot: u16) -> usize {
        self.owner_as_seen_by(self.running().next().expect("a node"), slot).expect("an owner")
    }

    /// Waits until all nodes redirect a slot's clients to this one.
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

    /// Fails a master over to its replica by CLUSTER FAILOVER, and waits until that is done.
    pub fn hand_over(&self, master: usize) {
        let (slot, replica) = (self.first_slot_of(master), self.replica_of(master));
        let mut asked: Option<Instant> = None;
        wait_for("the replica to take over", || {
            if asked.is_none_or(|asked| asked.elapsed() > FAILOVER_TIMEOUT) {
                self.nodes[replica].value("CLUSTER FAILOVER");
                asked = Some(Instant::now());
            }
            self.owner_as_seen_by(&self.nodes[replica], slot) == Some(replica)
        });
        self.wait_for_owner(slot, replica);
        self.wait_until_ok();
    }

    /// Kills a master, and waits until its replica has been elected.
    pub fn fail_over(&mut self, master: usize) {
        let (slot, replica) = (self.first_slot_of(master), self.replica_of(master));
        self.nodes[replica].value("CONFIG SET cluster-replica-no-failover no");
        self.nodes[master].kill();
        self.down = Some(master);
        self.wait_for_owner(slot, replica);
    }

    /// Restarts the node that was killed; it becomes a replica of the elected master.
    pub fn revive(&mut self) {
        if let Some(index) = self.down.take() {
            self.nodes[index].relaunch();
        }
        self.wait_until_ok();
    }

    /// The initial addresses for a client.
    pub fn addresses(&self) -> Vec<String> {
        self.running().map(|node| format!("redis://127.0.0.1:{}", node.port())).collect()
    }

    /// All nodes as this one sees them.
    fn members(&self, node: &Server) -> Vec<Member> {
        node.text("CLUSTER NODES").lines().map(Member::read).collect()
    }
}

impl Member {
    /// Reads a line of CLUSTER NODES: id, address, flags, master, ping sent, pong received, epoch, link
    /// state and slots. Slots on the move are in brackets.
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

/// A client of the cluster that follows MOVED and ASK, and retries while the cluster is down. When a
/// connection breaks, the request fails: it may have been counted, so it is not sent again.
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

/// Makes a cluster of these nodes with redis-cli.
fn create(nodes: &[Server]) {
    let mut command = Command::new(cli());
    command.args(["--cluster", "create"]);
    command.args(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())));
    command.args(["--cluster-replicas", "1", "--cluster-yes"]);
    let log = nodes[0].folder().join("create");
    let mut creation = Process::spawn(&mut command, log).expect("redis-cli, which comes with the server");
    // It would wait forever for a node that does not answer.
    wait_for("redis-cli to create the cluster", || !creation.is_running());
    assert!(creation.wait().success(), "{}", creation.log());
}
