//! The replication stream and the append-only file of a server.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use crate::server::Server;
use crate::wait::PATIENCE;

/// The replication stream of a server.
pub struct ReplicationStream {
    commands: Commands<BufReader<TcpStream>>,
    marks: u32,
}

impl ReplicationStream {
    /// Connects to a server as a replica does.
    pub fn of(server: &Server) -> ReplicationStream {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(b"PSYNC ? -1\r\n").expect("PSYNC is sent");
        let mut reader = BufReader::new(stream);
        assert!(read_line(&mut reader).starts_with("+FULLRESYNC"));
        // The snapshot comes as newlines while it is made, then its length and its bytes.
        let mut header = String::new();
        while header.is_empty() {
            header = read_line(&mut reader);
        }
        let length = header.strip_prefix('$').and_then(|len| len.parse().ok()).expect("a snapshot");
        io::copy(&mut reader.by_ref().take(length), &mut io::sink()).expect("the snapshot");
        ReplicationStream { commands: Commands::of(reader), marks: 0 }
    }

    /// The next command as sent; `None` when the server has closed the stream.
    pub fn next_command(&mut self) -> Option<String> {
        self.commands.next()
    }

    /// The commands sent since the last call, each joined by spaces, without PING, SELECT and REPLCONF.
    pub fn commands(&mut self, server: &Server) -> Vec<String> {
        self.marks += 1;
        let mark = format!("PUBLISH end-of-commands {}", self.marks);
        server.value(&mark);
        let mut commands = Vec::new();
        loop {
            let command = self.next_command().expect("a command");
            if command == mark {
                return commands;
            }
            // Valkey 9.1 sends some of them in lower case.
            let name = command.split(' ').next().unwrap_or_default().to_ascii_uppercase();
            if !["PING", "SELECT", "REPLCONF"].contains(&name.as_str()) {
                commands.push(command);
            }
        }
    }
}

/// Commands without the times at which their keys expire.
pub fn without_expiry(commands: &[String]) -> Vec<String> {
    let without = |command: &String| {
        let words = command.split(' ').map(|word| word.split('>').next().unwrap_or_default());
        words.collect::<Vec<_>>().join(" ")
    };
    commands.iter().map(without).collect()
}

/// Every command in an append-only file except SELECT, part by part.
pub fn commands_in_aof(server: &Server) -> Vec<String> {
    let parts = parts(server.folder());
    let commands = parts.iter().flat_map(|part| Commands::of(File::open(part).expect("a part")));
    commands.filter(|command| !command.starts_with("SELECT")).collect()
}

/// The part of the append-only file in the folder of a server that is written to.
pub fn newest_part(folder: &Path) -> PathBuf {
    parts(folder).pop().expect("a part")
}

fn parts(folder: &Path) -> Vec<PathBuf> {
    let parts = fs::read_dir(folder.join("appendonlydir")).expect("an append-only folder");
    let parts = parts.map(|part| part.expect("an entry").path());
    let mut parts: Vec<PathBuf> =
        parts.filter(|path| path.extension().is_some_and(|extension| extension == "aof")).collect();
    // "base" sorts before "incr".
    parts.sort();
    parts
}

/// The commands in a stream, each joined by spaces.
struct Commands<R> {
    parser: redis::Parser,
    reader: R,
}

impl<R: Read> Commands<R> {
    fn of(reader: R) -> Commands<R> {
        Commands { parser: redis::Parser::new(), reader }
    }
}

impl<R: Read> Iterator for Commands<R> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let words: Vec<Vec<u8>> =
            redis::from_redis_value(self.parser.parse_value(&mut self.reader).ok()?).expect("a command");
        Some(String::from_utf8_lossy(&words.join(&b' ')).into_owned())
    }
}

fn read_line(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a line");
    line.trim_end().to_owned()
}
