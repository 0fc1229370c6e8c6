//! Real servers with the module: each on a free port, in a temporary folder, and gone when the test is.
//!
//! `REDIS_SERVER` names the server to run, `MODULE` the module to load, `REDIS_RL` the repository.
#![allow(dead_code, reason = "benches use a part")]

pub mod forwarder;
pub mod words;

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, thread};

use redis::Connection;
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis_rl_client::{Redis, RlCommands};
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use forwarder::Forwarder;

/// How long a condition may take to come true before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A process in a folder of its own. Dropping it ends it.
struct Process {
    child: Child,
    folder: TempDir,
}

impl Process {
    /// The server program, with words that may name the folder.
    fn start(words: impl FnOnce(&mut Command, &Path)) -> Process {
        let folder = TempDir::new().expect("a temporary folder");
        let mut command = Command::new(env::var_os("REDIS_SERVER").unwrap_or("redis-server".into()));
        let log = File::create(folder.path().join("log")).expect("a log file");
        words(&mut command, folder.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log file")).stderr(log);
        end_with_this_thread(&mut command);
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        Process { child, folder }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server. Dropping it ends it.
pub struct Server {
    process: Process,
    port: u16,
    /// Of whom connections are; `name:password@` of an address.
    user: String,
    settings: Vec<String>,
}

impl Server {
    /// A server with the module.
    pub fn start() -> Server {
        Server::with_module(&[])
    }

    pub fn without_module() -> Server {
        Server::with(&[])
    }

    pub fn with_module(settings: &[&str]) -> Server {
        let module = env::var("MODULE").unwrap_or_else(|_| repository("target/release/libredis_rl.so"));
        Server::with(&[settings, &["--loadmodule", &module]].concat())
    }

    fn with(settings: &[&str]) -> Server {
        Server::on(free_port, settings)
    }

    /// A server on the port that `port` tells; it is asked again while the port is taken.
    fn on(port: impl Fn() -> u16, settings: &[&str]) -> Server {
        let started = Instant::now();
        loop {
            match Server::launch(port(), settings) {
                Ok(server) => return server,
                // Somebody else may have taken the port in the meantime.
                Err(log) if log.contains("in use") && started.elapsed() < PATIENCE => {}
                Err(log) => panic!("the server does not start:\n{log}"),
            }
        }
    }

    /// What the server says if it ends before it answers.
    fn launch(port: u16, settings: &[&str]) -> Result<Server, String> {
        let process = Process::start(|command, folder| {
            command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]);
            command.arg(folder).args(settings);
            if settings.contains(&"--cluster-enabled") {
                // Where nodes talk to each other; if it is not set, 10,000 above the port.
                command.args(["--cluster-port", &free_port().to_string()]);
            }
        });
        let settings = settings.iter().copied().map(str::to_owned).collect();
        let mut server = Server { process, port, user: String::new(), settings };
        let mut ended = false;
        wait_for("the server to answer", || {
            ended = server.process.child.try_wait().expect("its status").is_some();
            ended || server.answers()
        });
        let log = server.process.folder.path().join("log");
        if ended { Err(fs::read_to_string(log).unwrap_or_default()) } else { Ok(server) }
    }

    /// Whether it is this process that listens on the port.
    fn answers(&self) -> bool {
        let Ok(mut connection) = self.client("resp2").get_connection() else { return false };
        let info: String = redis::cmd("INFO").arg("server").query(&mut connection).unwrap_or_default();
        info.lines().any(|line| line == format!("process_id:{}", self.process.child.id()))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://{}127.0.0.1:{}", self.user, self.port)
    }

    /// Has connections made from now on be those of this user.
    pub fn log_in(&mut self, name: &str, password: &str) {
        self.user = format!("{name}:{password}@");
    }

    pub fn client(&self, protocol: &str) -> redis::Client {
        redis::Client::open(format!("{}/?protocol={protocol}", self.url())).expect("an address")
    }

    /// However busy the machine is, a server that answers is not away.
    pub fn redis(&self) -> Redis {
        Redis::from(self.client("resp3")).timeout(PATIENCE)
    }

    pub fn connect(&self) -> Connection {
        self.client("resp2").get_connection().expect("the server answers")
    }

    /// However busy the machine is, a server that answers is not away.
    pub async fn connect_async(&self, protocol: &str) -> redis::aio::MultiplexedConnection {
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let connection = self.client(protocol).get_multiplexed_async_connection_with_config(&config).await;
        connection.expect("the server answers")
    }

    /// The same, for a connection that is made when it is needed, and again when it broke.
    pub async fn manager(&self, protocol: &str) -> redis::aio::ConnectionManager {
        let config = redis::aio::ConnectionManagerConfig::new()
            .set_number_of_retries(0)
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let manager = redis::aio::ConnectionManager::new_with_config(self.client(protocol), config).await;
        manager.expect("the server answers")
    }

    /// Stops it as it stands: connections stay, and nothing is answered.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    #[expect(unsafe_code, reason = "there is no safe way to send a signal other than SIGKILL")]
    fn signal(&self, signal: i32) {
        // SAFETY: kill touches no memory; the process is this one's child and not yet waited for.
        assert_eq!(unsafe { libc::kill(self.process.child.id() as i32, signal) }, 0, "the server runs");
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let _ = self.process.child.kill();
        let _ = self.process.child.wait();
    }

    /// Starts it again on the same port, without its data.
    pub fn restart(&mut self) {
        let settings = self.settings.clone();
        self.restart_with(&settings.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// The same without the module.
    pub fn restart_without_module(&mut self) {
        self.restart_with(&[]);
    }

    fn restart_with(&mut self, settings: &[&str]) {
        self.kill();
        let port = self.port;
        *self = Server::on(|| port, settings);
    }
}

/// A sentinel that watches a server, by the name `limits`. Dropping it ends it.
pub struct Sentinel {
    _process: Process,
    pub port: u16,
}

impl Sentinel {
    pub fn of(server: &Server) -> Sentinel {
        let port = free_port();
        Sentinel::on(port, server.port, &["--port", &port.to_string()])
    }

    /// A sentinel with settings that say how it listens on the port, and the port of the server that it watches.
    pub fn on(port: u16, watched: u16, settings: &[&str]) -> Sentinel {
        let watch = format!("bind 127.0.0.1\nsentinel monitor limits 127.0.0.1 {watched} 1\n");
        let _process = Process::start(|command, folder| {
            let file = folder.join("sentinel.conf");
            fs::write(&file, watch).expect("a file");
            command.arg(file).arg("--sentinel").args(settings);
        });
        wait_for("the sentinel to listen", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Sentinel { _process, port }
    }
}

/// Three masters, a third of the slots each. Dropping it ends them.
pub struct Cluster {
    pub nodes: Vec<Server>,
    /// What clients reach them by, if there is anything between.
    pub forwarders: Vec<Forwarder>,
}

impl Cluster {
    pub fn start() -> Cluster {
        let nodes = (0..3).map(|_| Server::with_module(&["--cluster-enabled", "yes"])).collect();
        Cluster::of(nodes, Vec::new())
    }

    /// Clients reach each node over a forwarder, which takes so long one way.
    pub fn behind_forwarders(delay: Duration) -> Cluster {
        let listeners = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let (nodes, forwarders) = listeners
            .map(|listener| {
                let port = listener.local_addr().expect("its address").port().to_string();
                let settings = ["--cluster-enabled", "yes", "--cluster-announce-port", &port];
                let node = Server::with_module(&settings);
                let forwarder = Forwarder::on(listener, node.port, delay);
                (node, forwarder)
            })
            .unzip();
        Cluster::of(nodes, forwarders)
    }

    fn of(nodes: Vec<Server>, forwarders: Vec<Forwarder>) -> Cluster {
        for (node, slots) in nodes.iter().zip(["0 5460", "5461 10922", "10923 16383"]) {
            let _: () = node.call(&format!("CLUSTER ADDSLOTSRANGE {slots}"));
            let bus: Vec<String> = node.call("CONFIG GET cluster-port");
            let _: () = nodes[0].call(&format!("CLUSTER MEET 127.0.0.1 {} {}", node.port, bus[1]));
        }
        wait_for("the nodes to make a cluster", || {
            nodes.iter().all(|node| {
                let info: String = node.call("CLUSTER INFO");
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
            })
        });
        Cluster { nodes, forwarders }
    }

    fn urls(&self) -> Vec<String> {
        let networks: Vec<String> = self.forwarders.iter().map(Forwarder::url).collect();
        if networks.is_empty() { self.nodes.iter().map(Server::url).collect() } else { networks }
    }

    pub fn client(&self) -> ClusterClient {
        let client = ClusterClientBuilder::new(self.urls()).connection_timeout(PATIENCE);
        client.response_timeout(PATIENCE).build().expect("addresses")
    }

    /// A client for each node.
    pub fn redis(&self) -> Redis {
        Redis::cluster(self.urls().into_iter().map(|url| redis::Client::open(url).expect("an address")))
    }

    /// Adds a user to all nodes, and has connections made from now on be those of this user.
    pub fn log_in(&mut self, name: &str, password: &str, set_user: &str) {
        for node in &mut self.nodes {
            let _: () = node.call(set_user);
            node.log_in(name, password);
        }
    }

    /// How often nodes sent a client elsewhere.
    pub fn redirections(&self) -> usize {
        let moved = |node: &Server| {
            let info: String = node.call("INFO errorstats");
            let count = info.lines().find_map(|line| line.strip_prefix("errorstat_MOVED:count="));
            count.map_or(0, |count| count.trim().parse().expect("a number"))
        };
        self.nodes.iter().map(moved).sum()
    }

    /// How many keys each node holds.
    pub fn keys(&self) -> Vec<usize> {
        self.nodes.iter().map(|node| node.call("DBSIZE")).collect()
    }
}

impl Server {
    /// The reply to a command whose arguments are separated by spaces.
    pub fn call<T: redis::FromRedisValue>(&self, line: &str) -> T {
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next().expect("a command"));
        command.arg(words.collect::<Vec<_>>());
        command.query(&mut self.connect()).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// Units that it counts for a key.
    pub fn used(&self, key: &str) -> u64 {
        used(self.connect(), key)
    }

    /// How many commands of this name it has run.
    pub fn calls(&self, command: &str) -> u64 {
        let info: String = self.call("INFO commandstats");
        let name = format!("cmdstat_{command}:calls=");
        let calls = info.lines().find_map(|line| line.strip_prefix(&name)?.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    }

    /// The processor time that it has used.
    pub fn cpu(&self) -> Duration {
        let info: String = self.call("INFO cpu");
        let seconds = |name: &str| -> f64 {
            let value = info.lines().find_map(|line| line.strip_prefix(name)).expect("a time");
            value.parse().expect("a number")
        };
        Duration::from_secs_f64(seconds("used_cpu_sys:") + seconds("used_cpu_user:"))
    }

    /// Waits until its clock is past this time.
    pub fn wait_until_after(&self, at: SystemTime) {
        let past = at.duration_since(UNIX_EPOCH).expect("after 1970") + Duration::from_millis(1);
        wait_for("the clock", || {
            let (seconds, micros): (u64, u32) = self.call("TIME");
            Duration::new(seconds, micros * 1_000) >= past
        });
    }
}

/// Units that a server or a cluster counts for a key.
pub fn used(mut redis: impl RlCommands, key: &str) -> u64 {
    let info = redis.rl_info(key).expect("a reply");
    info.and_then(|info| Some(info.windows.first()?.used)).unwrap_or_default()
}

/// A time that tests set.
pub fn noon() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(1_700_000_040_000)
}

/// A file of the repository, in which this package lies if it is not unpacked elsewhere.
pub fn repository(path: &str) -> String {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    format!("{}/{path}", env::var("REDIS_RL").unwrap_or_else(|_| here.to_owned()))
}

/// A table of cases that all packages share.
pub fn table<T: DeserializeOwned>(name: &str) -> T {
    let path = repository(&format!("clients/{name}.json"));
    let text = fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A port on 127.0.0.1 that nobody listens on.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// Has the system end the process when the test that starts it ends, even if that is killed.
#[expect(unsafe_code, reason = "there is no safe way to ask for a signal on the parent's death")]
pub fn end_with_this_thread(command: &mut Command) {
    // SAFETY: prctl may be called between fork and exec, and touches no memory.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// Waits until `condition` holds.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The same, while other tasks of the runtime go on.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
