//! A running server, and helpers for tests.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use redis::{Connection, RedisResult, Value};

use crate::clock::Clock;
use crate::process::{Launch, Process, free_port};
use crate::wait::wait_for;
use crate::wire::{self, Figures, command, error_text};

/// The path of the module, built in release mode on first use.
pub fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--release", "--locked", "--quiet"])
            .current_dir(&root)
            .status()
            .expect("cargo runs");
        assert!(built.success(), "the module does not build");
        let target = env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
        target.join("release/libredis_rl.so")
    })
}

/// A running server. Dropping it kills the server and removes its folder.
pub struct Server {
    process: Process,
    port: u16,
    launch: Launch,
}

/// The library of the module in `neighbor.c`.
fn neighbor() -> &'static Path {
    Path::new(concat!(env!("OUT_DIR"), "/libneighbor.so"))
}

impl Server {
    pub(crate) fn new(process: Process, port: u16, launch: Launch) -> Server {
        Server { process, port, launch }
    }

    /// A server with the module and without persistence.
    #[track_caller]
    pub fn start() -> Server {
        Server::with(&[])
    }

    /// A server with the module and these settings.
    #[track_caller]
    pub fn with(settings: &[(&str, &str)]) -> Server {
        Server::launch(|launch| Ok(launch.module(module()).settings(settings)))
    }

    /// The same, with a clock set to this Unix time in milliseconds, which changes only when the test sets it. Keys expire
    /// when they are accessed and not by themselves, see [`Server::expire_actively`].
    #[track_caller]
    pub fn with_clock_at(unix_ms: i64, settings: &[(&str, &str)]) -> Server {
        Server::launch(|launch| launch.module(module()).settings(settings).clock_at(unix_ms))
    }

    /// The same, with a second module, which writes to keys when it is told of others: see `neighbor.c`.
    #[track_caller]
    pub fn with_neighbor(unix_ms: i64, settings: &[(&str, &str)]) -> Server {
        Server::with_neighbor_named("neighbor", false, unix_ms, settings)
    }

    /// The same, where that module has another name. It is loaded before ours if it `comes_first`.
    #[track_caller]
    pub fn with_neighbor_named(
        name: &str,
        comes_first: bool,
        unix_ms: i64,
        settings: &[(&str, &str)],
    ) -> Server {
        Server::launch(|launch| {
            let launch = if comes_first {
                launch.module_named(neighbor(), name).module(module())
            } else {
                launch.module(module()).module_named(neighbor(), name)
            };
            launch.settings(settings).clock_at(unix_ms)
        })
    }

    /// A server without the module.
    #[track_caller]
    pub fn without_module() -> Server {
        Server::launch(Ok)
    }

    /// A Sentinel with this configuration file.
    #[track_caller]
    pub fn sentinel(configuration: &str) -> Server {
        started(Launch::sentinel(configuration).and_then(Launch::start))
    }

    /// Lets a server with a test clock delete expired keys by itself.
    ///
    /// Redis 8 may do that in the very millisecond that a key expires at, when other servers still serve it.
    pub fn expire_actively(&self) {
        self.value("DEBUG SET-ACTIVE-EXPIRE 1");
    }

    /// Waits until a server with a test clock has deleted all expired keys.
    pub fn delete_expired_keys(&self) {
        self.expire_actively();
        // KEYS leaves out expired ones.
        wait_for("expired keys to be deleted", || {
            let keys: Vec<Value> = command("KEYS *").query(&mut self.connect()).expect("KEYS");
            keys.len() as i64 == self.integer("DBSIZE")
        });
        self.leave_expired_keys();
    }

    #[track_caller]
    fn launch(adapt: impl FnOnce(Launch) -> io::Result<Launch>) -> Server {
        let for_tests = [
            ("appendonly", "no"),
            ("repl-diskless-sync-delay", "0"),
            ("enable-debug-command", "local"),
            ("enable-module-command", "local"),
        ];
        let launch = Launch::server().and_then(|launch| adapt(launch.settings(&for_tests)));
        let server = started(launch.and_then(Launch::start));
        server.leave_expired_keys();
        server
    }

    /// See [`Server::with_clock_at`].
    fn leave_expired_keys(&self) {
        if self.launch.clock.is_some() {
            self.value("DEBUG SET-ACTIVE-EXPIRE 0");
        }
    }

    /// An online replica of `master`. If the master has a test clock, the replica has one half a second ahead of
    /// it: replicated commands must not depend on the replica's clock.
    #[track_caller]
    pub fn replica_of(master: &Server, settings: &[(&str, &str)]) -> Server {
        let replica = match master.launch.clock {
            Some(_) => Server::with_clock_at(master.clock_ms() + 500, settings),
            None => Server::with(settings),
        };
        replica.follow(master);
        replica
    }

    /// Makes it a replica of `master`, and waits until it is online.
    #[track_caller]
    pub fn follow(&self, master: &Server) {
        self.value(&format!("REPLICAOF 127.0.0.1 {}", master.port));
        wait_for("the replica to be online", || self.info("master_link_status") == "up");
    }

    /// Waits until this replica has received everything that `master` has sent.
    #[track_caller]
    pub fn wait_to_catch_up(&self, master: &Server) {
        wait_for("the replica to catch up", || {
            self.info("slave_repl_offset") == master.info("master_repl_offset")
        });
    }

