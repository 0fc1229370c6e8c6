//! What `make` does where something is missing, and where the module loads.

mod machine;

use std::net::TcpListener;
use std::process::Command;

use machine::Machine;

#[test]
fn without_a_recent_rust_the_refusal_says_where_to_get_it_before_anything_is_installed() {
    let machine = Machine::new();
    let refusal = machine.refusal(&["build"]);
    assert!(refusal.contains("cargo is not here") && refusal.contains("https://rustup.rs"), "{refusal}");
    machine.add("cargo", "echo cargo 1.65.0");
    let refusal = machine.refusal(&["build"]);
    assert!(refusal.contains("cargo is 1.65.0 in ") && refusal.contains("https://rustup.rs"), "{refusal}");
    assert_eq!(machine.calls(), ["cargo --version"]);
}

#[test]
fn missing_packages_are_installed_once() {
    let machine = Machine::with_rust();
    machine.add("id", "echo 4711");
    // Like the real one, it passes no variables on.
    machine.add("sudo", r#"env --ignore-environment "PATH=$PATH" "$@""#);
    machine.add(
        "apt-get",
        r#"[[ $DEBIAN_FRONTEND == noninteractive ]] || exit
        [[ $1 != install ]] || ln -s /bin/true "${0%/*}/cc""#,
    );
    machine.run(&["build"]);
    let calls = machine.calls().join("\n");
    assert!(calls.contains("gcc libc6-dev") && calls.ends_with("cargo build --release --locked"), "{calls}");
    machine.run(&["build"]);
    assert_eq!(machine.calls().join("\n").matches("\napt-get install").count(), 1);
}

#[test]
fn make_run_uses_valkey_if_redis_is_missing_and_prints_a_command_to_try() {
    let machine = Machine::that_builds();
    machine.add("valkey-server", "echo the server runs");
    machine.add("valkey-cli", "");
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
    let shown = machine.run(&["run", &format!("PORT={port}")]);
    let typed = format!("valkey-cli -p {port} RL.LOG login:alice 3 1m\n");
    let (_, after) = shown.split_once(&typed).unwrap_or_else(|| panic!("{shown}"));
    assert_eq!(after, "the server runs\n");
}

#[test]
fn a_missing_server_and_a_port_that_is_taken_are_named_before_the_build() {
    let machine = Machine::that_builds();
    let refusal = machine.refusal(&["test", "REDIS_SERVER=/wrong/path"]);
    assert!(refusal.contains("REDIS_SERVER=/wrong/path: there is no such program"), "{refusal}");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("its address").port();
    let refusal = machine.refusal(&["run", &format!("PORT={port}")]);
    assert!(refusal.contains(&format!("port {port} is taken")), "{refusal}");
    assert!(!machine.calls().iter().any(|call| call.starts_with("cargo build")));
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
    let needed: Vec<u32> = symbols
        .split("GLIBC_2.")
        .skip(1)
        .map(|rest| {
            rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or("").parse().expect("a version")
        })
        .collect();
    let newest = needed.iter().max().expect("functions of glibc");
    assert!(*newest <= 33, "the module needs glibc 2.{newest}");
}
