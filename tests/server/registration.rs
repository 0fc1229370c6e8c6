//! What the module registers about itself and its commands.

use std::collections::BTreeSet;
use std::fs;

use harness::{COMMANDS, Launch, Server, command, module, not_tested};
use redis::Value;
use redis_rl_core::limiter::Algorithm;

fn texts(value: &Value) -> Vec<String> {
    redis::from_redis_value_ref(value).expect("texts")
}

#[test]
fn the_tests_and_the_benchmarks_know_every_algorithm() {
    assert_eq!(COMMANDS, Algorithm::ALL.map(|algorithm| algorithm.command().to_str().expect("ASCII")));
}

#[test]
fn the_module_and_its_type_have_their_documented_names() {
    let server = Server::start();
    assert!(format!("{:?}", server.value("MODULE LIST")).contains("bulk-string('\"rl\"')"));
    for name in COMMANDS {
        server.value(&format!("{name} k 5 10s AT 0"));
        assert_eq!(server.value("TYPE k"), Value::SimpleString("ratelimit".into()));
        server.value("DEL k");
    }
}

#[test]
fn the_package_for_redis_software_lists_the_commands_as_the_server_knows_them() {
    let server = Server::start();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/module.json");
    let json = fs::read_to_string(file).expect("the file").replace("@NUMBER@", "10000");
    let module: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let listed = module["commands"].as_array().expect("commands");
    let loaded = server.value("COMMAND LIST FILTERBY MODULE rl");
    assert_eq!(listed.len(), texts(&loaded).len());
    for command in listed {
        let name = command["command_name"].as_str().expect("a name");
        let Value::Array(infos) = server.value(&format!("COMMAND INFO {name}")) else { panic!("no infos") };
        let Value::Array(info) = &infos[0] else { panic!("{name} is unknown") };
        let flags: BTreeSet<String> = command["flags"]
            .as_array()
            .expect("flags")
            .iter()
            .filter_map(|flag| Some(flag.as_str()?.into()))
            .collect();
        let known: BTreeSet<String> = texts(&info[2]).into_iter().filter(|flag| flag != "module").collect();
        assert_eq!(flags, known, "{name}");
        for (field, value) in [("command_arity", 1), ("first_key", 3), ("last_key", 4), ("step", 5)] {
            assert_eq!(Some(&info[value]), command[field].as_i64().map(Value::Int).as_ref(), "{name}");
        }
    }
}

#[test]
fn each_command_is_described_and_says_whether_its_reply_depends_on_the_time() {
    let server = Server::start();
    const ALGORITHM: &[&str] = &["limit", "window", "COST", "oneof", "FORCE", "PARTIAL", "AT"];
    const BUCKET: &[&str] =
        &["limit", "window", "COST", "oneof", "FORCE", "PARTIAL", "WITHIN", "duration", "AT"];
    let of_algorithm = |algorithm| if algorithm == Algorithm::Bucket { BUCKET } else { ALGORITHM };
    let algorithms = Algorithm::ALL
        .map(|algorithm| (algorithm.command().to_str().expect("ASCII"), of_algorithm(algorithm)));
    let others: [(&str, &[&str]); 5] = [
        ("RL.ALL", &["algorithm", "limit", "window", "cost", "FORCE", "AT", "multiple"]),
        ("RL.PEEK", &["limit", "window", "COST", "AT"]),
        ("RL.INFO", &[]),
        ("RL.LOAD", &["payload", "Not for applications"]),
        ("RL.APPLY", &["effect", "multiple", "not for applications"]),
    ];
    for (name, parts) in algorithms.into_iter().chain(others) {
        let docs = format!("{:?}", server.value(&format!("COMMAND DOCS {name}")));
        for part in ["summary", "since", "group", "complexity", "arguments"].iter().chain(parts) {
            assert!(docs.contains(part), "no {part} in {docs}");
        }
        for option in ["COST", "FORCE", "PARTIAL", "WITHIN", "AT"] {
            let token = format!("'\"{option}\"'");
            assert_eq!(docs.contains(&token), parts.contains(&option), "{name} {option}: {docs}");
        }
        let info = server.value(&format!("COMMAND INFO {name}"));
        let tips = &info.as_sequence().and_then(|infos| infos[0].as_sequence()).expect("a command")[7];
        let expected: &[&str] = match name {
            "RL.LOAD" | "RL.APPLY" => &[],
            _ => &["nondeterministic_output"],
        };
        assert_eq!(texts(tips), expected, "{name}");
    }
}

