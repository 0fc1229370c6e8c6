//! What `make` does where something is missing, and where the module loads.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

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
#[cfg(target_env = "gnu")]
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

/// A machine with fake programs beside those of this one, but without Rust, a C compiler or a server.
struct Machine {
    folder: TempDir,
}

/// For `bin/sh`. They log what they are told to do, and install more of them.
const FAKES: [(&str, &str); 9] = [
    (
        "apt-get",
        r#"for word; do [ ! -e "$MACHINE/offered/$word" ] || cp -P "$MACHINE/offered/$word"/* "$MACHINE/bin"; done"#,
    ),
    ("apt-cache", r#"[ ! -e "$MACHINE/offered/$2" ] || echo "  Candidate: 1.27.1""#),
    ("sudo", r#"exec "$@""#),
    ("systemctl", "echo stopping now"),
    ("service", "echo stopping now"),
    ("curl", ""),
    // As `rustup`, `cargo` and `rustc`, like rustup itself.
    (
        "offered/rustup/rustup",
        r#"case ${0##*/} in
        rustup) if [ "$2" ]; then touch "$MACHINE/toolchain"; else [ -e "$MACHINE/toolchain" ]; fi ;;
        *) [ -e "$MACHINE/toolchain" ] && echo "${0##*/} 1.99.0" ;;
        esac"#,
    ),
    ("offered/gcc/cc", ""),
    ("offered/redis-server/redis-server", ""),
];

impl Machine {
    /// With a distribution that has rustup, as Debian 13 does, or that lacks it, as Debian 12 does.
    fn new(has_rustup: bool) -> Self {
        let machine = Self { folder: TempDir::new().expect("a temporary folder") };
        let bin = machine.path("bin");
        fs::create_dir(&bin).expect("a folder");
        let lacks = |name: &str| {
            ["cargo", "rustc", "rustup", "cc", "gcc", "c99", "c89"].contains(&name)
                || name.starts_with("redis-")
                || name.starts_with("valkey-")
        };
        for folder in ["/usr/bin", "/bin"] {
            for entry in fs::read_dir(folder).expect("programs").map(|entry| entry.expect("a program")) {
                if !entry.file_name().to_str().is_none_or(lacks) {
                    // Where /bin is /usr/bin, the link exists.
                    let _ = symlink(entry.path(), bin.join(entry.file_name()));
                }
            }
        }
        for (name, script) in FAKES {
            machine
                .program(&if name.contains('/') { name.to_owned() } else { format!("bin/{name}") }, script);
        }
        let rustup = machine.path("offered/rustup");
        for tool in ["cargo", "rustc"] {
            symlink("rustup", rustup.join(tool)).expect("a link");
        }
        fs::copy(
            machine.path("offered/redis-server/redis-server"),
            machine.path("offered/redis-server/redis-cli"),
        )
        .expect("a client");
        fs::write(machine.path("certificates"), "").expect("a file");
        if !has_rustup {
            fs::remove_dir_all(rustup).expect("it is not offered");
        }
        machine
    }

    /// With Alpine's `apk` and its names of packages.
    fn alpine() -> Self {
        let machine = Self::new(false);
        fs::rename(machine.path("bin/apt-get"), machine.path("bin/apk")).expect("the same script");
        fs::remove_file(machine.path("bin/apt-cache")).expect("apt has it");
        fs::rename(machine.path("offered/redis-server"), machine.path("offered/redis"))
            .expect("it is offered");
        machine.program("offered/cargo/cargo", "echo cargo 1.99.0");
        machine.program("offered/rust/rustc", "echo rustc 1.99.0");
        machine
    }

    /// Adds a program in place of any of that name.
    fn program(&self, name: &str, script: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let _ = fs::remove_file(&path);
        let script = format!("#!/bin/sh\necho \"${{0##*/}} $*\" >>\"$MACHINE/log\"\n{script}\n");
        fs::write(&path, script).expect("a program");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("it can be run");
    }

    /// What `apt-get install` would do.
    fn install(&self, package: &str) {
        let done = Command::new(self.path("bin/apt-get"))
            .args(["install", package])
            .env("MACHINE", self.folder.path())
            .status();
        assert!(done.expect("a fake").success());
        fs::remove_file(self.path("log")).expect("a log");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Whether `make` succeeds, what it prints, and what was asked of the fake programs.
    fn make(&self, args: &[&str]) -> (bool, String, String) {
        let output = Command::new("make")
            .args(args)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env_clear()
            .env("PATH", self.path("bin"))
            .env("MACHINE", self.folder.path())
            .env("HOME", self.folder.path())
            .env("CARGO_TARGET_DIR", self.path("target"))
            .env("SSL_CERT_FILE", self.path("certificates"))
            // libclang is not a program.
            .env("LIBCLANG_PATH", "/")
            .output()
            .expect("make runs");
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        (output.status.success(), String::from_utf8(output.stderr).expect("text"), log)
    }
}

#[test]
fn run_and_test_install_rust_a_compiler_and_a_server_where_the_distribution_has_rustup() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = format!("PORT={}", free.local_addr().expect("its address").port());
    drop(free);
    for (args, last) in [(&["run", &port][..], "redis-server --port"), (&["test"], "cargo test --locked")] {
        let machine = Machine::new(true);
        let (done, printed, log) = machine.make(args);
        assert!(done, "{printed}");
        let steps =
            ["rustup\n", "rustup default stable", " gcc libc6-dev", " redis-server\n", "cargo build", last];
        let at = steps.map(|step| log.find(step).unwrap_or_else(|| panic!("no {step:?}: {log}")));
        assert!(at.is_sorted(), "{log}");
    }
}

