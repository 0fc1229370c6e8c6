//! The programs in docs/clients.md and in examples/languages, as they are shown, on real servers.
//!
//! A program that connects to port 6379 is for one server, one that connects to port 7000 for a cluster. Only the port is
//! replaced. Code blocks with neither are excerpts, which are not run.

#[expect(dead_code, reason = "the tests of the module use the rest")]
#[path = "../server/helpers/nodes.rs"]
mod nodes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use harness::{Process, Server, wait_for};
use nodes::Cluster;
use tempfile::TempDir;

const SERVER: &str = "6379";
const CLUSTER: &str = "7000";
/// Where Debian installs the clients for Go.
const GO_PATH: &str = "/usr/share/gocode";
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/languages");

/// Runs a test for each of these languages. `make test-languages` skips those that cannot be installed.
macro_rules! tests {
    ($($test:ident: $($language:ident)*;)*) => {
        $(mod $test { $(#[test] fn $language() { super::$test(stringify!($language)); })* })*
    };
}

const LANGUAGES: [&str; 4] = ["c", "go", "php", "ruby"];
/// The keys of the programs on the page: a login, and a worker that waits for its turn.
const KEYS: [&str; 2] = [LOGIN, PARTNER];
const LOGIN: &str = "login:alice";
const PARTNER: &str = "partner";

tests! {
    a_program_prints_what_the_server_decides: c go php ruby;
    a_worker_sleeps_until_its_turn: c go php ruby;
    a_worker_that_is_stopped_gives_its_turn_back: c go php ruby;
    a_program_fails_with_the_error_of_the_server: c go php ruby;
    a_program_reads_each_row_of_rl_all: c;
    a_program_for_a_cluster_asks_the_right_node: go php ruby;
    a_client_that_knows_no_cluster_fails_with_its_redirection: c;
}

#[test]
fn every_program_on_the_page_is_run() {
    for block in code_blocks() {
        let is_program = block.text.contains(SERVER);
        let is_run = LANGUAGES.contains(&block.language) && KEYS.iter().any(|key| block.text.contains(key));
        assert!(!is_program || is_run, "{}", block.text);
    }
}

#[test]
fn every_program_in_the_folder_is_run() {
    let run = LANGUAGES
        .iter()
        .flat_map(|language| files(language, SERVER).into_iter().chain(files(language, CLUSTER)));
    assert_eq!(run.count(), fs::read_dir(FOLDER).expect("the folder").count());
}

fn a_program_prints_what_the_server_decides(language: &str) {
    for text in programs(language, LOGIN) {
        // Its clock stands still, and so do the waits.
        let server = Server::with_clock_at(1_700_000_040_000, &[]);
        let program = Program::new(language, text, SERVER, &server);
        // The logins are used up by the third run.
        for _ in 0..4 {
            let [limited, limit, remaining, retry_after_ms, _] = server.figures("RL.PEEK login:alice 3 1m");
            let line = match limited {
                0 => format!("{} of {limit} left\n", remaining - 1),
                _ => format!("retry after {retry_after_ms} ms\n"),
            };
            assert_eq!(program.run(), (true, line), "{text}");
        }
    }
}

fn a_worker_sleeps_until_its_turn(language: &str) {
    for text in programs(language, PARTNER) {
        // Its clock stands still, so nobody's turn comes.
        let server = Server::with_clock_at(1_700_000_040_000, &[]);
        let program = Program::new(language, text, SERVER, &server);
        for wait_ms in [-1, 100, 200] {
            let asked = Instant::now();
            let line = format!("call the partner, after a wait of {wait_ms}\n");
            assert_eq!(program.run(), (true, line), "{text}");
            assert!(i128::from(wait_ms) <= asked.elapsed().as_millis() as i128, "{text}");
        }
        for _ in 3..=50 {
            server.value("RL.BUCKET partner 1 100ms WITHIN 5s");
        }
        assert_eq!(program.run(), (true, "retry after 100 ms\n".into()), "{text}");
    }
}

fn a_worker_that_is_stopped_gives_its_turn_back(language: &str) {
    for text in programs(language, PARTNER) {
        let server = Server::with_clock_at(1_700_000_040_000, &[]);
        let program = Program::new(language, text, SERVER, &server);
        // Its turn is after 5 s. One more would have to wait longer.
        for _ in 0..50 {
            server.value("RL.BUCKET partner 1 100ms WITHIN 5s");
        }
        let free_after_ms = || server.figures("RL.PEEK partner 1 100ms")[4];
        assert_eq!(free_after_ms(), 5_000, "{text}");
        let mut process = program.start();
        wait_for("the worker to ask", || free_after_ms() == 5_100);
        process.terminate();
        assert_eq!(end(&mut process), (true, "gave the turn back\n".into()), "{text}");
        assert_eq!(free_after_ms(), 5_000, "{text}");
    }
}

fn a_program_fails_with_the_error_of_the_server(language: &str) {
    for (key, text) in
        KEYS.iter().flat_map(|key| programs(language, key).into_iter().map(move |text| (key, text)))
    {
        let server = Server::start();
        server.value(&format!("SET {key} text"));
        let (succeeded, output) = Program::new(language, text, SERVER, &server).run();
        let printed_success = output.contains(" left") || output.contains("call the partner");
        assert!(!succeeded && output.contains("WRONGTYPE") && !printed_success, "{output}{text}");
    }
}

fn a_program_reads_each_row_of_rl_all(language: &str) {
    for text in files(language, SERVER) {
        let server = Server::start();
        assert_eq!(Program::new(language, &text, SERVER, &server).run(), (true, of_three_users()), "{text}");
    }
}

fn a_program_for_a_cluster_asks_the_right_node(language: &str) {
    for text in files(language, CLUSTER) {
        let cluster = Cluster::start();
        let masters: Vec<&Server> = cluster.masters().iter().map(|master| cluster.node(*master)).collect();
        let program = Program::new(language, &text, CLUSTER, masters[1]);
        assert_eq!(program.run(), (true, of_three_users()), "{text}");

        for master in &masters {
            assert_eq!(master.integer("DBSIZE"), 3, "a login of one user, requests and tokens of one");
        }
        let nodes = 0..cluster.addresses().len();
        let redirections: u32 = nodes.map(|index| redirections(cluster.node(index))).sum();
        assert_eq!(redirections, 0, "{text}");
    }
}

/// What a program in the folder prints.
fn of_three_users() -> String {
    ["alice", "bob", "eve"].map(|user| format!("{user}: 2 of 3 left, 3000 tokens left\n")).concat()
}

fn a_client_that_knows_no_cluster_fails_with_its_redirection(language: &str) {
    assert!(files(language, CLUSTER).is_empty(), "{language}");
    let cluster = Cluster::start();
    let owner = cluster.owner(cluster.slot("login:alice"));
    let other = cluster.masters().into_iter().find(|master| *master != owner).expect("another master");
    for text in programs(language, LOGIN) {
        let (succeeded, output) = Program::new(language, text, SERVER, cluster.node(other)).run();
        assert!(!succeeded && output.contains("MOVED"), "{output}{text}");
    }
}

/// How often a node has replied MOVED.
fn redirections(node: &Server) -> u32 {
    let errors = node.text("INFO errorstats");
    let count = errors.lines().find_map(|line| line.strip_prefix("errorstat_MOVED:count="));
    count.map_or(0, |count| count.parse().expect("a number"))
}

struct CodeBlock {
    language: &'static str,
    text: &'static str,
}

/// The code blocks of the page.
fn code_blocks() -> impl Iterator<Item = CodeBlock> {
    let fenced = include_str!("../../docs/clients.md").split("\n```").skip(1).step_by(2);
    fenced.map(|block| {
        let (language, text) = block.split_once('\n').expect("a language and a text");
        CodeBlock { language, text }
    })
}

/// The programs on the page in a language for one of the [`KEYS`], whose clients can be installed. Debian up to 13 has no go-redis.
fn programs(language: &str, key: &str) -> Vec<&'static str> {
    let has_go_redis = Path::new(GO_PATH).join("src/github.com/redis/go-redis").exists();
    let of_language = code_blocks().filter(|block| block.language == language).map(|block| block.text);
    let of_one_server = of_language.filter(|text| text.contains(SERVER) && text.contains(key));
    of_one_server.filter(|text| has_go_redis || !text.contains("/go-redis/")).collect()
}

/// The programs in the folder in a language that connect to this port.
fn files(language: &str, port: &str) -> Vec<String> {
    let extension = if language == "ruby" { "rb" } else { language };
    let files = fs::read_dir(FOLDER).expect("the folder").map(|entry| entry.expect("a file").path());
    let of_language = files.filter(|path| path.extension().is_some_and(|found| found == extension));
    of_language
        .map(|path| fs::read_to_string(path).expect("a program"))
        .filter(|text| text.contains(port))
        .collect()
}

/// A program that is ready to run, in a folder of its own.
struct Program {
    words: Vec<PathBuf>,
    folder: TempDir,
}

impl Program {
    /// Compiles the program, if need be, for a server at another port than the page says.
    fn new(language: &str, text: &str, port: &str, server: &Server) -> Program {
        let folder = TempDir::new().expect("a temporary folder");
        let source = folder.path().join(format!("program.{language}"));
        let executable = folder.path().join("program");
        fs::write(&source, text.replace(port, &server.port().to_string())).expect("a file");
        let words = match language {
            "c" => {
                let mut cc = Command::new("cc");
                compile(
                    cc.args(["-Wall", "-Wextra", "-Werror", "-o"])
                        .args([&executable, &source])
                        .arg("-lhiredis"),
                );
                vec![executable]
            }
            "go" => {
                // Debian's packages are sources for builds without modules. Only beside a go.mod may imports end in a version.
                let package = folder.path().join("src/program");
                fs::create_dir_all(&package).expect("a folder");
                fs::write(package.join("go.mod"), "module program").expect("a file");
                fs::rename(&source, package.join("program.go")).expect("a file");
                let mut go = Command::new("go");
                go.env("GO111MODULE", "off").env("GOPATH", format!("{}:{GO_PATH}", folder.path().display()));
                go.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"));
                compile(go.current_dir(package).args(["build", "-o"]).arg(&executable));
                vec![executable]
            }
            interpreter => vec![interpreter.into(), source],
        };
        Program { words, folder }
    }

    /// Whether it succeeded, and its output.
    fn run(&self) -> (bool, String) {
        end(&mut self.start())
    }

    fn start(&self) -> Process {
        let mut command = Command::new(&self.words[0]);
        let process = Process::spawn(command.args(&self.words[1..]), self.folder.path().join("log"));
        process.unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Waits for a program. Whether it succeeded, and its output.
fn end(process: &mut Process) -> (bool, String) {
    wait_for("the program to end", || !process.is_running());
    (process.wait().success(), process.log())
}

fn compile(compiler: &mut Command) {
    let output = compiler.output().unwrap_or_else(|error| panic!("{compiler:?}: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
