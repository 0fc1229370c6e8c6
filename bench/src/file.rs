//! What a request takes in an append-only file.

use anyhow::{Context, Result, ensure};
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
        let requests = 2_000;
        let mut connection = counter.server.connect()?;
        let few = load(counter, &mut connection, workload, requests)?;
        let many = load(counter, &mut connection, workload, 3 * requests)?;
        let of_each = |many: u64, few: u64| -> Result<f64> {
            let more = many.checked_sub(few).context("more requests take less in a file")?;
            Ok(more as f64 / (2 * requests) as f64)
        };
        Ok(InFile { bytes: of_each(many.0, few.0)?.round() as u64, instructions: of_each(many.1, few.1)? })
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
        // A bucket that lost few units is full again within seconds.
        command("DEBUG SET-ACTIVE-EXPIRE 0").exec(connection)?;
        command("BGREWRITEAOF").exec(connection)?;
        while is_rewriting(connection)? {}
        let expired = info(connection, "expired_keys")?;
        workload.send(connection, requests)?;
        let load = |connection: &mut Connection| Ok(command("DEBUG LOADAOF").exec(connection)?);
        let instructions = counter.least_of_three(connection, load)?;
        // Only now: the server may put off writing for two seconds, but writes everything before it loads.
        let bytes = info(connection, "aof_current_size")?.context("no size of the append-only file")?;
        // Such keys are deleted in the file too.
        ensure!(info(connection, "expired_keys")? == expired, "{}: keys have expired", workload.name);
        Ok((bytes.parse()?, instructions))
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