#[test]
fn on_alpine_run_and_test_install_the_same_by_apk_and_build_prints_how() {
    let machine = Machine::alpine();
    let (done, printed, log) = machine.make(&["build"]);
    assert!(!done && printed.contains("apk add rust cargo gcc musl-dev\n"), "{printed}");
    assert!(!log.contains("apk"), "{log}");
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = format!("PORT={}", free.local_addr().expect("its address").port());
    drop(free);
    for (args, last) in [(&["run", &port][..], "redis-server --port"), (&["test"], "cargo test --locked")] {
        let (done, printed, log) = Machine::alpine().make(args);
        assert!(done, "{printed}");
        let steps = [" rust cargo\n", " gcc musl-dev\n", "apk add --quiet redis\n", "cargo build", last];
        let at = steps.map(|step| log.find(step).unwrap_or_else(|| panic!("no {step:?}: {log}")));
        assert!(at.is_sorted(), "{log}");
    }
}

#[test]
fn rustup_without_a_toolchain_gets_a_stable_one_and_build_prints_how() {
    let machine = Machine::new(true);
    machine.install("rustup");
    let (done, printed, _) = machine.make(&["build"]);
    assert!(
        !done && printed.contains("apt-get install gcc libc6-dev && rustup default stable\n"),
        "{printed}"
    );
    let (done, printed, log) = machine.make(&["setup"]);
    assert!(done && log.contains("rustup default stable") && !log.contains(" rustup\n"), "{printed}{log}");
}

#[test]
fn rust_is_not_fetched_without_certificates() {
    for (has_rustup, line) in [(true, "ca-certificates rustup gcc"), (false, "ca-certificates gcc")] {
        let machine = Machine::new(has_rustup);
        fs::remove_file(machine.path("certificates")).expect("a file");
        let (done, printed, _) = machine.make(&["build"]);
        assert!(!done && printed.contains(&format!("apt-get install {line} libc6-dev && ")), "{printed}");
    }
}

#[test]
fn a_rust_that_is_too_old_is_left_as_it_is() {
    let machine = Machine::new(true);
    machine.program("bin/cargo", "echo cargo 1.85.0");
    machine.program("bin/rustc", "echo rustc 1.85.0");
    let (done, printed, log) = machine.make(&["test"]);
    assert!(!done && printed.contains("cargo is 1.85.0 in "), "{printed}");
    assert!(printed.contains("apt-get install rustup && rustup default stable\n"), "{printed}");
    assert!(!log.contains("apt-get install"), "{log}");
}

#[test]
fn which_service_will_be_stopped_is_said_before() {
    let (done, printed, log) = Machine::new(true).make(&["setup"]);
    assert!(done, "{printed}");
    let (said, stopped) = (printed.find("it will be stopped"), printed.find("stopping now"));
    assert!(said.is_some() && said < stopped, "{printed}");
    assert!(log.contains("--no-remove"), "{log}");
}

#[test]
fn build_asks_nothing_of_apt_and_prints_the_line_that_installs_what_is_missing() {
    for (has_rustup, line) in [
        (true, "apt-get install rustup gcc libc6-dev && rustup default stable\n"),
        (false, "https://sh.rustup.rs | sh -s -- -y && . ~/.cargo/env\n"),
    ] {
        let machine = Machine::new(has_rustup);
        let (done, printed, log) = machine.make(&["build"]);
        assert!(!done && printed.contains(line), "{printed}");
        assert!(printed.contains(" gcc libc6-dev"), "{printed}");
        assert!(!log.contains("apt-get") && !log.contains("sudo"), "{log}");
    }
}

#[test]
fn where_the_distribution_lacks_rustup_run_and_test_print_its_line_and_install_nothing() {
    for args in ["run", "test"] {
        let (done, printed, log) = Machine::new(false).make(&[args]);
        assert!(
            !done && printed.contains("https://sh.rustup.rs | sh -s -- -y && . ~/.cargo/env\n"),
            "{printed}"
        );
        assert!(!log.contains("install"), "{log}");
    }
}
