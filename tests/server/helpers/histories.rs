//! Clients whose server is killed while they send, and which of their requests it must hold.
//!
//! `ROUNDS` is the number of times that each test kills a server.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ops::{Deref, RangeInclusive};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use harness::{Server, command, commands_in_aof, pipeline};
use redis::{Connection, Value};

use crate::helpers::traffic::{NOW, Traffic, send};

/// Clients that send at the same time.
pub const CLIENTS: usize = 3;

/// How often a test kills a server.
pub fn rounds() -> usize {
    env::var("ROUNDS").map_or(3, |rounds| rounds.parse().expect("a number of rounds"))
}

/// What a client sent, and the replies it got before the server was killed.
#[derive(Default)]
pub struct Sent {
    pub lines: Vec<String>,
    /// The replies to the first of these lines.
    pub replies: Vec<Value>,
}

/// The clients of a server that has not been killed yet.
pub struct Clients<'a> {
    server: &'a mut Server,
    sent: &'a [Mutex<Sent>],
    answers: Receiver<()>,
}

impl Clients<'_> {
    /// Waits for this many more replies.
    pub fn wait_for_answers(&self, count: usize) {
        assert_eq!(self.answers.iter().take(count).count(), count, "the server is gone");
    }

    /// The lines each client has sent, and its replies so far.
    pub fn sent(&self) -> impl Iterator<Item = MutexGuard<'_, Sent>> {
        self.sent.iter().map(|sent| sent.lock().expect("no client panics"))
    }
}

impl Deref for Clients<'_> {
    type Target = Server;

    fn deref(&self) -> &Server {
        self.server
    }
}

impl Drop for Clients<'_> {
    /// Ends the traffic, even if a test fails.
    fn drop(&mut self) {
        self.server.kill();
    }
}

/// Sends the batches of each source from a client of its own, runs `meanwhile`, and kills the server under
/// this traffic.
pub fn kill_amid_traffic(
    server: &mut Server,
    sources: impl IntoIterator<Item = impl FnMut() -> Vec<String> + Send>,
    meanwhile: impl FnOnce(&Clients),
) -> Vec<Sent> {
    let sources: Vec<_> = sources.into_iter().collect();
    let sent: Vec<Mutex<Sent>> = sources.iter().map(|_| Mutex::default()).collect();
    thread::scope(|scope| {
        let (answered, answers) = mpsc::channel();
        for (source, sent) in sources.into_iter().zip(&sent) {
            let (connection, answered) = (server.connect(), answered.clone());
            scope.spawn(move || send_until_killed(connection, source, sent, &answered));
        }
        drop(answered);
        meanwhile(&Clients { server, sent: &sent, answers });
    });
    sent.into_iter().map(|sent| sent.into_inner().expect("no client panics")).collect()
}

fn send_until_killed(
    mut connection: Connection,
    mut source: impl FnMut() -> Vec<String>,
    sent: &Mutex<Sent>,
    answered: &Sender<()>,
) {
    loop {
        let batch = source();
        sent.lock().expect("no client panics").lines.extend_from_slice(&batch);
        if connection.send_packed_command(&pipeline(&batch).get_packed_pipeline()).is_err() {
            return;
        }
        for _ in batch {
            let Ok(reply) = connection.recv_response() else { return };
            sent.lock().expect("no client panics").replies.push(reply);
            // No one waits for more replies once the server is about to be killed.
            let _ = answered.send(());
        }
    }
}

/// Clients with keys of their own, and a reference server that gets the same requests and is never killed.
pub struct Histories {
    clients: Vec<Traffic>,
    reference: Server,
}

impl Histories {
    pub fn of(seed: u64) -> Histories {
        let client = |client| Traffic::to_keys(&owner(client), seed + client as u64);
        Histories { clients: (0..CLIENTS).map(client).collect(), reference: Server::with_clock_at(NOW, &[]) }
    }

    /// The batches of each client.
    pub fn batches(&mut self) -> impl Iterator<Item = impl FnMut() -> Vec<String> + Send> {
        self.clients.iter_mut().map(|traffic| || traffic.batch())
    }

    /// Asserts that each client's keys hold the result of exactly its first n lines, for some n in its range.
    #[track_caller]
    pub fn assert_carried_out(
        &self,
        server: &Server,
        sent: &[Sent],
        counts: impl IntoIterator<Item = RangeInclusive<usize>>,
    ) {
        for (client, (sent, counts)) in sent.iter().zip(counts).enumerate() {
            let found = held(server, client);
            let mut connection = self.reference.connect();
            send(&mut connection, &sent.lines[..*counts.start()]);
            let mut rest = sent.lines[*counts.start()..*counts.end()].iter();
            let mut expected = held(&self.reference, client);
            while expected != found {
                let Some(line) = rest.next() else {
                    let difference = self.difference(server, &found, &expected, &sent.lines);
                    panic!("client {client}: after none of {counts:?} lines\n{difference}");
                };
                // The reply may be an error.
                let _ = command(line).exec(&mut connection);
                expected = held(&self.reference, client);
            }
        }
    }

    /// What to know about keys that differ: both states, every request about them since the last check, and what
    /// the append-only file holds about them.
    fn difference(&self, server: &Server, found: &Held, expected: &Held, lines: &[String]) -> String {
        let keys: BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
        let differ = keys.into_iter().filter(|key| found.get(*key) != expected.get(*key));
        let has_file = server.folder().join("appendonlydir").exists();
        let written = if has_file { commands_in_aof(server) } else { Vec::new() };
        let of_key = differ.map(|key| {
            let infos = [server, &self.reference].map(|server| server.call(&format!("RL.INFO {key}")));
            let about: Vec<_> = lines.iter().enumerate().filter(|(_, line)| line.contains(key)).collect();
            let written: Vec<_> = written.iter().filter(|line| line.contains(key)).collect();
            format!("{key}: found, expected: {infos:#?}\nrequests: {about:#?}\nwritten: {written:#?}\n")
        });
        of_key.chain([server.log()]).collect()
    }

    /// Asserts that the server keeps working like one that was never killed.
    #[track_caller]
    pub fn assert_goes_on(&mut self, server: &Server) {
        for traffic in &mut self.clients {
            let lines = traffic.lines_with_at(300);
            let [expected, replies] =
                [&self.reference, server].map(|server| send(&mut server.connect(), &lines));
            for ((line, expected), reply) in lines.iter().zip(expected).zip(replies) {
                assert_eq!(reply, expected, "{line}");
            }
        }
    }
}

/// The prefix of a client's keys.
fn owner(client: usize) -> String {
    format!("client-{client}:")
}

/// The digest of each key.
type Held = BTreeMap<String, String>;

/// What a server holds of a client's keys.
fn held(server: &Server, client: usize) -> Held {
    let mut connection = server.connect();
    let keys: Vec<String> =
        command(&format!("KEYS {}*", owner(client))).query(&mut connection).expect("KEYS");
    if keys.is_empty() {
        return BTreeMap::new();
    }
    let of_all = |name| pipeline(keys.iter().map(move |key| format!("{name} {key}")));
    let times: Vec<i64> = of_all("PTTL").query(&mut connection).expect("times to live");
    assert!(!times.contains(&-1), "a key without a time to live");
    let digests: Vec<Vec<String>> = of_all("DEBUG DIGEST-VALUE").query(&mut connection).expect("digests");
    keys.iter().cloned().zip(digests.concat()).collect()
}