#[test]
fn commands_belong_to_an_acl_category_where_modules_can_have_one() {
    let server = Server::start();
    if !texts(&server.value("ACL CAT")).contains(&"ratelimit".to_owned()) {
        let version = server.info("redis_version");
        assert!(version.starts_with("7.0") || version.starts_with("7.2"), "no category in {version}");
        return not_tested("this server has no categories of modules");
    }
    // Not by ACL CAT ratelimit: Valkey 8.0 leaves commands of modules out of its reply.
    for name in COMMANDS.into_iter().chain(["RL.PEEK", "RL.INFO"]) {
        let infos = format!("{:?}", server.value(&format!("COMMAND INFO {name}")));
        assert!(infos.contains("@ratelimit"), "{name}: {infos}");
    }
    let infos = format!("{:?}", server.value("COMMAND INFO RL.ALL"));
    assert!(infos.contains("@ratelimit") && infos.contains("@slow"), "{infos}");
    for name in ["RL.LOAD", "RL.APPLY"] {
        let infos = format!("{:?}", server.value(&format!("COMMAND INFO {name}")));
        assert!(!infos.contains("@ratelimit") && infos.contains("@dangerous"), "{infos}");
    }
    for (categories, allowed, denied) in [
        ("+@ratelimit", "RL.FIXED k 5 10s AT 0", "DEL k"),
        ("+@ratelimit", "RL.ALL k FIXED 5 10s 1", "RL.LOAD new x"),
        ("+@ratelimit", "RL.ALL k FIXED 5 10s 1", "RL.APPLY k F:5/1s"),
        ("+@slow -@dangerous", "RL.ALL k FIXED 5 10s 1", "RL.FIXED k 5 10s"),
        ("+@write -@fast", "RL.ALL k FIXED 5 10s 1", "RL.FIXED k 5 10s"),
        ("+@write", "RL.LOG l 5 10s", "RL.PEEK l 5 10s"),
        ("+@read", "RL.INFO l", "RL.LOG l 5 10s"),
        ("+@fast -@write", "RL.PEEK l 5 10s", "RL.LOG l 5 10s"),
    ] {
        server.value(&format!("ACL SETUSER limiter reset on nopass ~* -@all {categories}"));
        let mut connection = server.connect();
        command("AUTH limiter any").query::<()>(&mut connection).unwrap();
        command(allowed).query::<()>(&mut connection).unwrap_or_else(|error| panic!("{categories}: {error}"));
        command(denied).query::<()>(&mut connection).unwrap_err();
    }
}

#[test]
fn acl_rules_distinguish_reading_from_writing() {
    let server = Server::start();
    server.value("ACL SETUSER reader on nopass %R~* +@all");
    server.value("ACL SETUSER owner on nopass ~mine:* +@all");
    let mut reader = server.connect();
    command("AUTH reader any").query::<()>(&mut reader).unwrap();
    command("RL.PEEK k 5 10s").query::<()>(&mut reader).unwrap();
    command("RL.INFO k").query::<()>(&mut reader).unwrap();
    command("RL.FIXED k 5 10s").query::<()>(&mut reader).unwrap_err();
    let mut owner = server.connect();
    command("AUTH owner any").query::<()>(&mut owner).unwrap();
    command("RL.LOG mine:k 5 10s").query::<()>(&mut owner).unwrap();
    command("RL.LOG k 5 10s").query::<()>(&mut owner).unwrap_err();
}