    /// Kills the server and starts it again on the same files.
    pub fn crash_and_restart(&mut self) {
        self.kill();
        self.relaunch();
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Shuts the server down and starts it again on the same files.
    pub fn restart(&mut self) {
        self.restart_after(|_folder| {});
    }

    /// The same, with a change to the files in between.
    pub fn restart_after(&mut self, change: impl FnOnce(&Path)) {
        // SHUTDOWN closes the connection without a reply.
        let _ = self.call("SHUTDOWN");
        self.process.wait();
        change(self.folder());
        self.relaunch();
    }

    /// Starts the server, once it has ended, on the same files and port.
    #[track_caller]
    pub fn relaunch(&mut self) {
        self.process.wait();
        (self.process, _) = started(self.launch.run(|| self.port));
        self.leave_expired_keys();
    }

    /// The same, with its test clock set to this time first.
    pub fn relaunch_at(&mut self, unix_ms: i64) {
        self.own_clock().set(unix_ms);
        self.relaunch();
    }

    /// The folder for its files.
    pub fn folder(&self) -> &Path {
        self.launch.folder()
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// A new connection that speaks RESP2, or an error.
    pub fn try_connect(&self) -> RedisResult<Connection> {
        wire::connect(self.port, "resp2")
    }

    /// A new connection that speaks RESP2.
    #[track_caller]
    pub fn connect(&self) -> Connection {
        self.connect_with("resp2")
    }

    /// A new connection that speaks RESP3.
    #[track_caller]
    pub fn connect_resp3(&self) -> Connection {
        self.connect_with("resp3")
    }

    /// A new connection. If the server has ended, its log says why.
    #[track_caller]
    fn connect_with(&self, protocol: &str) -> Connection {
        wire::connect(self.port, protocol)
            .unwrap_or_else(|error| panic!("the server does not accept: {error}\n{}", self.log()))
    }

    /// The reply to a command whose arguments are separated by spaces.
    pub fn call(&self, line: &str) -> RedisResult<Value> {
        command(line).query(&mut self.connect())
    }

    /// The reply to a command that must succeed.
    #[track_caller]
    pub fn value(&self, line: &str) -> Value {
        self.call(line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// The five integers in a command's reply.
    #[track_caller]
    pub fn figures(&self, line: &str) -> Figures {
        wire::figures(&self.value(line))
    }

    /// A command's integer reply.
    #[track_caller]
    pub fn integer(&self, line: &str) -> i64 {
        match self.value(line) {
            Value::Int(integer) => integer,
            other => panic!("{line}: {other:?} is not an integer"),
        }
    }

    /// A command's string reply.
    #[track_caller]
    pub fn text(&self, line: &str) -> String {
        redis::from_redis_value(self.value(line)).expect("a text")
    }

    /// A command's error reply, with its code.
    #[track_caller]
    pub fn error(&self, line: &str) -> String {
        match self.call(line) {
            Ok(value) => panic!("{line}: {value:?} is not an error"),
            Err(error) => error_text(&error),
        }
    }

    /// A field of INFO.
    #[track_caller]
    pub fn info(&self, field: &str) -> String {
        let value = wire::info(&mut self.connect(), field).expect("INFO");
        value.unwrap_or_else(|| panic!("INFO has no {field}"))
    }

    /// Rewrites the append-only file if the server found its end cut while loading it: see Persistence in
    /// docs/operations.md.
    #[track_caller]
    pub fn rewrite_if_cut(&self) {
        if self.log().contains("short read while loading the AOF") {
            self.value("BGREWRITEAOF");
            self.wait_for_rewrite();
        }
    }

    /// Waits until no rewrite of an append-only file is running or scheduled.
    #[track_caller]
    pub fn wait_for_rewrite(&self) {
        // In this order: one that is scheduled may start between the two looks.
        let fields = ["aof_rewrite_scheduled", "aof_rewrite_in_progress"];
        wait_for("the rewrite", || fields.iter().all(|field| self.info(field) == "0"));
    }

    /// CPU time that it has taken to serve clients, in seconds.
    #[track_caller]
    pub fn cpu_seconds(&self) -> f64 {
        let fields = ["used_cpu_user_main_thread", "used_cpu_sys_main_thread"];
        fields.iter().map(|field| self.info(field).parse::<f64>().expect("seconds")).sum()
    }

    /// Its clock, in Unix milliseconds.
    pub fn clock_ms(&self) -> i64 {
        wire::clock_ms(&mut self.connect()).expect("TIME") as i64
    }

    fn own_clock(&self) -> &Clock {
        self.launch.clock.as_ref().expect("a server with a test clock")
    }

    /// Sets the server's test clock.
    pub fn set_clock(&self, unix_ms: i64) {
        self.own_clock().set(unix_ms);
        // Valkey 9.1 reads the clock once a millisecond.
        wait_for("the server to read its clock", || self.clock_ms() == unix_ms);
    }

    /// Moves the server's test clock forward, or back if `ms` is negative.
    pub fn step_clock(&self, ms: i64) {
        self.set_clock(self.clock_ms() + ms);
    }

    /// Stops the process: connections stay open, but nothing is answered until `thaw`.
    pub fn freeze(&self) {
        self.process.freeze();
    }

    /// Continues a process that `freeze` stopped.
    pub fn thaw(&self) {
        self.process.thaw();
    }

    /// The digest of the whole data set: equal on servers with equal data.
    pub fn digest(&self) -> String {
        format!("{:?}", self.value("DEBUG DIGEST"))
    }

    /// The server's log since its last start.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Fails if the module has panicked since the server's last start.
    #[track_caller]
    pub fn assert_nothing_panicked(&self) {
        assert!(!self.log().contains("panicked"), "{}", self.log());
    }
}

impl Launch {
    /// Starts the server, and waits until it has loaded the data in its folder.
    pub fn start(self) -> io::Result<Server> {
        let (process, port) = self.run(free_port)?;
        Ok(Server::new(process, port, self))
    }
}

/// Unwraps a start; panics with the server's log if it failed.
#[track_caller]
fn started<T>(result: io::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}
