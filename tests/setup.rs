//! What `make` does where something is missing, and where the module loads.

use std::net::TcpListener;
use std::process::Command;

#[test]
fn a_missing_server_and_a_port_that_is_taken_are_named_before_the_build() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("its address").port();
    for (args, why) in [
        (
            ["test", "REDIS_SERVER=/wrong/path"],
            "REDIS_SERVER=/wrong/path: there is no such program".to_owned(),
        ),
        (["run", &format!("PORT={port}")], format!("port {port} is taken")),
    ] {
        let mut make = Command::new("make");
        make.args(args).current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("MAKEFLAGS");
        let output = make.output().expect("make runs");
        let refusal = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && refusal.contains(&why), "{refusal}");
        assert!(!refusal.contains("building"), "{refusal}");
    }
}

/// Debian 12 has glibc 2.36, Ubuntu 22.04 has 2.35, RHEL 9 and Amazon Linux 2023 have 2.34. README.md and `make dist` say
/// what is needed.
#[test]
fn the_module_loads_on_glibc_2_33() {
    let output = Command::new("readelf")
        .args(["--wide", "--dyn-syms"])
        .arg(harness::module())
        .output()
        .expect("readelf, which comes with the linker");
    let symbols = String::from_utf8(output.stdout).expect("readelf prints text");
    let version = |rest: &str| -> u32 {
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or("").parse().expect("a version")
    };
    let newest = symbols.split("GLIBC_2.").skip(1).map(version).max().expect("functions of glibc");
    assert!(newest <= 33, "the module needs glibc 2.{newest}");
}
