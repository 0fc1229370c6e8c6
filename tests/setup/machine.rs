//! A simulated machine with bash, make and a few small tools. Everything else that the Makefile looks for is a
//! stand-in that a test adds.

use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

const TOOLS: [&str; 13] =
    ["bash", "dirname", "env", "find", "grep", "head", "id", "install", "ln", "make", "mkdir", "sed", "sort"];

pub struct Machine(TempDir);

impl Machine {
    pub fn new() -> Machine {
        let machine = Machine(TempDir::new().expect("a temporary folder"));
        fs::create_dir(machine.bin()).expect("a folder for its programs");
        let path = env::var_os("PATH").unwrap_or_default();
        for tool in TOOLS {
            if let Some(file) =
                env::split_paths(&path).map(|folder| folder.join(tool)).find(|file| file.exists())
            {
                symlink(file, machine.bin().join(tool)).expect("a link");
            }
        }
        machine
    }

    pub fn with_rust() -> Machine {
        let machine = Machine::new();
        machine.add("cargo", "echo cargo 99.0.0");
        machine.add("rustc", "echo rustc 99.0.0");
        machine
    }

    /// A machine with everything that a build needs.
    pub fn that_builds() -> Machine {
        let machine = Machine::with_rust();
        machine.add("cc", "");
        machine
    }

    /// Adds a program: a bash script that records its calls.
    pub fn add(&self, name: &str, script: &str) {
        let file = self.bin().join(name);
        let log = self.0.path().join("calls");
        let noting = format!("#!/bin/bash\necho \"{name} $*\" >>'{}'\n{script}\n", log.display());
        // In place of a tool, not through the link to it.
        let _ = fs::remove_file(&file);
        fs::write(&file, noting).expect("a script");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("its permission");
    }

    /// The calls so far of the programs added.
    pub fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.0.path().join("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    /// The standard output of make, which must succeed.
    pub fn run(&self, args: &[&str]) -> String {
        let output = self.make(args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// The standard error of make, which must fail.
    pub fn refusal(&self, args: &[&str]) -> String {
        let output = self.make(args);
        assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).expect("text")
    }

    fn make(&self, args: &[&str]) -> Output {
        Command::new(self.bin().join("make"))
            .args(args)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env_clear()
            .env("PATH", self.bin())
            .env("HOME", self.0.path())
            .env("LIBCLANG_PATH", self.0.path())
            .env("CARGO_TARGET_DIR", self.0.path().join("target"))
            .output()
            .expect("make runs")
    }

    fn bin(&self) -> PathBuf {
        self.0.path().join("bin")
    }
}
