//! The README does what it says, for somebody who begins with it.

mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use server::Server;

const README: &str = include_str!("../README.md");

#[test]
fn the_first_program_prints_what_stands_below_it() {
    let server = Server::start();
    let program = block("```rust,no_run").replace("redis://127.0.0.1/", &server.url());
    let project = project(&program);
    let run = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--offline"])
        // Where this test was built, so that nothing is built twice.
        .env("CARGO_TARGET_DIR", project.join("../.."))
        .current_dir(&project)
        .output()
        .expect("cargo runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(String::from_utf8_lossy(&run.stdout), block("```text"));
}

#[test]
fn links_lead_somewhere_wherever_the_readme_is_shown() {
    let targets = README.split("](").skip(1).chain(README.split("]: ").skip(1));
    let targets: Vec<&str> = targets.map(|rest| rest.split([')', '\n']).next().unwrap_or_default()).collect();
    assert!(!targets.is_empty());
    assert!(targets.iter().all(|target| target.starts_with("https://")), "{targets:?}");
}

/// The text of the first block that begins like this.
fn block(fence: &str) -> &'static str {
    let (_, rest) = README.split_once(&format!("{fence}\n")).expect("a block");
    rest.split_once("```").expect("its end").0
}

/// A package of its own that depends on this one, with the versions that it is tested with.
fn project(program: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let project = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme");
    fs::create_dir_all(project.join("src")).expect("a folder");
    let manifest = format!(
        "[package]\nname = \"readme\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
         redis = {{ version = \"1\", default-features = false }}\nredis-rl-client = {{ path = {here:?} }}\n"
    );
    fs::write(project.join("Cargo.toml"), manifest).expect("a manifest");
    fs::write(project.join("src/main.rs"), program).expect("a program");
    let mut locks = here.ancestors().map(|folder| folder.join("Cargo.lock"));
    let lock = locks.find(|lock| lock.exists()).expect("a lock file, here or of the workspace");
    fs::copy(lock, project.join("Cargo.lock")).expect("a copy of it");
    project
}
