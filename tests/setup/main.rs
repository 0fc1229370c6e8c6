//! The Makefile's checks before a build, and the files it distributes.

mod machine;

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use machine::Machine;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const CHANGELOG: &str = include_str!("../../CHANGELOG.md");

#[test]
fn an_old_rust_is_refused_before_anything_is_installed_and_before_it_reads_the_manifest() {
    let machine = Machine::new();
    machine.add("cargo", "echo cargo 1.65.0");
    machine.add("rustc", "echo rustc 1.63.0");
    let refusal = machine.refusal(&["build"]);
    assert!(refusal.contains("cargo is 1.65.0 in ") && refusal.contains("https://rustup.rs"), "{refusal}");
    assert_eq!(machine.calls(), ["cargo --version"]);
}

#[test]
fn without_rust_the_refusal_says_where_to_get_it() {
    let refusal = Machine::new().refusal(&["build"]);
    assert!(refusal.contains("cargo is not here") && refusal.contains("https://rustup.rs"), "{refusal}");
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
    assert!(calls.contains("gcc libc6-dev") && calls.ends_with("cargo module"), "{calls}");
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
fn a_missing_server_is_named_before_the_build() {
    let machine = Machine::that_builds();
    let refusal = machine.refusal(&["test", "REDIS_SERVER=/wrong/path"]);
    assert!(refusal.contains("REDIS_SERVER=/wrong/path: there is no such program"), "{refusal}");
    assert!(!machine.calls().iter().any(|call| call.starts_with("cargo module")));
}

#[test]
fn a_port_that_is_taken_is_named_before_the_build() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("its address").port();
    let machine = Machine::that_builds();
    let refusal = machine.refusal(&["run", &format!("PORT={port}")]);
    assert!(refusal.contains(&format!("port {port} is taken")), "{refusal}");
    assert!(machine.calls().is_empty());
}

#[test]
fn the_newest_release_in_the_changelog_is_this_version_and_has_a_date() {
    let mut headings = CHANGELOG.lines().filter(|line| line.starts_with("## "));
    let heading = headings.find(|line| *line != "## Unreleased").expect("a release");
    let date = heading.strip_prefix(&format!("## {VERSION} - ")).unwrap_or_else(|| panic!("{heading}"));
    let is_date = date.len() == 10 && date.split('-').map(str::len).eq([4, 2, 2]);
    assert!(is_date, "{heading}");
}

#[test]
fn every_make_target_that_the_pages_and_workflows_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).expect(file);
    let makefile = read("Makefile");
    let mut named = 0;
    let workflows = ["ci", "nightly", "release"].map(|name| format!(".github/workflows/{name}.yml"));
    for file in ["README.md", "CONTRIBUTING.md"].map(str::to_owned).iter().chain(&workflows) {
        let text = read(file);
        let fenced = text.split("```").skip(1).step_by(2).flat_map(|code| code.split("\nmake ").skip(1));
        let marked = ["`make ", "    make ", "run: make ", "sudo make "];
        let marked = marked.iter().flat_map(|mark| text.split(mark).skip(1));
        for call in fenced.chain(marked) {
            let words = call.split(['\n', '`', '#', '&']).next().unwrap_or_default().split_whitespace();
            for target in words.filter(|word| !word.contains('=')) {
                assert!(makefile.contains(&format!("\n{target}:")), "{file}: make {target}");
                named += 1;
            }
        }
    }
    assert!(named > 30, "only {named} are found");
}

#[test]
fn a_new_version_is_set_everywhere_and_one_that_differs_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let files = [
        "packaging/versions",
        "Cargo.toml",
        "Cargo.lock",
        "fuzz/Cargo.lock",
        "clients/rust/Cargo.toml",
        "clients/python/pyproject.toml",
        "clients/node/package.json",
        "clients/node/package-lock.json",
        "examples/node/package-lock.json",
        "tests/fixtures/1.0.0.rdb",
    ];
    for file in files {
        let copy = folder.path().join(file);
        fs::create_dir_all(copy.parent().expect("a folder")).expect("that folder");
        fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(file), copy).expect("a copy");
    }
    let versions = |new: &[&str]| {
        let output =
            Command::new(folder.path().join("packaging/versions")).args(new).output().expect("a run");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim_end().to_owned()
    };
    let changelog = folder.path().join("CHANGELOG.md");
    fs::write(&changelog, "## Unreleased\n\n## 1.0.0 - 2026-11-22\n").expect("a changelog");
    assert!(versions(&[]).contains("'Unreleased', not a release"), "{}", versions(&[]));
    assert_eq!(versions(&["98.7.6"]), "98.7.6");
    assert_eq!(versions(&[]), "98.7.6");
    assert!(versions(&["98.7.6"]).contains("has 98.7.6 already"), "{}", versions(&["98.7.6"]));
    for file in &files[1..9] {
        let path = folder.path().join(file);
        let right = fs::read_to_string(&path).expect("the file");
        fs::write(&path, right.replace("98.7.6", "98.7.5")).expect("a change");
        assert!(versions(&[]).contains(&format!("{file} has version 98.7.5")), "{}", versions(&[]));
        fs::write(&path, right).expect("the file as it was");
    }
    fs::write(&changelog, "## 98.7.6 - 2026-11-23\n").expect("a changelog");
    assert!(versions(&[]).contains("1.0.0.rdb is of a version that CHANGELOG.md lacks"), "{}", versions(&[]));
}

#[test]
fn the_file_of_the_package_is_neither_overwritten_nor_removed() {
    let machine = Machine::new();
    let target = machine.target();
    fs::write(target.join("release/libredis_rl.so"), "a module").expect("a file");
    let installed = target.join("libredis_rl.so");
    fs::write(&installed, "of the package").expect("a file");
    machine.add("dpkg-query", "");
    let folder = format!("MODULEDIR={}", target.display());
    for command in ["install", "uninstall"] {
        let refusal = machine.refusal(&[command, &folder]);
        assert!(refusal.contains("is of the package redis-rl"), "{refusal}");
        assert_eq!(fs::read_to_string(&installed).expect("the file"), "of the package");
    }
    machine.add("dpkg-query", "exit 1");
    machine.run(&["install", &folder]);
    assert_eq!(fs::read_to_string(&installed).expect("the file"), "a module");
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
