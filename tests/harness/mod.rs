//! Real servers with the module loaded: each on a free loopback port, in a temporary folder, and
//! gone when the test is, whatever became of it.
//!
//! `REDIS_SERVER` names the server to run, `redis-server` if it is not set.
#![allow(dead_code, reason = "each test binary uses its part")]

mod clock;
pub mod cluster;

use std::env;
use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, RedisError, RedisResult, Value};
use tempfile::TempDir;

use clock::Clock;

/// How long a condition may take to come true before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Settings of a server that has each command on disk before it answers.
pub const APPEND_ONLY: [(&str, &str); 2] = [("appendonly", "yes"), ("appendfsync", "always")];

/// A figure reply: limited, limit, remaining, retry after, reset after.
pub type Figures = [i64; 5];

/// The module, built as users build it.
pub fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let built = Command::new(env!("CARGO"))
            .args(["build", "--release", "--lib", "--quiet"])
            .current_dir(root)
            .status()
            .expect("cargo runs");
        assert!(built.success(), "the module does not build");
        let target = env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
        target.join("release/libredis_rl.so")
    })
}

/// A server. Dropping it ends it.
pub struct Server {
    child: Child,
    port: u16,
    args: Vec<String>,
    clock: Option<Clock>,
    folder: TempDir,
}

impl Server {
    /// A server with the module and without persistence.
    pub fn start() -> Server {
        Server::with(&[])
    }

    /// A server with these settings too, as `--name value`.
    pub fn with(settings: &[(&str, &str)]) -> Server {
        Server::bare(&[&[load_module()], settings].concat(), None)
    }

    /// A server whose clock stands at this Unix time in milliseconds until the test sets it.
    pub fn with_clock_at(unix_ms: i64, settings: &[(&str, &str)]) -> Server {
        Server::bare(&[&[load_module()], settings].concat(), Some(unix_ms))
    }

    /// A server that has not loaded the module.
    pub fn without_module() -> Server {
        Server::bare(&[], None)
    }

    fn bare(settings: &[(&str, &str)], clock_at: Option<i64>) -> Server {
        let folder = TempDir::new().expect("a temporary folder");
        let clock = clock_at.map(|unix_ms| Clock::at(unix_ms, folder.path()));
        let base = [
            ("save", ""),
            ("appendonly", "no"),
            ("repl-diskless-sync-delay", "0"),
            ("enable-debug-command", "local"),
            ("enable-module-command", "local"),
        ];
        let pairs = base.iter().chain(settings);
        let args: Vec<String> =
            pairs.flat_map(|(name, value)| [format!("--{name}"), (*value).to_owned()]).collect();
        let (child, port) = launch(folder.path(), &args, clock.as_ref(), free_port);
        Server { child, port, args, clock, folder }
    }

    /// A Sentinel, of the same program, with these lines of configuration.
    pub fn sentinel(configuration: &str) -> Server {
        let folder = TempDir::new().expect("a temporary folder");
        let file = folder.path().join("sentinel.conf");
        fs::write(&file, configuration).expect("a file for its configuration");
        let args = vec![file.to_str().expect("a path in UTF-8").to_owned(), "--sentinel".to_owned()];
        let (child, port) = launch(folder.path(), &args, None, free_port);
        Server { child, port, args, clock: None, folder }
    }

    /// A server that replicates `master`, once it does. If the master's clock stands, its own stands
    /// half a second ahead: nothing that replicas are sent may go by that.
    pub fn replica_of(master: &Server, settings: &[(&str, &str)]) -> Server {
        let clock_at = master.clock.as_ref().map(|_| master.clock_ms() + 500);
        let replica = Server::bare(&[&[load_module()], settings].concat(), clock_at);
        replica.follow(master);
        replica
    }

    /// Makes it a replica of `master`, and waits until it is.
    pub fn follow(&self, master: &Server) {
        self.value(&format!("REPLICAOF 127.0.0.1 {}", master.port));
        wait_for("the replica to be online", || self.info("master_link_status") == "up");
    }

    /// Ends the server at once, as a crash would, and starts it again on what it left on disk.
    pub fn crash_and_restart(&mut self) {
        self.kill();
        self.relaunch();
    }

