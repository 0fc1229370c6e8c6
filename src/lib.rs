//! Rate limiting inside Redis and Valkey: a module with a fixed window, a sliding window counter
//! and an exact sliding log. From top to bottom, each module calling only those below it:
//!
//! - `module`: the table of what is registered with the server.
//! - `command`: the commands: parse, open, decide, commit, reply.
//! - `keyspace`: the native type, and a safe handle on one key.
//! - `server`: the current call, the clock, replication, registration, the server's log, the allocator.
//! - `stats`: the counters shown in INFO.
//! - [`encoding`]: a limiter as versioned bytes, an effect as a word.
//! - [`request`]: parses arguments, and holds every error text.
//! - [`limiter`]: the algorithms. Pure, as are the two modules above it.

mod command;
pub mod encoding;
mod keyspace;
pub mod limiter;
mod module;
pub mod request;
mod server;
mod stats;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// From top to bottom, as above.
    const LAYERS: [&str; 8] =
        ["module", "command", "keyspace", "server", "stats", "encoding", "request", "limiter"];

    /// The files of a module.
    fn files(module: &str) -> Vec<PathBuf> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let (mut found, mut folders) =
            (vec![source.join(module).with_extension("rs")], vec![source.join(module)]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let path = entry.expect("an entry").path();
                if path.is_dir() { folders.push(path) } else { found.push(path) }
            }
        }
        found.retain(|file| file.exists());
        found
    }

    /// The modules that code names after `crate::`, alone or in braces, on one line or several.
    fn named(code: &str) -> impl Iterator<Item = &str> {
        let uses = code.split("crate::").skip(1);
        uses.flat_map(|used| match used.strip_prefix('{') {
            Some(several) => {
                several.split(';').next().unwrap_or_default().split(',').map(str::trim).collect()
            }
            None => vec![used],
        })
        .map(|used| used.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default())
    }

    #[test]
    fn each_module_calls_only_those_below_it() {
        for (place, module) in LAYERS.iter().enumerate() {
            let files = files(module);
            assert!(!files.is_empty(), "{module}");
            for file in files {
                let text = fs::read_to_string(&file).expect("a source file");
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                for used in named(&code.collect::<Vec<_>>().join("\n")) {
                    let layer = LAYERS.iter().position(|layer| *layer == used);
                    assert!(layer.is_none_or(|layer| layer >= place), "{} calls {used}", file.display());
                }
            }
        }
    }
}
