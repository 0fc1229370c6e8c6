//! Compiles `clock.c`, which the tests preload into servers.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/clock.c");
    println!("cargo::rerun-if-env-changed=CC");
    let library = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo")).join("libclock.so");
    let mut compiler = Command::new(env::var_os("CC").unwrap_or("cc".into()));
    compiler.args(["-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-o"]).arg(library).arg("src/clock.c");
    assert!(compiler.status().expect("a C compiler").success(), "clock.c does not compile");
}