#[test]
fn a_load_that_fails_leaves_a_working_server() {
    let launch = Launch::server().expect("a folder");
    let file = launch.folder().join("renamed.conf");
    // The last command that the module creates.
    fs::write(&file, "rename-command GET RL.APPLY").expect("a file");
    let settings = [("enable-module-command", "local"), ("include", &file.display().to_string())];
    let server = launch.settings(&settings).start().expect("a server");
    for _ in 0..2 {
        assert!(server.call(&format!("MODULE LOAD {}", module().display())).is_err());
        assert!(server.log().contains("is its name taken?"), "{}", server.log());
        // The server tells every module of this.
        server.value("CONFIG SET maxmemory-samples 6");
        server.error("RL.FIXED k 5 10s");
    }
}

#[test]
fn a_load_that_the_server_gives_up_leaves_a_working_server() {
    let server = Server::without_module();
    let info = server.text("INFO server");
    if ["valkey_version:", "redis_version:7.2", "redis_version:7.4"]
        .iter()
        .any(|version| info.contains(version))
    {
        return not_tested(
            "Valkey and Redis 7.2 and 7.4 crash when they give up the load of any module with a type",
        );
    }
    let path = module().display();
    for _ in 0..2 {
        let error = server.error(&format!("MODULE LOADEX {path} CONFIG name value"));
        assert!(error.contains("Error loading the extension"), "{error}");
        // The server tells every module of this.
        server.value("CONFIG SET maxmemory-samples 6");
    }
    // Redis 7.0 keeps the module whose load it has given up.
    if !format!("{:?}", server.value("MODULE LIST")).contains("bulk-string('\"rl\"')") {
        server.value(&format!("MODULE LOAD {path}"));
    }
    assert_eq!(server.figures("RL.FIXED k 5 10s AT 0")[2], 4);
}

#[test]
fn the_module_can_be_loaded_at_runtime_once_and_without_arguments() {
    let server = Server::without_module();
    for (loads, arguments) in ["foo", "maxkeys 5"].into_iter().enumerate() {
        server.error(&format!("MODULE LOAD {} {arguments}", module().display()));
        let line = "rl: not loaded: the module takes no arguments";
        assert_eq!(server.log().matches(line).count(), loads + 1, "{}", server.log());
        server.error("RL.FIXED k 5 10s");
    }
    server.value(&format!("MODULE LOAD {}", module().display()));
    assert_eq!(server.figures("RL.FIXED k 5 10s AT 0")[2], 4);
    assert!(server.call(&format!("MODULE LOAD {}", module().display())).is_err());
    assert_eq!(server.figures("RL.FIXED k 5 10s AT 0")[2], 3);
}

/// Commands, and the keys that the server finds in them.
const KEYS: [(&str, &[&str]); 18] = [
    ("RL.FIXED a 1 10s", &["a"]),
    ("RL.SLIDING a 1 10s", &["a"]),
    ("RL.LOG a 1 10s", &["a"]),
    ("RL.BUCKET a 1 10s", &["a"]),
    ("RL.PEEK a 1 10s", &["a"]),
    ("RL.INFO a", &["a"]),
    ("RL.LOAD a payload", &["a"]),
    ("RL.APPLY a F:5/1s", &["a"]),
    ("RL.APPLY a F:5/1s b DEL c x", &["a", "b", "c"]),
    ("RL.ALL a FIXED 5 10s 1", &["a"]),
    ("RL.ALL a FIXED 5 10s 1 FORCE", &["a"]),
    ("RL.ALL a FIXED 5 10s 1 AT 5", &["a"]),
    ("RL.ALL a FIXED 5 10s 1 FORCE AT 5", &["a"]),
    ("RL.ALL a FIXED 5 10s 1 b LOG 5 10s 1", &["a", "b"]),
    ("RL.ALL a FIXED 5 10s 1 b LOG 5 10s 1 AT 5 FORCE", &["a", "b"]),
    ("RL.ALL a FIXED 5 10s 1 a FIXED 5 20s 1 c LOG 5 10s 1 AT 5", &["a", "a", "c"]),
    // A row too short.
    ("RL.ALL a FIXED 5 10s 1 b LOG 5 10s", &["a"]),
    ("RL.ALL a FIXED 5 10s 1 FORCE AT 0 AT 0", &["a", "FORCE"]),
];