    /// Ends the server at once, as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().expect("a process of ours");
        self.child.wait().expect("the server ends");
    }

    /// Shuts the server down and starts it again on what it left on disk.
    pub fn restart(&mut self) {
        self.restart_after(|_folder| {});
    }

    /// The same, with a change to what is on disk in between.
    pub fn restart_after(&mut self, change: impl FnOnce(&Path)) {
        // The connection breaks before it answers.
        let _ = self.call("SHUTDOWN");
        self.child.wait().expect("the server ends");
        change(self.folder());
        self.relaunch();
    }

    /// Starts a server that has ended on what it left on disk, under the port that it had.
    pub fn relaunch(&mut self) {
        self.child.wait().expect("the server ends");
        let port = || self.port;
        (self.child, _) = launch(self.folder.path(), &self.args, self.clock.as_ref(), port);
    }

    /// The same, with a clock of its own that stands at this time by then.
    pub fn relaunch_at(&mut self, unix_ms: i64) {
        self.own_clock().set(unix_ms);
        self.relaunch();
    }

    /// The folder it keeps its files in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A new connection that speaks RESP2.
    pub fn connect(&self) -> Connection {
        self.connect_with("resp2")
    }

    /// A new connection that speaks RESP3.
    pub fn connect_resp3(&self) -> Connection {
        self.connect_with("resp3")
    }

    fn connect_with(&self, protocol: &str) -> Connection {
        connect(self.port, protocol).expect("the server answers")
    }

    /// The reply to a command whose arguments are separated by spaces.
    pub fn call(&self, line: &str) -> RedisResult<Value> {
        command(line).query(&mut self.connect())
    }

    /// The reply to a command that has to succeed.
    pub fn value(&self, line: &str) -> Value {
        self.call(line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// The five figures that a command answers.
    pub fn figures(&self, line: &str) -> Figures {
        figures(&self.value(line))
    }

    /// The integer that a command answers.
    pub fn integer(&self, line: &str) -> i64 {
        match self.value(line) {
            Value::Int(integer) => integer,
            other => panic!("{line}: {other:?} is no integer"),
        }
    }

    /// The error that a command answers, as it goes over the wire.
    pub fn error(&self, line: &str) -> String {
        match self.call(line) {
            Ok(value) => panic!("{line}: {value:?} is no error"),
            Err(error) => error_text(&error),
        }
    }

    /// A field of INFO.
    pub fn info(&self, field: &str) -> String {
        let info: String = command("INFO everything").query(&mut self.connect()).expect("INFO");
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("INFO has no {field}")).to_owned()
    }

    /// Waits until no append-only file is being rewritten.
    pub fn wait_for_rewrite(&self) {
        let fields = ["aof_rewrite_in_progress", "aof_rewrite_scheduled"];
        wait_for("the rewrite", || fields.iter().all(|field| self.info(field) == "0"));
    }

    /// Its clock, in Unix milliseconds.
    pub fn clock_ms(&self) -> i64 {
        let (seconds, micros): (i64, i64) = command("TIME").query(&mut self.connect()).expect("TIME");
        seconds * 1_000 + micros / 1_000
    }

    fn own_clock(&self) -> &Clock {
        self.clock.as_ref().expect("a server that was started with a clock of its own")
    }

    /// Sets the clock of a server that was started with one of its own.
    pub fn set_clock(&self, unix_ms: i64) {
        self.own_clock().set(unix_ms);
        // Valkey 9.1 looks at the clock once in a millisecond.
        wait_for("the server to look at its clock", || self.clock_ms() == unix_ms);
    }

    /// Moves such a clock forward, or back if `ms` is negative.
    pub fn step_clock(&self, ms: i64) {
        self.set_clock(self.clock_ms() + ms);
    }

    /// Stops it as it stands: connections stay, and nothing is answered until `thaw`.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// Has a server go on that `freeze` stopped.
    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    #[expect(unsafe_code, reason = "there is no safe way to send a signal other than SIGKILL")]
    fn signal(&self, signal: i32) {
        // SAFETY: kill touches no memory; the process is this one's child and not yet waited for.
        let sent = unsafe { libc::kill(self.child.id() as i32, signal) };
        assert_eq!(sent, 0, "the server runs");
    }

    /// The digests of all its keys: equal in two servers that hold the same.
    pub fn digest(&self) -> String {
        format!("{:?}", self.value("DEBUG DIGEST"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn load_module() -> (&'static str, &'static str) {
    ("loadmodule", module().to_str().expect("a path in UTF-8"))
}

/// Starts a server in `folder` and waits until it has loaded what it found there. Another try, if
/// somebody else listens on the port, is for the port that is told then.
fn launch(folder: &Path, args: &[String], clock: Option<&Clock>, port: impl Fn() -> u16) -> (Child, u16) {
    let program = env::var_os("REDIS_SERVER").unwrap_or("redis-server".into());
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        let port = port();
        let log = File::create(folder.join("log")).expect("a log file");
        let mut command = Command::new(&program);
        // A Sentinel's file is the first argument.
        command.args(args).args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(folder);
        let has = |setting| args.iter().any(|arg| arg == setting);
        if has("--cluster-enabled") && !has("--cluster-port") {
            // Where nodes talk to each other; if it is not set, 10,000 above the port.
            command.args(["--cluster-port", &free_port().to_string()]);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log file")).stderr(log);
        if let Some(clock) = clock {
            clock.rule(&mut command);
        }
        end_with_this_thread(&mut command);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot run {program:?}: {error}"));
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if child.try_wait().expect("its status").is_some() {
                break;
            }
            if is_ready(port, &child) {
                return (child, port);
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
        let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
        // Somebody else may have taken the port in the meantime.
        assert!(log.contains("Address already in use"), "the server does not start:\n{log}");
    }
    panic!("the port is not free");
}

/// Whether the server has loaded what it found, and is not another one that was given the port.
fn is_ready(port: u16, child: &Child) -> bool {
    let answers = |mut connection: Connection| {
        command("PING").exec(&mut connection)?;
        command("INFO server").query::<String>(&mut connection)
    };
    let process = format!("process_id:{}", child.id());
    connect(port, "resp2").and_then(answers).is_ok_and(|info| info.lines().any(|line| line == process))
}

fn connect(port: u16, protocol: &str) -> RedisResult<Connection> {
    let url = format!("redis://127.0.0.1:{port}/?protocol={protocol}");
    let connection = redis::Client::open(url)?.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    Ok(connection)
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

/// A command whose arguments are separated by spaces.
pub fn command(line: &str) -> redis::Cmd {
    let mut words = line.split_whitespace();
    let mut command = redis::cmd(words.next().expect("a command"));
    command.arg(words.collect::<Vec<_>>());
    command
}

/// Commands to be sent all at once, the arguments of each separated by spaces.
pub fn pipeline(lines: impl IntoIterator<Item = impl AsRef<str>>) -> redis::Pipeline {
    let mut pipeline = redis::pipe();
    for line in lines {
        pipeline.add_command(command(line.as_ref()));
    }
    pipeline
}

/// The five integers of a reply.
pub fn figures(value: &Value) -> Figures {
    let Value::Array(items) = value else { panic!("{value:?} is no array") };
    let integers: Vec<i64> = items
        .iter()
        .map(|item| match item {
            Value::Int(integer) => *integer,
            other => panic!("{other:?} is no integer"),
        })
        .collect();
    integers.try_into().unwrap_or_else(|_| panic!("{value:?} has not five figures"))
}

/// An error as it goes over the wire: its code, a space, its text.
pub fn error_text(error: &RedisError) -> String {
    [error.code(), error.detail()].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Waits until `condition` holds.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// What a server sends to its replicas.
pub struct ReplicationStream {
    commands: Commands<BufReader<TcpStream>>,
    marks: u32,
}

impl ReplicationStream {
    /// Attaches to a server as a replica does.
    pub fn of(server: &Server) -> ReplicationStream {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("the server answers");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(b"PSYNC ? -1\r\n").expect("the server listens");
        let mut reader = BufReader::new(stream);
        assert!(read_line(&mut reader).starts_with("+FULLRESYNC"));
        // The snapshot: newlines while it is made, its length, its bytes.
        let mut header = String::new();
        while header.is_empty() {
            header = read_line(&mut reader);
        }
        let length = header.strip_prefix('$').and_then(|len| len.parse().ok()).expect("a snapshot");
        std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink()).expect("the snapshot");
        ReplicationStream { commands: Commands::of(reader), marks: 0 }
    }

    /// The next command as it is sent; `None` when the server ends.
    pub fn next_command(&mut self) -> Option<String> {
        self.commands.next()
    }

    /// The commands sent since the last call, their arguments joined by spaces, without those
    /// that keep the connection alive or choose the database.
    pub fn commands(&mut self, server: &Server) -> Vec<String> {
        self.marks += 1;
        let mark = format!("PUBLISH end-of-commands {}", self.marks);
        server.value(&mark);
        let mut commands = Vec::new();
        loop {
            let command = self.next_command().expect("a command");
            if command == mark {
                return commands;
            }
            // Valkey 9.1 writes some of them in lower case.
            let name = command.split(' ').next().unwrap_or_default().to_ascii_uppercase();
            if !["PING", "SELECT", "REPLCONF"].contains(&name.as_str()) {
                commands.push(command);
            }
        }
    }
}

/// Every command of an append-only file in the order of its parts, but for those that choose the
/// database.
pub fn commands_in_aof(server: &Server) -> Vec<String> {
    let mut parts: Vec<PathBuf> = fs::read_dir(server.folder().join("appendonlydir"))
        .expect("an append-only folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "aof"))
        .collect();
    // "base" sorts before "incr".
    parts.sort();
    let mut commands = Vec::new();
    for part in parts {
        let part = Commands::of(File::open(part).expect("a part"));
        commands.extend(part.filter(|command| !command.starts_with("SELECT")));
    }
    commands
}

/// The commands in a stream, their arguments joined by spaces, until it ends.
struct Commands<R> {
    parser: redis::Parser,
    reader: R,
}

impl<R: Read> Commands<R> {
    fn of(reader: R) -> Commands<R> {
        Commands { parser: redis::Parser::new(), reader }
    }
}

impl<R: Read> Iterator for Commands<R> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let words: Vec<Vec<u8>> =
            redis::from_redis_value(self.parser.parse_value(&mut self.reader).ok()?).expect("a command");
        Some(String::from_utf8_lossy(&words.join(&b' ')).into_owned())
    }
}

fn read_line(reader: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    std::io::BufRead::read_line(reader, &mut line).expect("a line");
    line.trim_end().to_owned()
}

/// Numbers that look random and are the same in every run (splitmix64).
pub struct Random(pub u64);

impl Random {
    /// A number from 0 to `end - 1`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    /// One of `choices`.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
