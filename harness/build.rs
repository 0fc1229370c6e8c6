//! Compiles the libraries that the tests load into servers: `clock.c` and the module `neighbor.c`.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=CC");
    for name in ["clock", "neighbor"] {
        let source = format!("src/{name}.c");
        println!("cargo::rerun-if-changed={source}");
        let folder = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
        let mut compiler = Command::new(env::var_os("CC").unwrap_or("cc".into()));
        compiler.args(["-shared", "-fPIC", "-O1", "-g", "-Wall", "-Wextra", "-D_GNU_SOURCE", "-o"]);
        compiler.arg(folder.join(format!("lib{name}.so"))).arg(&source);
        assert!(compiler.status().expect("a C compiler").success(), "{source} does not compile");
    }
}
