//! What it takes to load a request from an append-only file.

use anyhow::{Result, ensure};
use redis::Connection;

use crate::bench::Counter;
use crate::server::{command, flush, info};
use crate::workload::Workload;

/// Instructions of a server with an append-only file to load a request from it.
pub fn instructions_to_load(counter: &Counter, workload: &Workload) -> Result<f64> {
    const REQUESTS: usize = 2_000;
    eprintln!("loading: {}", workload.name);
    let mut connection = counter.server.connect()?;
    let few = load(counter, &mut connection, workload, REQUESTS)?;
    let many = load(counter, &mut connection, workload, 3 * REQUESTS)?;
    Ok((many - few).max(0.0) / (2 * REQUESTS) as f64)
}

/// The instructions to load a file with so many requests.
fn load(counter: &Counter, connection: &mut Connection, workload: &Workload, requests: usize) -> Result<f64> {
    workload.measure(connection, |connection| {
        flush(connection)?;
        command("DEBUG SET-ACTIVE-EXPIRE 0").exec(connection)?;
        command("BGREWRITEAOF").exec(connection)?;
        while is_rewriting(connection)? {}
        let expired = info(connection, "expired_keys")?;
        workload.send(connection, requests)?;
        let load = |connection: &mut Connection| Ok(command("DEBUG LOADAOF").exec(connection)?);
        let instructions = counter.least_of_three(connection, load)?.all;
        // Such keys are deleted in the file too.
        ensure!(info(connection, "expired_keys")? == expired, "{}: keys have expired", workload.name);
        Ok(instructions)
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
