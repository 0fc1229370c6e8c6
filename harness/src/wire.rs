//! Commands, replies and errors.

use redis::{Cmd, Connection, Pipeline, RedisError, RedisResult, Value};

use crate::wait::PATIENCE;

/// The reply of a limiter: limited, limit, remaining, retry after, reset after.
pub type Figures = [i64; 5];

/// A new connection to a server on this machine.
pub(crate) fn connect(port: u16, protocol: &str) -> RedisResult<Connection> {
    let url = format!("redis://127.0.0.1:{port}/?protocol={protocol}");
    let connection = redis::Client::open(url)?.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    Ok(connection)
}

/// A command from its arguments, separated by spaces.
pub fn command(line: &str) -> Cmd {
    let mut words = line.split_whitespace();
    let mut command = redis::cmd(words.next().expect("a command"));
    command.arg(words.collect::<Vec<_>>());
    command
}

/// A pipeline of commands, each from its arguments separated by spaces.
pub fn pipeline(lines: impl IntoIterator<Item = impl AsRef<str>>) -> Pipeline {
    let mut pipeline = redis::pipe();
    for line in lines {
        pipeline.add_command(command(line.as_ref()));
    }
    pipeline
}

/// The five integers of a reply.
#[track_caller]
pub fn figures(value: &Value) -> Figures {
    let integer = |item: &Value| if let Value::Int(integer) = item { Some(*integer) } else { None };
    let integers =
        value.as_sequence().and_then(|items| items.iter().map(integer).collect::<Option<Vec<_>>>());
    let figures = integers.and_then(|integers| integers.try_into().ok());
    figures.unwrap_or_else(|| panic!("{value:?} is not five integers"))
}

/// An error as sent: its code, a space and its text.
pub fn error_text(error: &RedisError) -> String {
    [error.code(), error.detail()].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// A field of INFO; `None` if the server lacks it.
pub fn info(connection: &mut Connection, field: &str) -> RedisResult<Option<String>> {
    let info: String = command("INFO everything").query(connection)?;
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(value.map(str::to_owned))
}

/// The server's clock, in Unix milliseconds.
pub fn clock_ms(connection: &mut Connection) -> RedisResult<u64> {
    let (seconds, micros): (u64, u64) = command("TIME").query(connection)?;
    Ok(seconds * 1_000 + micros / 1_000)
}
