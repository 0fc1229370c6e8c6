//! Who calls whom in the module and the core: the layers that their maps name, without a circle inside a folder either.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// From top to bottom, as in `src/lib.rs` and `core/src/lib.rs`.
const LAYERS: [&str; 10] =
    ["module", "command", "keyspace", "server", "stats", "memory", "encoding", "reply", "request", "limiter"];

/// The code of each file by the path of its module, without comments and tests, and with `a::b, a::c` for `a::{b, c}`.
type Files = BTreeMap<String, String>;

fn files() -> Files {
    let mut files = files_of("crate", "src");
    files.extend(files_of("redis_rl_core", "core/src"));
    files
}

fn files_of(name: &str, folder: &str) -> Files {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let (mut found, mut paths) = (Files::new(), vec![source.clone()]);
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(path).expect("a folder");
            paths.extend(entries.map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source file");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let code: Vec<_> = code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
        let file = path.strip_prefix(&source).expect("in src").with_extension("");
        let module = format!("{name}/{}", file.display()).replace('/', "::");
        let module = module.trim_end_matches("::mod").trim_end_matches("::lib");
        let code = code.join("\n").replace("crate::", &format!("{name}::"));
        found.insert(module.into(), without_groups(code));
    }
    found
}

fn without_groups(mut code: String) -> String {
    while let Some(open) = code.rfind("::{") {
        let close = open + code[open..].find('}').expect("a group ends");
        let start = code[..open].rfind(|c| !is_of_path(c)).map_or(0, |before| before + 1);
        let items = code[open + 3..close].split(',').filter(|item| !item.trim().is_empty());
        let paths: Vec<_> = items.map(|item| format!("{}::{}", &code[start..open], item.trim())).collect();
        code.replace_range(start..=close, &paths.join(", "));
    }
    code
}

fn is_of_path(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == ':'
}

fn paths(line: &str) -> impl Iterator<Item = &str> {
    let paths = line.split(|c| !is_of_path(c)).map(|path| path.trim_end_matches("::self"));
    // Other single words may be variables.
    paths.filter(|path| path.contains("::") || path.starts_with(char::is_uppercase))
}

/// The file of what `file` names by this path, wherever that file has it from.
fn named(files: &Files, file: &str, path: &str) -> String {
    let (mut at, mut below) = (file, path);
    while let Some(path) = below.strip_prefix("super::") {
        (at, below) = (at.rsplit_once("::").map_or(at, |(above, _)| above), path);
    }
    let is_full = ["crate::", "redis_rl_core::"].iter().any(|root| below.starts_with(root));
    let full = if is_full { below.into() } else { format!("{at}::{below}") };
    let mut found = full.as_str();
    while !files.contains_key(found) {
        found = found.rsplit_once("::").map_or("crate", |(above, _)| above);
    }
    let Some(item) = full[found.len()..].split("::").nth(1) else { return found.into() };
    let mut used = files[found].lines().filter(|line| line.contains("use ")).flat_map(paths);
    match used.find(|used| used.ends_with(&format!("::{item}")) && *used != path) {
        Some(used) => named(files, found, used),
        None => found.into(),
    }
}

/// The files, each with another one of which it names something, except to hand it on.
fn calls() -> Vec<(String, String)> {
    let (files, mut calls) = (files(), Vec::new());
    for (file, code) in &files {
        let own = code.lines().filter(|line| !(line.starts_with("pub") && line.contains(" use ")));
        calls.extend(own.flat_map(paths).map(|path| (file.clone(), named(&files, file, path))));
    }
    calls.sort();
    calls.dedup();
    calls.retain(|(from, to)| from != to);
    calls
}

#[test]
fn each_module_calls_only_those_below_it() {
    let place = |file: &str| LAYERS.iter().position(|layer| file.split("::").nth(1) == Some(*layer));
    for (from, to) in calls() {
        assert!(place(&to).is_none_or(|to| place(&from) <= Some(to)), "{from} calls {to}");
    }
}

#[test]
fn no_call_closes_a_circle() {
    let is_up = |(from, to): &(String, String)| from.starts_with(&format!("{to}::"));
    let (up, others): (Vec<_>, Vec<_>) = calls().into_iter().partition(is_up);
    let (mut down, mut wrong) = (Vec::new(), Vec::new());
    for call in others.into_iter().chain(up) {
        down.push(call);
        let mut circle = down.clone();
        while let Some(end) = circle.iter().position(|(_, to)| circle.iter().all(|(from, _)| from != to)) {
            circle.swap_remove(end);
        }
        if !circle.is_empty() {
            wrong.extend(down.pop());
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
