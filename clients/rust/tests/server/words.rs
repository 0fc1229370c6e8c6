//! A server that keeps what is sent to it, and answers errors.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use redis::{Arg, Cmd};

/// The words of each command of redis-rl. Clones share them.
#[derive(Clone)]
pub struct Words {
    port: u16,
    sent: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Words {
    pub fn start() -> Words {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let words = Words { port, sent: Arc::default() };
        let keeper = words.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let keeper = keeper.clone();
                thread::spawn(move || keeper.serve(client));
            }
        });
        words
    }

    pub fn client(&self) -> redis::Client {
        redis::Client::open(("127.0.0.1", self.port)).expect("an address")
    }

    pub fn sent(&self) -> Vec<Vec<String>> {
        self.sent.lock().expect("no panic").clone()
    }

    fn serve(&self, mut client: TcpStream) {
        let mut reader = BufReader::new(client.try_clone().expect("a socket"));
        while let Some(words) = command(&mut reader) {
            let is_kept = words[0].starts_with("RL.");
            if is_kept {
                self.sent.lock().expect("no panic").push(words);
            }
            let reply = if is_kept { "-ERR nobody answers\r\n" } else { "+OK\r\n" };
            if client.write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// A number of words, each with its length.
fn command(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let number = |reader: &mut dyn BufRead| {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        line.get(1..)?.trim_end().parse::<usize>().ok()
    };
    let words = (0..number(reader)?).map(|_| {
        let mut word = vec![0; number(reader)? + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        String::from_utf8(word).ok()
    });
    words.collect()
}

/// The words of a command.
pub fn words(command: &Cmd) -> Vec<String> {
    let word = |arg| match arg {
        Arg::Simple(bytes) => String::from_utf8(Vec::from(bytes)).expect("UTF-8"),
        other => panic!("{other:?}"),
    };
    command.args_iter().map(word).collect()
}
