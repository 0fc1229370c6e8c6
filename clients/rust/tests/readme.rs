//! The README does what it says, for somebody who begins with it.

mod server;

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use server::Server;

const README: &str = include_str!("../README.md");

#[test]
fn the_first_program_prints_what_stands_below_it() {
    let server = Server::start();
    let run = program("first", 3, &[("redis://127.0.0.1/", &server.url())]).output().expect("cargo runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(String::from_utf8_lossy(&run.stdout), block("```text", 1));
}

#[test]
fn the_service_answers_what_stands_below_it() {
    let port = server::free_port().to_string();
    let mut service = program("service", 1, &[("127.0.0.1:8000", &format!("127.0.0.1:{port}"))])
        .spawn()
        .expect("cargo runs");
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer.replace("\r\n", "\n"))
    };
    while ask("/health").is_none() {
        assert!(service.try_wait().expect("its status").is_none(), "the service has ended");
        thread::sleep(Duration::from_millis(2));
    }
    let answers = ["/search"; 3].map(|path| ask(path).expect("an answer"));
    service.kill().and_then(|()| service.wait()).expect("it ends");
    let [_, second, third] = answers;
    assert!(second.starts_with("HTTP/1.1 200 OK\n"), "{second}");
    let is_told = |line: &&str| {
        !["date: ", "content-length: ", "connection: "].iter().any(|name| line.starts_with(name))
    };
    assert_eq!(
        third.lines().filter(is_told).collect::<Vec<_>>(),
        block("```text", 0).lines().collect::<Vec<_>>()
    );
}

#[test]
fn the_test_without_a_server_passes() {
    let test = block("```rust", 0);
    let project = project("tested", &format!("{test}\nfn main() {{}}\n"));
    let run = cargo("test", &project).output().expect("cargo runs");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn links_lead_somewhere_wherever_the_pages_are_shown() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for page in [README, include_str!("../recipes.md"), include_str!("../benchmarks.md")] {
        let targets = page.split("](").skip(1).chain(page.split("]: ").skip(1));
        for target in targets.map(|rest| rest.split([')', '\n']).next().unwrap_or_default()) {
            let of_package = !target.starts_with("https://") && !target.starts_with(['#', '.']);
            let file = target.split('#').next().unwrap_or_default();
            assert!(!of_package || here.join(file).exists(), "{target} is not in the package");
        }
    }
}

/// The text of a block that begins like this.
fn block(fence: &str, number: usize) -> &'static str {
    let rest = README.split(&format!("{fence}\n")).nth(number + 1).expect("a block");
    rest.split_once("```").expect("its end").0
}

/// Runs a program of the README, in a package of its own.
fn program(name: &str, number: usize, replaced: &[(&str, &str)]) -> Command {
    let mut program = block("```rust,no_run", number).to_owned();
    for (old, new) in replaced {
        program = program.replace(old, new);
    }
    cargo("run", &project(name, &program))
}

fn cargo(verb: &str, project: &Path) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args([verb, "--quiet", "--offline"]).current_dir(project);
    // Where this test was built, so that nothing is built twice.
    command.env("CARGO_TARGET_DIR", project.join("../.."));
    server::end_with_this_thread(&mut command);
    command
}

/// A package of its own that depends on this one, with the versions that it is tested with.
fn project(name: &str, program: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let project = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(project.join("src")).expect("a folder");
    // All that this package is tested with, so that the same builds of the same crates serve.
    let written = fs::read_to_string(here.join("Cargo.toml.orig")); // In a package, as it was before it was packed.
    let written = written.or_else(|_| fs::read_to_string(here.join("Cargo.toml"))).expect("a manifest");
    let tested = written.split("[dev-dependencies]\n").nth(1).expect("a section");
    let tested = tested.split("\n[").next().unwrap_or_default();
    // The core, which may not be published yet.
    let core = env::var("REDIS_RL").unwrap_or_else(|_| format!("{}/../..", here.display()));
    let manifest = format!(
        "[package]\nname = \"{name}\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n{tested}\n\
         redis-rl-client = {{ path = {here:?}, features = [\"actix\", \"axum\"] }}\n\n\
         [patch.crates-io]\nredis-rl-core.path = \"{core}/core\"\n"
    );
    fs::write(project.join("Cargo.toml"), manifest).expect("a manifest");
    fs::write(project.join("src/main.rs"), program).expect("a program");
    let mut locks = here.ancestors().map(|folder| folder.join("Cargo.lock"));
    let lock = locks.find(|lock| lock.exists()).expect("a lock file, here or of the workspace");
    fs::copy(lock, project.join("Cargo.lock")).expect("a copy of it");
    project
}