#[test]
fn the_server_finds_every_key_of_a_command_and_what_it_does_to_it() {
    let server = Server::start();
    for (line, keys) in KEYS {
        assert_eq!(texts(&server.value(&format!("COMMAND GETKEYS {line}"))), keys, "{line}");
        let with_flags = server.value(&format!("COMMAND GETKEYSANDFLAGS {line}"));
        let with_flags: Vec<(String, Vec<String>)> = redis::from_redis_value(with_flags).expect("keys");
        let flags: &[&str] = match line.split(' ').next() {
            Some("RL.PEEK" | "RL.INFO") => &["RO", "access"],
            Some("RL.LOAD") => &["OW", "insert"],
            _ => &["RW", "access", "update"],
        };
        assert!(with_flags.iter().map(|pair| &*pair.0).eq(keys.iter().copied()), "{line}: {with_flags:?}");
        assert!(with_flags.iter().all(|pair| pair.1 == flags), "{line}: {with_flags:?}");
    }
    for line in ["RL.ALL", "RL.ALL a", "RL.ALL a FIXED 5 10s"] {
        server.error(&format!("COMMAND GETKEYS {line}"));
    }
}

#[test]
fn rules_on_keys_hold_for_every_key_of_rl_all() {
    let server = Server::start();
    let rows = |keys: &[&str], options: &str| {
        let rows: Vec<String> = keys.iter().map(|key| format!("{key} LOG 99 10s 1")).collect();
        format!("RL.ALL {} {options}", rows.join(" "))
    };
    for (rule, allowed, denied) in [
        ("~mine:*", &["mine:a", "mine:b", "mine:c"], "others:a"),
        ("%RW~mine:*", &["mine:a", "mine:b", "mine:c"], "others:a"),
        ("%RW~mine:* %R~seen:*", &["mine:a", "mine:b", "mine:c"], "seen:a"),
        ("%RW~mine:* %W~told:*", &["mine:a", "mine:b", "mine:c"], "told:a"),
    ] {
        server.value(&format!("ACL SETUSER limiter reset on nopass +@all {rule}"));
        let mut connection = server.connect();
        command("AUTH limiter any").exec(&mut connection).expect("AUTH");
        for options in ["", "FORCE", "AT 5", "AT 5 FORCE", "FORCE AT 5"] {
            let line = rows(allowed, options);
            command(&line).exec(&mut connection).unwrap_or_else(|error| panic!("{rule}: {line}: {error}"));
            for place in 0..allowed.len() {
                let mut keys = allowed.to_vec();
                keys[place] = denied;
                let line = rows(&keys, options);
                let error = command(&line).exec(&mut connection).expect_err(&line);
                assert_eq!(error.code(), Some("NOPERM"), "{rule}: {line}: {error}");
                let dry_run = server.text(&format!("ACL DRYRUN limiter {line}"));
                assert!(dry_run.contains(denied), "{rule}: {line}: {dry_run}");
            }
        }
        let apply = format!("RL.APPLY mine:a F:5/3650d {denied} F:5/3650d");
        let error = command(&apply).exec(&mut connection).expect_err(&apply);
        assert_eq!(error.code(), Some("NOPERM"), "{rule}: {error}");
        assert_eq!(server.integer("EXISTS others:a seen:a told:a"), 0);
    }
}
