//! `make latency` measures how long a client waits for one call over loopback: `INCR`, the usual Lua script of a fixed
//! window, and the three limiters, with 1 and with 50 calls on their way at once. It prints the medians of several turns,
//! in microseconds. Run it on a machine that does nothing else: the server and this client take a core each.

use std::env;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use anyhow::{Result, ensure};
use harness::Server;

/// Of each command and number of connections. Commands take turns, so that all meet the same noise.
const TURNS: usize = 15;
/// With `BENCH_QUICK`.
const FEW_TURNS: usize = 3;
/// In a turn: half a second with one connection.
const CALLS: usize = 20_000;
/// Each call takes the next key: the names have 15 bytes.
const KEYS: usize = 10_000;

/// One key, whose counter expires after a window.
const SCRIPT: &str = "
local used = redis.call('INCR', KEYS[1])
if used == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return {used > tonumber(ARGV[1]) and 1 or 0, redis.call('PTTL', KEYS[1])}";

struct Command {
    name: &'static str,
    /// One for each key, as sent.
    calls: Vec<Vec<u8>>,
    /// Of a reply.
    lines: usize,
}

impl Command {
    /// `words` of one call, given its key.
    fn new(name: &'static str, lines: usize, words: impl Fn(&str) -> Vec<String>) -> Command {
        let call = |key| {
            let mut packed = redis::Cmd::new();
            packed.arg(words(&format!("{name:.1}{key:014}")));
            packed.get_packed_command()
        };
        Command { name, calls: (0..KEYS).map(call).collect(), lines }
    }
}

/// What the calls of one turn took.
struct Turn {
    p50_us: f64,
    p99_us: f64,
    a_second: f64,
}

fn main() -> Result<()> {
    let server = Server::start();
    let digest: String = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query(&mut server.connect())?;
    let limiter = |name: &'static str| {
        Command::new(name, 6, move |key| [name, key, "1000000", "1m"].map(str::to_owned).to_vec())
    };
    let commands = [
        Command::new("INCR", 1, |key| ["INCR", key].map(str::to_owned).to_vec()),
        Command::new("Lua, fixed window", 3, |key| {
            ["EVALSHA", &digest, "1", key, "1000000", "60000"].map(str::to_owned).to_vec()
        }),
        limiter("RL.FIXED"),
        limiter("RL.SLIDING"),
        limiter("RL.LOG"),
    ];
    println!("| | p50 of 1 at once | p99 | p50 of 50 at once | p99 | a second, 50 at once |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let [single, many] = [1, 50].map(|connections| measure(&server, &commands, connections));
    for ((command, single), many) in commands.iter().zip(single?).zip(many?) {
        let Turn { p50_us, p99_us, .. } = single;
        print!("| {} | {p50_us:.0} | {p99_us:.0} ", command.name);
        println!("| {:.0} | {:.0} | {:.0},000 |", many.p50_us, many.p99_us, many.a_second / 1000.0);
    }
    Ok(())
}

/// The medians of each command's turns.
fn measure(server: &Server, commands: &[Command], connections: usize) -> Result<Vec<Turn>> {
    let mut turns: Vec<Vec<Turn>> = commands.iter().map(|_| Vec::new()).collect();
    let rounds = if env::var_os("BENCH_QUICK").is_some() { FEW_TURNS } else { TURNS };
    for _ in 0..rounds {
        for (command, turns) in commands.iter().zip(&mut turns) {
            server.value("FLUSHALL");
            turns.push(turn(server, command, connections)?);
        }
    }
    let medians = turns.iter().map(|turns| Turn {
        p50_us: median(turns.iter().map(|turn| turn.p50_us)),
        p99_us: median(turns.iter().map(|turn| turn.p99_us)),
        a_second: median(turns.iter().map(|turn| turn.a_second)),
    });
    Ok(medians.collect())
}

/// Each connection waits for its reply before it sends the next call.
fn turn(server: &Server, command: &Command, connections: usize) -> Result<Turn> {
    let mut waiting = Vec::new();
    let mut calls = command.calls.iter().cycle();
    let mut send = |stream: &mut TcpStream| -> Result<Instant> {
        let sent = Instant::now();
        stream.write_all(calls.next().expect("an endless cycle"))?;
        Ok(sent)
    };
    for _ in 0..connections {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port()))?;
        stream.set_nodelay(true)?;
        let sent = send(&mut stream)?;
        waiting.push((stream, sent));
    }
    let mut take = |calls: usize| -> Result<Vec<f64>> {
        let mut waits_us = Vec::with_capacity(calls);
        while waits_us.len() < calls {
            for (stream, sent) in &mut waiting {
                receive(stream, command)?;
                waits_us.push(sent.elapsed().as_secs_f64() * 1e6);
                *sent = send(stream)?;
            }
        }
        Ok(waits_us)
    };
    // These create the keys.
    take(KEYS)?;
    let start = Instant::now();
    let mut waits_us = take(CALLS)?;
    let a_second = waits_us.len() as f64 / start.elapsed().as_secs_f64();
    waits_us.sort_by(f64::total_cmp);
    let [p50_us, p99_us] = [50, 99].map(|percent| waits_us[waits_us.len() * percent / 100]);
    Ok(Turn { p50_us, p99_us, a_second })
}

/// Reads one reply.
fn receive(stream: &mut TcpStream, command: &Command) -> Result<()> {
    let mut reply = [0; 512];
    let mut length = 0;
    while reply[..length].iter().filter(|byte| **byte == b'\n').count() < command.lines {
        let read = stream.read(&mut reply[length..])?;
        ensure!(read > 0 && reply[0] != b'-', "{}: {}", command.name, String::from_utf8_lossy(&reply));
        length += read;
    }
    Ok(())
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
