//! What a request takes in an append-only file.

use anyhow::Result;
use redis::Connection;

use crate::bench::Counter;
use crate::server::{command, flush, info};
use crate::workload::Workload;

/// A request in an append-only file.
pub struct InFile {
    /// Its bytes there.
    pub bytes: u64,
    /// Instructions of the server to load it.
    pub instructions: f64,
}

impl InFile {
    /// Measures it on a server with an append-only file.
    pub fn of(counter: &Counter, workload: &Workload) -> Result<InFile> {
        eprintln!("loading: {}", workload.name);
        let requests = counter.setup.size(2_000, 500);
        let mut connection = counter.server.connect()?;
        let few = load(counter, &mut connection, workload, requests)?;
        let many = load(counter, &mut connection, workload, 3 * requests)?;
        let (bytes, instructions) = (many.0 - few.0, many.1.saturating_sub(few.1));
        let requests = 2 * requests;
        Ok(InFile {
            bytes: (bytes as f64 / requests as f64).round() as u64,
            instructions: instructions as f64 / requests as f64,
        })
    }
}

/// The bytes of a file with so many requests, and the instructions to load it.
fn load(
    counter: &Counter,
    connection: &mut Connection,
    workload: &Workload,
    requests: usize,
) -> Result<(u64, u64)> {
    workload.measure(connection, |connection| {
        flush(connection)?;
        command("BGREWRITEAOF").exec(connection)?;
        while is_rewriting(connection)? {}
        workload.send(connection, requests)?;
        let bytes = info(connection, "aof_current_size")?.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
        let instructions =
            counter.server.least_of_three(|| Ok(command("DEBUG LOADAOF").exec(connection)?))?;
        Ok((bytes, instructions))
    })
}

fn is_rewriting(connection: &mut Connection) -> Result<bool> {
    for field in ["aof_rewrite_scheduled", "aof_rewrite_in_progress"] {
        if info(connection, field)?.as_deref() != Some("0") {
            return Ok(true);
        }
    }
    Ok(false)
}
