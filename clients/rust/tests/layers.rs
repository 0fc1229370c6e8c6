//! Who calls whom: calls point down only, and close no circle inside a room either.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The rooms of `src`, from top to bottom.
const ROOMS: [&str; 6] = ["frameworks", "guard", "keys", "lines", "memory", "commands"];

/// The code of each file by its path, without comments.
fn files() -> BTreeMap<String, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut found, mut paths) = (BTreeMap::new(), vec![source.clone()]);
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(path).expect("a folder");
            paths.extend(entries.map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source file");
        let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let file = path.strip_prefix(&source).expect("in src").with_extension("");
        found.insert(file.display().to_string(), code.collect::<Vec<_>>().join("\n"));
    }
    found
}

/// The rooms and, inside the own one, the files that a file names.
fn named(file: &str, code: &str, files: &BTreeMap<String, String>) -> BTreeSet<String> {
    let room = file.split('/').next().unwrap_or_default();
    let words: Vec<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').collect();
    let mut named = BTreeSet::new();
    for word in words {
        let below = word.strip_prefix("crate::");
        named.extend(below.and_then(|path| path.split("::").next()).filter(|room| !room.is_empty()));
        for path in [word.strip_prefix("super::"), word.strip_prefix("self::"), Some(word)] {
            let own = path.and_then(|path| path.split("::").next()).unwrap_or_default();
            let own = format!("{room}/{own}");
            if files.contains_key(&own) && own != file && word.contains("::") {
                named.insert(files.get_key_value(&own).expect("it is there").0);
            }
        }
    }
    named.into_iter().map(str::to_owned).collect()
}

#[test]
fn each_room_calls_only_those_below_it() {
    let place = |room: &str| ROOMS.iter().position(|other| *other == room);
    let files = files();
    for (file, code) in &files {
        let Some(from) = place(file.split('/').next().unwrap_or_default()) else { continue };
        // By its file, so that it is seen which one.
        for line in
            code.lines().filter(|line| line.starts_with("use super::") || line.starts_with("use crate::"))
        {
            let path = line["use ".len()..].trim_end_matches(';');
            let is_one = path.split("::").nth(1).is_some_and(|name| name.starts_with(char::is_lowercase));
            assert!(is_one, "{file}: {line}");
        }
        for room in named(file, code, &files) {
            assert!(place(&room).is_none_or(|to| to >= from), "{file} calls {room}");
        }
    }
    for room in ROOMS {
        assert!(files.keys().any(|file| file.split('/').next() == Some(room)), "there is {room}");
    }
}

#[test]
fn no_call_closes_a_circle() {
    let files = files();
    // Files that nothing left calls are taken away, until none or a circle is left.
    let mut calls: Vec<(String, String)> = files
        .iter()
        .filter(|(file, _)| !file.ends_with("/mod"))
        .flat_map(|(file, code)| named(file, code, &files).into_iter().map(|to| (file.clone(), to)))
        .filter(|(_, to)| to.contains('/'))
        .collect();
    while let Some(top) = calls.iter().find(|(from, _)| calls.iter().all(|(_, to)| to != from)) {
        let top = top.0.clone();
        calls.retain(|(from, _)| *from != top);
    }
    assert!(calls.is_empty(), "{calls:#?}");
}
