//! `make latency` measures how long a client waits for one call over loopback: `INCR`, the usual Lua script of a fixed
//! window, the limiters, three keys in one `RL.ALL`, and redis-cell and throttlecrab if `REDIS_CELL` and `THROTTLECRAB` name their files. With 1 and
//! with 50 calls on their way at once, the latter also in pipelines of 64. It prints the medians of several turns, in
//! microseconds. Run it on a machine that does nothing else: the server and this client take a core each.

use std::env;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use harness::{COMMANDS, Process, Server, free_port, wait_for};

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
    /// Of the server that is asked.
    port: u16,
    /// One for each key, as sent.
    calls: Vec<Vec<u8>>,
    /// Of a reply.
    lines: usize,
}

impl Command {
    /// `line` is one call, with `KEY` for its key; what follows that word makes it another key.
    fn new(name: &'static str, port: u16, lines: usize, line: &str) -> Command {
        // The limiters differ in this letter.
        let letter = &name[3..4];
        let call = |key| {
            let key = format!("{letter}{key:014}");
            let words: Vec<String> = line.split(' ').map(|word| word.replace("KEY", &key)).collect();
            redis::Cmd::new().arg(words).get_packed_command()
        };
        Command { name, port, calls: (0..KEYS).map(call).collect(), lines }
    }
}

/// How calls are sent: from so many connections, so many in one write.
#[derive(Clone, Copy)]
struct Traffic {
    connections: usize,
    depth: usize,
}

/// What the calls of one turn took.
struct Turn {
    p50_us: f64,
    p99_us: f64,
    a_second: f64,
}

fn main() -> Result<()> {
    let server = Server::start();
    let port = server.port();
    let digest: String = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query(&mut server.connect())?;
    let mut commands = vec![
        Command::new("INCR", port, 1, "INCR KEY"),
        Command::new("Lua, fixed window", port, 3, &format!("EVALSHA {digest} 1 KEY 1000000 60000")),
    ];
    commands.extend(COMMANDS.map(|name| Command::new(name, port, 6, &format!("{name} KEY 1000000 1m"))));
    let rows = "KEY FIXED 1000000 1m 1 KEY:a FIXED 1000000 1m 1 KEY:b FIXED 1000000 1m 1";
    commands.push(Command::new("RL.ALL, three keys", port, 23, &format!("RL.ALL {rows}")));
    let throttle = |name, port| Command::new(name, port, 6, "CL.THROTTLE KEY 999999 1000000 60");
    if let Ok(path) = env::var("REDIS_CELL") {
        server.call(&format!("MODULE LOAD {path}"))?;
        commands.push(throttle("CL.THROTTLE of redis-cell", port));
    }
    let folder = tempfile::tempdir()?;
    let _crab = match env::var_os("THROTTLECRAB") {
        Some(program) => {
            let port = free_port();
            let mut command = std::process::Command::new(program);
            command.args(["--redis", "--redis-host", "127.0.0.1", "--redis-port", &port.to_string()]);
            let crab = Process::spawn(&mut command, folder.path().join("log")).context("throttlecrab")?;
            wait_for("throttlecrab", || TcpStream::connect(("127.0.0.1", port)).is_ok());
            commands.push(Command::new("throttlecrab", port, 6, "THROTTLE KEY 999999 1000000 60"));
            Some(crab)
        }
        None => None,
    };
    println!(
        "| | p50 of 1 at once | p99 | p50 of 50 at once | p99 | a second, in thousands | in pipelines of 64, in thousands |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let [single, many, pipelines] = [(1, 1), (50, 1), (50, 64)]
        .map(|(connections, depth)| measure(&commands, Traffic { connections, depth }));
    for (((command, single), many), pipelined) in commands.iter().zip(single?).zip(many?).zip(pipelines?) {
        let Turn { p50_us, p99_us, .. } = single;
        print!("| {} | {p50_us:.0} | {p99_us:.0} ", command.name);
        let [a_second, in_pipelines] = [many.a_second, pipelined.a_second].map(|rate| rate / 1000.0);
        println!("| {:.0} | {:.0} | {a_second:.0} | {in_pipelines:.0} |", many.p50_us, many.p99_us);
    }
    Ok(())
}

/// The medians of each command's turns.
fn measure(commands: &[Command], traffic: Traffic) -> Result<Vec<Turn>> {
    let mut turns: Vec<Vec<Turn>> = commands.iter().map(|_| Vec::new()).collect();
    let rounds = if env::var_os("BENCH_QUICK").is_some() { FEW_TURNS } else { TURNS };
    for _ in 0..rounds {
        for (command, turns) in commands.iter().zip(&mut turns) {
            turns.push(turn(command, traffic)?);
        }
    }
    let medians = turns.iter().map(|turns| Turn {
        p50_us: median(turns.iter().map(|turn| turn.p50_us)),
        p99_us: median(turns.iter().map(|turn| turn.p99_us)),
        a_second: median(turns.iter().map(|turn| turn.a_second)),
    });
    Ok(medians.collect())
}

/// Each connection waits for its replies before it sends the next calls.
fn turn(command: &Command, traffic: Traffic) -> Result<Turn> {
    let mut waiting = Vec::new();
    let writes: Vec<Vec<u8>> = command.calls.chunks_exact(traffic.depth).map(<[_]>::concat).collect();
    let mut writes = writes.iter().cycle();
    let mut send = |stream: &mut TcpStream| -> Result<Instant> {
        let sent = Instant::now();
        stream.write_all(writes.next().expect("an endless cycle"))?;
        Ok(sent)
    };
    for _ in 0..traffic.connections {
        let mut stream = TcpStream::connect(("127.0.0.1", command.port))?;
        stream.set_nodelay(true)?;
        let sent = send(&mut stream)?;
        waiting.push((stream, sent));
    }
    let mut take = |calls: usize| -> Result<Vec<f64>> {
        let mut waits_us = Vec::with_capacity(calls);
        while waits_us.len() < calls / traffic.depth {
            for (stream, sent) in &mut waiting {
                receive(stream, command, traffic.depth)?;
                waits_us.push(sent.elapsed().as_secs_f64() * 1e6);
                *sent = send(stream)?;
            }
        }
        Ok(waits_us)
    };
    // These create the keys.
    take(KEYS)?;
    let start = Instant::now();
    let mut waits_us = take(CALLS * traffic.depth.min(8))?;
    let a_second = (waits_us.len() * traffic.depth) as f64 / start.elapsed().as_secs_f64();
    waits_us.sort_by(f64::total_cmp);
    let [p50_us, p99_us] = [50, 99].map(|percent| waits_us[waits_us.len() * percent / 100]);
    Ok(Turn { p50_us, p99_us, a_second })
}

/// Reads the replies to one write.
fn receive(stream: &mut TcpStream, command: &Command, depth: usize) -> Result<()> {
    let mut reply = [0; 4096];
    let mut lines = 0;
    while lines < command.lines * depth {
        let read = stream.read(&mut reply)?;
        let text = String::from_utf8_lossy(&reply[..read]);
        ensure!(read > 0 && !text.starts_with('-'), "{}: {text}", command.name);
        lines += reply[..read].iter().filter(|byte| **byte == b'\n').count();
    }
    Ok(())
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
